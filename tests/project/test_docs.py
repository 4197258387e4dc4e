"""The examples of README and guides run; links between documents lead somewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import embedllm
from embedllm.export import convert
from embedllm.export.gguf.encoders import ENCODERS
from embedllm.export.gguf.families import FAMILIES
from embedllm.export.gguf.types import READ, TYPES
from tests.server.serving import serving
from tests.support.encoder_folders import write_embedder, write_reranker
from tests.support.peft_folders import write_demo_adapter
from tests.support.real import SMOLLM2, published_file
from tests.support.vision import chat_checkpoint

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BENCHMARKS = sorted((ROOT / "tests" / "benchmarks").glob("*.py"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


def test_what_is_read_of_gguf_is_listed_and_counted() -> None:
    known = {**FAMILIES, **ENCODERS}
    guide, changes = ((ROOT / page).read_text(encoding="utf-8") for page in ("docs/guide-gguf.md", "CHANGELOG.md"))
    listed = guide.partition("## What is read")[2].partition("\n## ")[0]
    assert [name for name in known if f"`{name}`" not in listed] == []
    quantized = [kind for kind in TYPES.values() if kind.name in READ and kind.values > 1]
    folded = " ".join(changes.split())
    assert f"files of {len(known)} architectures" in folded
    assert f"Quantized tensors of all {len(quantized)} types" in folded


def test_commands_of_benchmarks_name_those_that_import_tests_as_modules() -> None:
    """By its path a program finds no package `tests`."""
    paths = [
        path for path in BENCHMARKS if re.search("^(from|import) (tests|tools)", path.read_text(encoding="utf-8"), re.M)
    ]
    assert paths
    wrong = re.compile(rf"python3?\s+tests/benchmarks/(?:{'|'.join(path.stem for path in paths)})\.py")
    sources = [*PAGES, *sorted((ROOT / "docs").glob("*.py")), *BENCHMARKS]
    found = {str(source.relative_to(ROOT)): wrong.findall(source.read_text(encoding="utf-8")) for source in sources}
    assert {name: commands for name, commands in found.items() if commands} == {}


@pytest.fixture
def served() -> Iterator[ExitStack]:
    """Ends what a page has started."""
    with ExitStack() as opened:
        yield opened


CLIENTS = {"anthropic": "Anthropic", "openai": "OpenAI"}


def with_marks(page: Path) -> object:
    own = {
        "tutorial.md": [pytest.mark.real],
        "scale.md": [pytest.mark.filterwarnings("ignore")],  # Ray 2.60's, of pydantic, while it is imported
    }
    marks = [pytest.mark.slow, *own.get(page.name, [])]
    return pytest.param(page, marks=marks, id=page.name)


@pytest.mark.parametrize("page", [with_marks(page) for page in WITH_CODE])
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: ExitStack) -> None:
    """The blocks of a page, in order and in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")  # not the reader's own
    for seed, name in enumerate(("sql-adapter", "tidy-adapter")):  # that examples name
        write_demo_adapter(tmp_path / name, seed)
    for library in {
        "guide-integrations.md": ("llm", "langchain_core", "llama_index.core"),
        "mcp.md": ("mcp",),
        "server-dialects.md": ("anthropic", "openai"),
    }.get(page.name, ()):
        pytest.importorskip(library)
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    if page.name in ("guide-embeddings.md", "guide-integrations.md"):
        sizes = {"max_position_embeddings": 128}
        convert(write_embedder(tmp_path / "embedder", values=sizes, tokens=128), tmp_path / "my-embedder")
        convert(write_reranker(tmp_path / "reranker", values=sizes), tmp_path / "my-reranker")
    if page.name == "guide-images.md":
        convert(chat_checkpoint(tmp_path / "checkpoint"), tmp_path / "my-vlm")
        Image.new("RGB", (48, 40), "teal").save(tmp_path / "photo.png")
    if page.name == "tutorial.md":
        model = published_file(SMOLLM2, "**/*.gguf")
        (tmp_path / model.name).symlink_to(model)
    if page.name == "scale.md":  # or a cluster takes a fifth of a core from all tests behind
        served.callback(pytest.importorskip("ray").shutdown)
    namespace: dict[str, object] = {"__name__": "__example__"}
    text = page.read_text(encoding="utf-8")
    if page.name == "server-dialects.md":  # as if the server that the page starts were there
        text = text.replace("http://127.0.0.1:8080", served.enter_context(serving()).url)
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, match.start(1))
        code = compile("\n" * line + match[1], str(page), "exec", dont_inherit=True)  # line numbers are the page's
        exec(code, namespace)
        clients: list[Any] = [value for value in namespace.values() if isinstance(value, _clients())]
        for client in clients:  # whose connections would be closed whenever they are collected
            served.callback(client.close)


def _clients() -> tuple[type, ...]:
    """Of the libraries that are imported, those for a server."""
    return tuple(sys.modules[name].__dict__[kind] for name, kind in CLIENTS.items() if name in sys.modules)


def test_calls_in_place_of_other_libraries_run() -> None:
    """Those of the last column of the tables: `llm.chat(messages).text`."""
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    cells = [line.rstrip("|").rpartition("|")[2] for line in page.splitlines() if line.startswith("|")]
    spans = [span for cell in cells for span in re.findall("`([^`]+)`", cell)]
    calls = sorted({span for span in spans if re.match(r"llm\.|(client = )?embedllm\.", span) and "close" not in span})
    assert len(calls) >= 10
    messages = [{"role": "user", "content": "list files"}]
    with embedllm.load("demo", context=300) as llm:  # bounds replies
        names = {"llm": llm, "messages": messages, "prompt": messages, "prompts": [messages], "function": list_files}
        for call in calls:
            exec(call, {"embedllm": embedllm, **names})


def list_files() -> str:
    """Lists the files."""
    return "a.txt"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


NAMED = re.compile(
    r"\[`([A-Za-z_.]+(?<!\.py))`\]\(([^)#\s]+\.py)\)"
)  # a name of the code, with the file that defines it


@pytest.mark.parametrize("page", [page for page in PAGES if NAMED.search(page.read_text(encoding="utf-8"))],
                         ids=lambda page: page.name)  # fmt: skip
def test_names_are_defined_where_their_links_lead(page: Path) -> None:
    missing = []
    for name, target in NAMED.findall(page.read_text(encoding="utf-8")):
        code = (page.parent / target).read_text(encoding="utf-8")
        for part in name.split("."):
            if not re.search(rf"^\s*((async )?def|class) {part}\b|^{part}\b.*=|^ +{part}: ", code, re.MULTILINE):
                missing.append(f"{name} in {target}")
    assert not missing


FOLDERS = "backends|bindings_web|docs|embedllm|export|samples|tests|tools"
FILE = re.compile(rf"(?<![\w/.@-])((?:{FOLDERS})/[\w./-]+\.(?:py|js|md|json))\b")
EXAMPLES = ("MODEL_TYPE", "NAME", "hyperclovax")  # of files that a reader would add


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(FILE.findall(page.read_text(encoding="utf-8")))
    named = {name for name in named if not any(example in name for example in EXAMPLES)}
    assert not {name for name in named if not any((folder / name).exists() for folder in (ROOT, ROOT / "embedllm"))}
