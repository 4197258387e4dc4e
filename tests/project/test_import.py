"""What an import loads, and which third-party packages are used where.

Which package of ours may import which is a contract in pyproject.toml, which lint-imports checks (.ci/run).
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import embedllm

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]  # import name -> folder

# Third-party packages, and the only packages or modules that may import them.
HOMES = {
    "PIL": ("embedllm.images.",),
    "anyio": ("embedllm.integrations.mcp.",),
    "click": ("embedllm.cli.", "embedllm.integrations.llm_plugin"),
    "filelock": ("embedllm.loading.", "embedllm.export.writing.atomic_folder"),
    "gguf": ("embedllm.export.gguf.",),  # read by few files; its error says how to install it
    "google": ("embedllm.profiling.inspection.",),  # protobuf, whose errors onnx raises
    "httpx2": ("embedllm.integrations.mcp.",),
    "huggingface_hub": ("embedllm.hub.", "embedllm.loading.hub_cache"),
    "jinja2": ("embedllm.text.jinja_sandbox", "embedllm.web.preload"),
    "js": ("embedllm.backends.browser.",),  # this and "pyodide" are there in Pyodide only
    "h11": ("embedllm.server.run",),  # uvicorn brings it
    "jsonschema": ("embedllm.tools.arguments", "embedllm.openai.schema"),
    "langchain_core": ("embedllm.integrations.langchain",),
    "llama_index": ("embedllm.integrations.llama_index",),
    "llm": ("embedllm.integrations.llm_plugin",),
    "llguidance": ("embedllm.sampling.structured.llguidance",),
    "mcp": ("embedllm.integrations.mcp.",),
    "mcp_types": ("embedllm.integrations.mcp.",),
    "matplotlib": ("embedllm.profiling.bench.plot", "embedllm.evaluation.plot", "embedllm.files.image"),
    "numpy": (
        "embedllm.backends.",
        "embedllm.profiling.bench.",
        "embedllm.evaluation.",
        "embedllm.export.",
        # of the packages that load without it
        "embedllm.package.lora.peft",
        "embedllm.files.float_types",
        "embedllm.kv_cache.kv_file",
        "embedllm.package.hadamard",
        "embedllm.package.packing",
        "embedllm.package.position_bias",
        "embedllm.package.rope",
        "embedllm.integrations.ray.batch_inference",
        "embedllm.sampling.numpy_logits",
        "embedllm.images.",
    ),
    "onnx": ("embedllm.backends.", "embedllm.export.", "embedllm.profiling.inspection."),
    "onnxruntime": ("embedllm.backends.ort.runtime",),
    "onnxruntime_genai": ("embedllm.backends.genai.",),
    "opentelemetry": ("embedllm.server.tracing",),
    "openvino": ("embedllm.backends.openvino.runtime", "embedllm.export.openvino.tokenizer"),
    "openvino_tokenizers": ("embedllm.export.openvino.tokenizer",),
    "platformdirs": ("embedllm.cli.", "embedllm.files.user_cache"),
    "prometheus_client": ("embedllm.server.metrics",),
    "psutil": ("embedllm.files.", "embedllm.integrations.mcp.stdio", "embedllm.profiling.bench."),
    "PyInstaller": ("embedllm.integrations.pyinstaller.",),  # runs the hook; no dependency
    # a dependency of their libraries; and who gives a class of its has it
    "pydantic": ("embedllm.integrations.", "embedllm.sampling.structured.response_format"),
    "pyodide": ("embedllm.backends.browser.",),
    "referencing": ("embedllm.tools.arguments",),
    "rich": ("embedllm.cli.",),
    "ray": ("embedllm.integrations.ray.serve_app",),
    "starlette": ("embedllm.server.", "embedllm.integrations.ray."),
    "tokenizers": ("embedllm.text.tokenizer",),
    "transformers": ("embedllm.export.openvino.tokenizer",),
    "uvicorn": ("embedllm.server.run",),
}


@dataclass(frozen=True)
class Import:
    """An import statement; TYPE_CHECKING aside, but for embedllm's: those names are imported when they are used."""

    of: str  # the module that imports
    name: str  # the module that is imported
    at_once: bool  # when the module is loaded, not in a function


