"""Python's half of the browser, in Pyodide in Node against the desktop, over the logits of one formula; its wheel."""

from __future__ import annotations

import asyncio
import base64
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import embedllm
from embedllm.errors import PackageError
from embedllm.generation.defaults import read_defaults
from embedllm.model.model import Model
from embedllm.package.package import MANIFEST, Package, open_package, read_package
from embedllm.web.modules import ENTRY, SOURCES, addresses, sources
from tests.project.test_import import PYPROJECT
from tests.web.support import cases
from tests.web.support.formula import ByteCodec, FormulaEngine
from tests.web.support.found import node, node_modules
from tools import make_web_wheel

WEB = Path(__file__).parent
LIMIT = 500_000  # bytes of the wheel; measured 490,000, 40,000 of them for images in messages
TEMPLATE = (
    "{%- if tools %}{{ tools | map(attribute='function.name') | join(',') }}{% endif %}"
    "{%- for message in messages %}{% if message.role == 'odd' %}{{ raise_exception('odd roles') }}{% endif %}"
    "[{{ message.role }}]{{ message.content | tojson }}{% endfor %}{% if add_generation_prompt %}[>]{% endif %}"
)
DEFAULTS = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_new_tokens": 20, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def texts(tiny_package: Callable[..., Path]) -> dict[str, str]:
    manifest = json.loads((tiny_package("llama") / MANIFEST).read_text(encoding="utf-8"))
    manifest["tokens"]["stop"] = [256]
    return {
        MANIFEST: json.dumps(manifest),
        "chat_template.jinja": TEMPLATE,
        "generation_config.json": json.dumps(DEFAULTS),
        "tokenizer.json": "{}",  # read in JavaScript
    }


