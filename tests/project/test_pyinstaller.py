"""An application that PyInstaller packs with embedllm has all that it needs."""

from __future__ import annotations

import runpy
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from embedllm.backends.devices.drivers import MODULES

ROOT = Path(__file__).parents[2]
# optional dependencies, which a development environment has: to look through them takes most of the time
OPTIONAL = (
    "IPython", "PIL", "PySide6", "hypothesis", "langchain_core", "llama_index", "llm", "matplotlib", "mcp", "numba",
    "onnxruntime_genai", "openvino", "openvino_genai", "openvino_tokenizers", "opentelemetry", "optimum", "pandas",
    "peft", "pyarrow", "pytest", "ray", "scipy", "torch", "torchvision", "transformers",
)  # fmt: skip
PROGRAM = """
import sys
import embedllm
from embedllm.backends.system.ort_builds import builds

assert embedllm.__file__.startswith(sys._MEIPASS), embedllm.__file__
with embedllm.load("demo", device="cpu") as llm:
    print(llm.chat([{"role": "user", "content": "list files by size"}], max_tokens=20).text)
print([build.name for build in builds()], any(device.available for device in embedllm.devices()))
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=600)


def test_pyinstaller_is_told_where_the_hook_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["entry-points"]["pyinstaller40"]["hook-dirs"].partition(":")
    (folder,) = getattr(import_module(module), function)()
    assert (Path(folder) / "hook-embedllm.py").is_file()


@pytest.mark.parametrize(("config", "has_demo"), [({}, True), ({"embedllm": {"demo": False}}, False)])
def test_the_demo_can_be_left_out(config: dict[str, dict[str, bool]], has_demo: bool) -> None:
    pytest.importorskip("PyInstaller")
    file = ROOT / "embedllm" / "integrations" / "pyinstaller" / "hook-embedllm.py"
    taken: list[tuple[str, str]] = []
    imported: list[str] = []
    asked = SimpleNamespace(
        analysis=SimpleNamespace(hooksconfig=config),
        add_datas=taken.extend,
        add_imports=lambda *modules: imported.extend(modules),
    )
    runpy.run_path(str(file))["hook"](asked)
    names = {f"{place}/{Path(source).name}" for source, place in taken}
    assert ("embedllm/demo/weights.safetensors" in names) == has_demo
    assert "embedllm/backends/probe/model/weights.safetensors" in names
    assert set(imported) == set(MODULES)
    assert not any(name.endswith((".py", ".js", ".ts")) for name in names)


@pytest.mark.slow
def test_a_packed_program_answers(tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller")
    (tmp_path / "program.py").write_text(PROGRAM)
    excluded = [f"--exclude-module={name}" for name in OPTIONAL]
    packed = run(
        sys.executable, "-m", "PyInstaller", "--log-level=WARN", f"--paths={ROOT}", "program.py", *excluded,
        f"--additional-hooks-dir={ROOT / 'embedllm' / 'integrations' / 'pyinstaller'}", cwd=tmp_path,
    )  # fmt: skip
    assert packed.returncode == 0, packed.stderr[-3000:]
    program = next((tmp_path / "dist" / "program").glob("program*"))
    ran = run(program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "ls" in ran.stdout
    assert "['onnxruntime'] True" in ran.stdout