KEPT = ("PATH", "PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH")  # of the environment, in fresh processes


def environment(home: Path) -> dict[str, str]:
    """Of a process that knows nothing of this one's settings."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    return {**kept, "HOME": str(home), "USERPROFILE": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


def run_fresh(code: str, *arguments: object, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=home, env=environment(home))


# --- in a fresh process

IMPORT = """
import sys
before = set(sys.modules)
import embedllm
print(*sorted(set(sys.modules) - before))
for name in embedllm.__all__:
    getattr(embedllm, name)
print(*sorted(set(sys.modules) - before))
"""


def test_importing_embedllm_loads_the_standard_library_only(tmp_path: Path) -> None:
    first, used = run_fresh(IMPORT, home=tmp_path).stdout.splitlines()
    assert {name for name in first.split() if name.startswith("embedllm")} == {
        "embedllm",
        "embedllm.errors",
        "embedllm.files",
        "embedllm.files.version",
    }
    modules = used.split()
    roots = {module.partition(".")[0] for module in modules}
    assert "embedllm.model.model" in modules
    assert "embedllm.export" not in modules
    assert roots - sys.stdlib_module_names == {"embedllm"}
    assert not roots & {"asyncio", "concurrent", "ctypes", "unittest"}  # heavy, and not needed yet


GENERATE = """
import sys
import embedllm

with embedllm.load(sys.argv[1]) as model:
    model.generate("hello", max_tokens=3)
    if "jinja2" in sys.modules:
        raise SystemExit("a plain prompt needs no template")
    model.chat([{"role": "user", "content": "hello"}], max_tokens=3)
if "embedllm.images.sources" in sys.modules:
    raise SystemExit("a prompt without images needs no reader of them")
found = {module.partition(".")[0] for module in sys.modules}
if found & set(sys.argv[2:]):
    raise SystemExit(f"loaded {found & set(sys.argv[2:])}")
"""


def test_generating_loads_no_exporter_prints_nothing_and_writes_nothing(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    unwanted = ("onnx", "torch", "transformers", "huggingface_hub", "safetensors", "google", "click", "rich", "asyncio")
    done = run_fresh(GENERATE, tiny_package("llama"), *unwanted, home=tmp_path)
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.rglob("*")) == []


def test_openvino_writes_nothing_and_reports_nothing(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    code = """
import sys, embedllm
with embedllm.load(sys.argv[1], device="openvino") as model:
    model.generate("hello", max_tokens=3)
print(*[name for name in sys.modules if "openvino_telemetry" in name])
"""
    done = run_fresh(code, tiny_package("llama"), home=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert list(tmp_path.rglob("*")) == []


# --- the public names


def test_the_public_names_are_listed_in_order_and_there() -> None:
    assert embedllm.__all__ == sorted(embedllm.__all__)
    submodules = {name.split(".")[1] for name in sys.modules if name.startswith("embedllm.")}
    visible = {name for name in dir(embedllm) if not name.startswith("_")} - submodules
    assert visible - {"annotations", "TYPE_CHECKING"} == set(embedllm.__all__)
    lazy = {name.asname or name.name: str(node.module)
            for node in ast.walk(ast.parse(Path(embedllm.__file__).read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.col_offset for name in node.names}  # fmt: skip
    assert lazy == embedllm._MODULES  # what type checkers see
    with pytest.raises(AttributeError, match="module 'embedllm' has no attribute 'lod'"):
        _ = embedllm.lod  # type: ignore[attr-defined]  # what a typo gives


def test_each_public_name_says_what_it_is() -> None:
    assert [name for name in embedllm.__all__ if not getattr(embedllm, name).__doc__] == []


def test_the_version_is_that_of_the_distribution() -> None:
    module, _, name = PYPROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"].rpartition(".")
    literals = ast.parse(sources()[module].read_text(encoding="utf-8"))  # as setuptools reads it, and a release's check
    (version,) = (node.value for node in literals.body if isinstance(node, ast.Assign))
    assert (name, embedllm.__version__) == ("__version__", ast.literal_eval(version))


# --- the sources

_STATEMENTS = ast.stmt | ast.excepthandler | ast.match_case


@cache
def sources() -> dict[str, Path]:
    """Every module by its import name."""
    found: dict[str, Path] = {}
    for package, folder in FOLDERS.items():
        for at, folders, files in os.walk(ROOT / folder):  # does not follow the links from embedllm/ to the others
            folders[:] = [name for name in folders if name != "node_modules"]
            for file in files:
                path = Path(at, file)
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                if path.suffix == ".py":
                    found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def no_tree_outlives_the_module() -> Iterator[None]:
    """A million objects, which each later garbage collection of the process would go through: half a second."""
    yield
    tree_of.cache_clear()


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Its children without expressions, which hold no import."""
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, _STATEMENTS))


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for module, path in sources().items() for found in imports_of(module, path))


