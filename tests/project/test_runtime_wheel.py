"""The wheel of embedllm-runtime: it loads and generates with its own dependencies only, and says what it lacks."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import embedllm
from tests.project.test_import import environment
from tools import make_runtime_wheel

pytestmark = pytest.mark.slow

# a process with this wheel, and of what is installed here its dependencies only
BLOCK = f"""
import sys
sys.path.insert(0, sys.argv[1])

class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {[*make_runtime_wheel.DROPPED, "huggingface_hub", "google", "ml_dtypes"]}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Blocked())
import embedllm
assert embedllm.__file__.startswith(sys.argv[1]), embedllm.__file__
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runtime_wheel.main(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, code: str, home: Path) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCK + code, installed], capture_output=True, text=True, check=False,
                          cwd=home, env={**environment(home), "EMBEDLLM_TUNED": "off"})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_is_a_distribution_of_its_own_with_fewer_dependencies(wheel: Path, installed: Path) -> None:
    assert wheel.name == f"embedllm_runtime-{embedllm.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 1_500_000
    (about,) = installed.glob("*.dist-info")
    metadata = email.message_from_string((about / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Name"] == "embedllm-runtime"
    required = [
        line.split(";")[0].split(">")[0] for line in metadata.get_all("Requires-Dist", []) if "extra" not in line
    ]
    assert sorted(required) == ["jinja2", "jsonschema", "llguidance", "numpy", "onnxruntime", "platformdirs", "psutil",
                                "tokenizers"]  # fmt: skip
    assert sorted(metadata.get_all("Provides-Extra", [])) == sorted(make_runtime_wheel.EXTRAS)
    assert (about / "licenses" / "LICENSE").is_file()
    points = (about / "entry_points.txt").read_text(encoding="utf-8")
    assert ("[pyinstaller40]" in points, "console_scripts" in points) == (True, False)
    assert not (installed / "embedllm" / "demo").exists()


def test_it_loads_generates_and_follows_a_schema(
    installed: Path, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    code = f"""
schema = {{"type": "object", "properties": {{"safe": {{"type": "boolean"}}}}, "required": ["safe"]}}
wanted = {{"type": "json_schema", "json_schema": {{"name": "answer", "schema": schema}}}}
with embedllm.load({str(tiny_package("llama"))!r}, adapters=None) as model:
    model.chat([{{"role": "user", "content": "hello"}}], max_tokens=3)
    print(model.generate("hello", response_format=["yes"]).text)
    with model.conversation() as talk:
        print(talk.say("hello", max_tokens=60, response_format=wanted).text[:8])
print(len(embedllm.devices()) > 0)
"""
    assert run(installed, code, tmp_path).splitlines() == ["yes", '{"safe":', "True"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from embedllm.export import convert", "'embedllm.export' is not part of embedllm-runtime"),
        ("import embedllm.cli.main", "'embedllm.cli' is not part of embedllm-runtime"),
        ("embedllm.load('model.gguf')", "pip uninstall embedllm-runtime, then pip install embedllm"),
        ("embedllm.load('demo')", "the demo model is not part of this installation"),
        ("embedllm.load('org/name')", "pip install"),
        ("embedllm.load(PACKAGE, device='cpu', adapters={})", "pip install onnx"),
    ],
)
def test_what_is_missing_is_named_with_what_to_install(
    installed: Path, tiny_package: Callable[..., Path], tmp_path: Path, code: str, expected: str
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    found = run(installed, f"""
PACKAGE = {str(tiny_package("llama"))!r}
try:
    {code}
except embedllm.EmbedError as error:
    print(error)
""", tmp_path)  # fmt: skip
    assert expected in found