@pytest.fixture(scope="module")
def desktop(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("texts") / "tiny"
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    package = read_package(folder)
    engine = FormulaEngine(package.decoder.vocabulary, package.context)
    return Model(package, engine, tokenizer=ByteCodec(), defaults=read_defaults(folder), is_direct=True)


def template_engine(path: Path) -> Path:
    """A zip of jinja2, and of markupsafe without what is compiled: it has the same in Python."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("jinja2", "markupsafe"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            folder = Path(spec.origin).parent
            for file in sorted(folder.glob("*.py")):
                archive.write(file, f"{name}/{file.name}")
    return path


def missing() -> str:
    if node() is None:
        return "Node.js is not here; install Node.js 20 or newer"
    modules = node_modules()
    if modules is None or not (modules / "pyodide").is_dir():
        return "Pyodide is not here; install it with: cd bindings_web && npm ci"
    return ""


def is_same(found: object, expected: object) -> bool:
    """Equal but for the rounding of the log probabilities: those in JavaScript are summed in float64."""
    if isinstance(expected, float) and isinstance(found, float | int):
        return found == pytest.approx(expected, abs=1e-5)
    if isinstance(expected, list | tuple) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(is_same(found[key], expected[key]) for key in expected)
    return found == expected


def test_pyodide_gives_what_the_desktop_gives(
    web_wheel: Path, texts: dict[str, str], desktop: Model, tmp_path: Path
) -> None:
    """And what else tests/web/node/pyodide.test.mjs asks."""
    if reason := missing():
        if os.environ.get("EMBEDLLM_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    out, given = tmp_path / "out.json", tmp_path / "given.json"
    model = {"vocabulary": desktop.package.decoder.vocabulary, "context": desktop.context, "texts": texts}
    archives = [str(web_wheel), str(template_engine(tmp_path / "jinja.zip"))]
    given.write_text(
        json.dumps({"archives": archives, "cases": str(WEB / "support" / "cases.py"), "out": str(out), "model": model}),
        encoding="utf-8",
    )
    command = [node() or "", "--test-reporter=spec", str(WEB / "node" / "pyodide.test.mjs")]
    environment = {**os.environ, "EMBEDLLM_PYODIDE_TEST": str(given)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    expected = json.loads(json.dumps(asyncio.run(cases.outcomes(desktop))))
    assert found.keys() == expected.keys()
    different = [name for name in expected if not is_same(found[name], expected[name])]
    assert {name: (found[name], expected[name]) for name in different} == {}
    assert found["second turn"]["counts"][1] > 0  # held from the first
    assert found["full"][0] == "ContextFull"


# --- the wheel


def test_the_wheel_for_browsers_is_small_and_its_record_is_right(web_wheel: Path) -> None:
    version = embedllm.__version__
    assert web_wheel.name == f"embedllm-{version}-py3-none-any.whl"
    assert web_wheel.stat().st_size < LIMIT
    with zipfile.ZipFile(web_wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    about, readme, _ = contents[f"embedllm-{version}.dist-info/METADATA"].partition(b"\n\n")
    assert (b"Requires-Dist: jinja2" in about, readme) == (True, b"")
    record = f"embedllm-{version}.dist-info/RECORD"
    rows = list(csv.reader(io.StringIO(contents[record].decode())))
    assert sorted(name for name, *_ in rows) == sorted(contents)
    for name, digest, size in rows:
        if name != record:
            found = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={found}", len(contents[name]))
    shipped = {name.removeprefix("embedllm/web/src/") for name in contents if name.endswith(".js")}
    assert shipped == set(addresses(sources(), ENTRY, publish=str))  # all that Python asks for, and none of a page's
    assert not [name for name in contents if "/demo/" in name or name.endswith((".onnx", "/ort.py", "/cli.py"))]


@pytest.mark.slow
def test_the_same_sources_give_the_same_wheel(web_wheel: Path, tmp_path: Path) -> None:
    assert make_web_wheel.main(tmp_path).read_bytes() == web_wheel.read_bytes()


def test_only_what_runs_in_a_browser_is_required_there() -> None:
    browser = [line for line in PYPROJECT["project"]["dependencies"] if "sys_platform != 'emscripten'" not in line]
    assert [line.partition(">")[0] for line in browser] == ["jsonschema", "jinja2"]


def test_the_recipe_has_this_version_and_drops_what_is_there_to_drop() -> None:
    recipe = (SOURCES.parent / "recipe" / "meta.yaml").read_text(encoding="utf-8")
    assert f"\n  version: {embedllm.__version__}\n" in recipe
    found = re.search(r"rm -rf (.*)", recipe)
    assert found is not None
    root = make_web_wheel.ROOT
    assert [name for name in found[1].split() if not (root / name).is_dir() and "node_modules" not in name] == []


# --- the folder and the modules


def test_a_folder_of_texts_is_read_without_its_weights(desktop: Model) -> None:
    package: Package = desktop.package
    assert package.graphs
    assert not package.weights.exists()
    with pytest.raises(PackageError, match="incomplete"):
        open_package(package.folder)


def test_the_modules_import_each_other_in_ways_that_can_be_rewritten() -> None:
    """No relative address finds anything from a text: none is left, in imports that are awaited neither."""
    texts, published = sources(), list[str]()
    made = addresses(texts, ENTRY, publish=lambda text: published.append(text) or f"address:{len(published)}")
    later = {"engine/webgpu_engine.js", "engine/wasm_engine.js", "engine/probe.js"}
    assert {"worker/load_model.js", "errors.js", "sampling/array_logits.js", *later} <= made.keys()
    for name, text in zip(made, published, strict=True):
        assert not re.search(r"""(?m)(await import\(|^(import|export)\b.* from )["']\.""", text), name
        # where Python's wheel is, which is here already; and what is beside it only if it is no blob
        assert name in {"libraries.js", "engine/ort_runtime.js"} or "import.meta" not in texts[name], name


def test_modules_in_a_circle_or_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'b.js' imports 'c.js', which is not there"):
        addresses({"a.js": 'import "./b.js";', "b.js": 'import "./c.js";'}, "a.js", publish=str)
    with pytest.raises(ValueError, match=r"'a.js' imports itself by way of a.js -> d/b.js"):
        addresses({"a.js": 'import "./d/b.js";', "d/b.js": 'export * from "../a.js";'}, "a.js", publish=str)


def test_a_folder_without_its_modules_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"has no 'worker/load_model.js': this installation lacks its JavaScript"):
        sources(tmp_path)