def imports_of(module: str, path: Path) -> Iterator[Import]:
    def visit(node: ast.AST, *, at_once: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and module != "embedllm":
            return
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, at_once) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (Import(module, name if name in sources() else str(node.module), at_once) for name in names)
        inner = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "emscripten" in ast.unparse(node.test):  # in a browser only
            yield from (found for child in node.body for found in visit(child, at_once=False))
            yield from (found for child in node.orelse for found in visit(child, at_once=inner))
            return
        for child in statements_in(node):
            yield from visit(child, at_once=inner)

    return visit(tree_of(path), at_once=True)


def is_within(module: str, places: tuple[str, ...]) -> bool:
    """A place with a dot at its end is all that lies below; others are a beginning of the name."""
    return module.startswith(places)


def test_the_packages_of_pyproject_are_the_folders_with_code() -> None:
    packages = [name for name, path in sources().items() if path.name == "__init__.py"]
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(packages)
    for name in FOLDERS:
        link = ROOT / name.replace(".", "/")  # embedllm/backends -> ../backends, for editors and type checkers
        assert link.resolve() == ROOT / FOLDERS[name]


def test_the_folder_of_embedllm_can_be_read_at_a_glance() -> None:
    def is_left_over(path: Path) -> bool:
        """Whether only what Python compiled is left of a folder that was moved."""
        return path.is_dir() and not any(file for file in path.rglob("*") if file.suffix not in ("", ".pyc"))

    entries = {path.name for path in (ROOT / "embedllm").iterdir() if not is_left_over(path)}
    assert len(entries) <= 27, f"put it into a package: {sorted(entries)}"


@pytest.mark.parametrize("package", HOMES)
def test_each_third_party_package_has_its_homes(package: str) -> None:
    users = {found.of for found in imports() if found.name.partition(".")[0] == package}
    assert users
    assert {module for module in users if not is_within(module, HOMES[package])} == set()


def test_no_other_third_party_package_is_imported() -> None:
    roots = {found.name.partition(".")[0] for found in imports()}
    assert roots - sys.stdlib_module_names == {"embedllm", *HOMES}


def test_no_private_name_is_imported_from_another_module() -> None:
    def nodes(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        for child in statements_in(node):
            yield from nodes(child)

    found = {
        (module, f"{node.module}.{alias.name}")
        for module, path in sources().items()
        for node in nodes(tree_of(path))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "embedllm"
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.endswith("__")
    }
    assert {(module, name) for module, name in found if name not in sources()} == set()  # modules may be called so


def test_what_embedllm_loads_at_once_has_no_third_party_package() -> None:
    reached, waiting = set(), ["embedllm"]
    while waiting:
        module = waiting.pop()
        reached.add(module)
        for found in imports():
            if found.of == module and found.at_once:
                assert found.name.partition(".")[0] not in HOMES, found
                waiting += {found.name} & (sources().keys() - reached)
    assert {
        "embedllm.generation.generation",
        "embedllm.text.tokenizer",
        "embedllm.text.chat_template",
        "embedllm.backends.base",
    } <= reached


def test_only_what_runs_the_model_brings_a_backend_into_the_exporter() -> None:
    users = {
        found.of
        for found in imports()
        if found.of.startswith("embedllm.export")
        and found.name.startswith("embedllm.backends")
        and found.name != "embedllm.backends.system.cpu_threads"  # counts cores; no backend
    }
    running = ("embedllm.export.quantization.", "embedllm.export.optimum.", "embedllm.export.verify")
    assert {module for module in users if not is_within(module, running)} == set()
