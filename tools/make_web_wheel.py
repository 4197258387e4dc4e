"""Writes the wheel for browsers: what runs in Pyodide, without the demo model, the exporter and the desktop's backends.

    python tools/make_web_wheel.py dist/web

It has the name and the version of the whole wheel, whose 28 MB a page would wait for. Needs no network where the
setuptools that pyproject.toml asks for is installed; else pip fetches it for the build.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
# what an application imports, and what that imports only when it is needed
ENTRIES = (
    "embedllm",
    "embedllm.web.public",
    "embedllm.web.preload",
    "embedllm.images.prompt",
    "embedllm.text.jinja_sandbox",
    "embedllm.package.architecture_json",
)
_SCRIPTS = "embedllm/web/src/"
_COPIED = ("pyproject.toml", "README.md", "LICENSE", "embedllm", "backends", "export", "bindings_web")
_SETUPTOOLS = 77  # as in pyproject.toml
_OFFLINE = ("--no-build-isolation", "--no-index")
_DATED = (1980, 1, 1, 0, 0, 0)  # the same sources give the same file


def main(out: Path) -> Path:
    """The wheel's path."""
    with tempfile.TemporaryDirectory() as work:
        whole = build(Path(work))
        with zipfile.ZipFile(whole) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
        kept = slim(contents)
        out.mkdir(parents=True, exist_ok=True)
        path = out / whole.name
        write(kept, path)
    return path


def build(work: Path) -> Path:
    """The whole wheel but for the demo, built of a copy: a build writes into its sources."""
    sources, wheels = work / "sources", work / "wheels"
    sources.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", "demo")
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, sources / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", *(_OFFLINE if has_setuptools() else ())]
    done = subprocess.run([*command, "-w", str(wheels), str(sources)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the wheel could not be built:\n{done.stdout}{done.stderr}")
    (wheel,) = wheels.iterdir()
    return wheel


def has_setuptools() -> bool:
    """Whether this environment can build by itself: a new one of Python 3.11 has an old setuptools, of 3.12 none."""
    try:
        return int(version("setuptools").partition(".")[0]) >= _SETUPTOOLS
    except PackageNotFoundError:
        return False


def slim(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Of a wheel's files those that a browser needs."""
    modules = {_module(name): name for name in contents if name.endswith(".py")}
    kept = {modules[module] for module in _reached(modules, contents)}
    kept |= {name for name in contents if name.startswith("embedllm/web/") and not name.startswith(_SCRIPTS)}
    kept |= {"embedllm/py.typed", *_scripts(contents)}
    kept |= {name for name in contents if ".dist-info/" in name and not name.endswith(("/RECORD", "/entry_points.txt"))}
    found = {name: contents[name] for name in sorted(kept)}
    about = next(name for name in found if name.endswith(".dist-info/METADATA"))
    found[about] = found[about].partition(b"\n\n")[0] + b"\n"  # the README behind the fields: no page shows it
    return found


def _scripts(contents: Mapping[str, bytes]) -> set[str]:
    """The JavaScript that Python asks for; what a page has besides is served with it."""
    from embedllm.web.modules import ENTRY, addresses  # of this checkout, which a script has to find first

    texts = {name.removeprefix(_SCRIPTS): data.decode() for name, data in contents.items() if name.startswith(_SCRIPTS)}
    return {_SCRIPTS + name for name in addresses(texts, ENTRY, publish=str)}


def write(contents: Mapping[str, bytes], path: Path) -> None:
    """A wheel of these files and of the list of their hashes."""
    about = next(name for name in contents if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")
    lines = [f"{name},sha256={_hash(data)},{len(data)}" for name, data in contents.items()]
    record = "\n".join([*lines, f"{about}RECORD,,", ""])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in [*contents.items(), (f"{about}RECORD", record.encode())]:
            entry = zipfile.ZipInfo(name, _DATED)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _reached(modules: Mapping[str, str], contents: Mapping[str, bytes]) -> set[str]:
    """What the entries import when they are loaded, and the packages that it lies in."""
    reached: set[str] = set()
    waiting = list(ENTRIES)
    while waiting:
        module = waiting.pop()
        if module in reached or module not in modules:
            continue
        reached.add(module)
        tree = ast.parse(contents[modules[module]])
        waiting += [module.rpartition(".")[0], *_imported(tree, is_lazy=module == "embedllm")]
    return reached


def _imported(node: ast.AST, *, is_lazy: bool) -> Iterator[str]:
    """The modules, and perhaps names in them, that are imported outside of functions.

    is_lazy: TYPE_CHECKING has what __getattr__ imports; elsewhere it is left aside.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not is_lazy:
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imported(child, is_lazy=is_lazy)


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    made = main(parser.parse_args().folder)
    sys.stderr.write(f"{made}: {made.stat().st_size / 1e3:.0f} kB\n")
