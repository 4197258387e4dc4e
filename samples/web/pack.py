"""Packs a sample into a folder that any web server, or the browser as an extension, takes as it is.

    python samples/web/pack.py chat FOLDER
    python samples/web/pack.py summarise FOLDER        # the extension, with the demo model in it

Each sample has beside its own pages: `shared`, embedllm's modules, the libraries of others, the probe's model and the
demo model. Needs the npm packages (cd bindings_web && npm ci) and, for Python in the page, setuptools.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAMPLES = ("chat", "notebook", "summarise")
NEEDS_PYTHON = ("chat", "notebook")
_NOT_IN_AN_EXTENSION = ("ort.webgpu.min.mjs", "*.asyncify.*")  # for browsers older than its manifest asks for
# of the libraries, what is loaded: the rest are other builds, types and maps
_USED = {
    "libraries/onnxruntime": (
        "ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm",
        "ort.jspi.min.mjs", "ort-wasm-simd-threaded.jspi.*",
        "ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.*",
    ),
    "libraries/tokenizers": ("tokenizers.min.mjs",),
    "libraries/jinja": ("index.js",),
    "libraries/hashes": ("sha2.js", "_md.js", "_u64.js", "utils.js"),
    "libraries/pyodide": (
        "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json",
    ),
    "probe": ("*.json", "*.onnx", "*.safetensors"),
}  # fmt: skip


def roots(sample: str, *, model: Path, modules: Path, python: Path | None = None) -> dict[str, Path]:
    """What a sample is made of: the folder behind each path, "" for its own pages.

    model: the folder at models/demo. modules: node_modules. python: what make_python() wrote; None: without Python.
    """
    return {
        "": HERE / sample,
        "shared": HERE / "shared",
        "embedllm": ROOT / "bindings_web" / "src",
        "libraries/onnxruntime": modules / "onnxruntime-web" / "dist",
        "libraries/tokenizers": modules / "@huggingface" / "tokenizers" / "dist",
        "libraries/jinja": modules / "@huggingface" / "jinja" / "dist",
        "libraries/hashes": modules / "@noble" / "hashes",
        **({} if python is None else {"libraries/pyodide": modules / "pyodide", "libraries/python": python}),
        "probe": ROOT / "backends" / "probe" / "model",
        "models/demo": model,
    }


def make_python(folder: Path) -> Path:
    """Writes the wheels that Python in a page needs: embedllm's for browsers, and the template engine's."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, ROOT / "tools" / "make_web_wheel.py", work], check=True)
        (wheel,) = Path(work).glob("*.whl")
        shutil.copy(wheel, folder / "embedllm.whl")  # a page must know its name
    for name in ("jinja2", "markupsafe"):  # as they are installed here; markupsafe without what is compiled
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"'{name}' is not installed, and Python's chat templates need it: pip install {name}")
        with zipfile.ZipFile(folder / f"{name}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            for file in sorted(Path(spec.origin).parent.glob("*.py")):
                wheel.write(file, f"{name}/{file.name}")
    return folder


def demo() -> Path:
    """The folder of the demo model."""
    folder = ROOT / "embedllm" / "demo"
    if not (folder / "embedllm.json").is_file():
        raise SystemExit(f"'{folder}' holds no model; clone the repository whole, or name a folder with --model.")
    return folder


def node_modules() -> Path:
    """The npm packages of bindings_web."""
    folder = ROOT / "bindings_web" / "node_modules"
    if not (folder / "onnxruntime-web").is_dir():
        raise SystemExit("the npm packages are not here; install them with: cd bindings_web && npm ci")
    return folder


def pack(parts: Mapping[str, Path], target: Path) -> Path:
    """Copies the files of a sample, whole or not at all; gives `target`, which must be empty or not there."""
    is_extension = (parts[""] / "manifest.json").is_file()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SystemExit(f"'{target}' is there already; name a folder that is empty, or none.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as work:
        for prefix, folder in parts.items():
            for file in _files(prefix, folder):
                if is_extension and any(map(file.match, _NOT_IN_AN_EXTENSION)):
                    continue
                place = Path(work, prefix, file.relative_to(folder))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
        Path(work).chmod(0o755)
        if target.exists():
            target.rmdir()
        Path(work).rename(target)
        Path(work).mkdir()  # for TemporaryDirectory to remove
    return target


def _files(prefix: str, folder: Path) -> Iterator[Path]:
    if prefix == "models/demo":
        yield from _of_a_browser(folder)
    elif prefix in _USED:
        for pattern in _USED[prefix]:
            yield from sorted(folder.glob(pattern))
    else:
        yield from sorted(file for file in folder.rglob("*") if file.is_file())


def _of_a_browser(folder: Path) -> Iterator[Path]:
    """A model's files but for the graphs of the desktop."""
    of_the_desktop = {"openvino_model.xml", "openvino_model.latent.xml", "model.dml.onnx", "model.fp16.onnx"}
    yield from sorted(file for file in folder.iterdir() if file.is_file() and file.name not in of_the_desktop)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Packs a sample and all that it loads into a folder.")
    parser.add_argument("sample", choices=SAMPLES)
    parser.add_argument("folder", type=Path, help="empty, or not there yet")
    parser.add_argument("--model", type=Path, help="a folder that embedllm export wrote; default: the demo model")
    parser.add_argument("--no-python", action="store_true", help="without the engine 'python', 14 MB less")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        wants_python = options.sample in NEEDS_PYTHON and not options.no_python
        python = make_python(Path(work)) if wants_python else None
        parts = roots(options.sample, model=options.model or demo(), modules=node_modules(), python=python)
        sys.stdout.write(f"{pack(parts, options.folder.resolve())}\n")


if __name__ == "__main__":
    main()
