"""Which names stand for a device, what is imported for it, and what a missing OpenVINO says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import embedllm
from embedllm.backends.base import Device
from embedllm.backends.devices import drivers, registry
from embedllm.backends.ort import engine as ort
from embedllm.errors import DeviceUnavailable
from embedllm.export.recipe import Recipe
from embedllm.export.writing.plan import plan
from embedllm.package.architecture_json import to_json
from embedllm.package.package import Package, open_package
from tests.support.mixtures import mixture

MakePackage = Callable[..., Path]
PIP = "pip install openvino, which is the extra embedllm[openvino]"


@pytest.fixture(scope="module")
def package(tiny_package: MakePackage) -> Package:
    return open_package(tiny_package())


def found(package: Package, *wishes: str) -> dict[str, Device]:
    return {device.name: device for device in registry.devices_for(package, wishes)}


def python(code: str, *arguments: str) -> str:
    """What a fresh process prints, whose OpenVINO has not been looked for."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["openvino:AUTO", "openvino:HETERO:GPU,CPU", "openvino:CPU"])
def test_a_target_in_openvinos_words_is_a_device(name: str, package: Package) -> None:
    device = found(package, name)[name]
    assert device.available
    assert device.description == f"OpenVINO's {name.removeprefix('openvino:')}"
    assert device.backend.startswith("openvino 20")
    assert name not in found(package)


def test_a_pair_is_available_when_both_are(package: Package) -> None:
    pair = found(package, "openvino+cpu")["openvino+cpu"]
    assert (pair.available, pair.reason) == (True, "")
    assert " + onnxruntime " in pair.backend
    assert found(package, "cpu+openvino:AUTO")["cpu+openvino:AUTO"].available


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tpu+cpu", "'tpu': not found"),
        ("tpu+xpu", "'tpu': not found; 'xpu': not found"),
        ("npu-on-cpu+cpu", "'npu-on-cpu': its KV can be neither taken out nor put in"),
    ],
)
def test_a_pair_says_which_half_lacks_what(name: str, reason: str, package: Package) -> None:
    pair = found(package, name)[name]
    assert (pair.available, pair.reason) == (False, reason)


@pytest.mark.parametrize("name", ["tpu", "openvino-tpu", "cpu+openvino+cpu", "openvin"])
def test_an_unknown_name_is_refused(name: str, package: Package) -> None:
    with pytest.raises(DeviceUnavailable, match=r"not found by .*onnxruntime"):
        embedllm.load(package.folder, device=name)


def test_a_graph_that_cannot_be_says_why(tiny_package: Callable[..., Path]) -> None:
    """DirectML's attention has no window: no export has that graph, and no command can add it."""
    package = open_package(tiny_package("mistral", sliding_window=16))
    directml = Device(name="directml", backend="onnxruntime", description="", available=True)
    with pytest.raises(
        DeviceUnavailable, match="no 'directml-float16' graph of 'package': a layer has a sliding window"
    ):
        registry.open_engine(package, directml)


def test_a_folder_without_the_graph_says_what_it_has(package: Package) -> None:
    graphs = [graph for graph in package.manifest["graphs"] if graph["variant"] != "openvino"]  # type: ignore[attr-defined]
    older = Package(package.folder, {**package.manifest, "graphs": graphs})
    has = ", ".join(f"'{graph.variant}'" for graph in older.graphs)
    lack = f"'package' has no 'openvino' graph (it has {has})"
    devices = found(older, "openvino", "openvino+cpu", "openvino:AUTO")
    for name in ("openvino", "npu-on-cpu", "openvino:AUTO"):
        remedy = f"embedllm graph {package.folder} --variant openvino"
        assert (devices[name].reason, devices[name].remedy) == (lack, remedy)
    assert devices["openvino+cpu"].reason == f"'openvino': {lack}"
    assert devices["cpu"].available
    with pytest.raises(DeviceUnavailable, match="'openvino' cannot run this model: 'package' has no 'openvino' graph"):
        registry.open_engine(older, found(package, "openvino")["openvino"])


def test_a_folder_without_the_graphs_for_webgpu_says_which_command_adds_the_best(package: Package) -> None:
    graphs = [graph for graph in package.manifest["graphs"] if graph["variant"] == "generic-float16"]  # type: ignore[attr-defined]
    older = Package(package.folder, {**package.manifest, "graphs": graphs})
    webgpu = Device(name="webgpu", backend="onnxruntime", description="", available=True)
    with pytest.raises(DeviceUnavailable) as caught:
        registry.open_engine(older, webgpu)
    ((_, reason, remedy),) = caught.value.tried
    assert reason == "'package' has no 'webgpu-float16' or 'gpu-float32' graph (it has 'generic-float16')"
    assert remedy == f"embedllm graph {package.folder} --variant webgpu-float16"


@pytest.mark.parametrize(("device", "variant"), [("cpu", "generic-float32"), ("cuda", "generic-float16")])
def test_a_mixture_whose_experts_are_floats_is_told_of_no_graph_for_integers(
    device: str, variant: str, tmp_path: Path
) -> None:
    decoder = mixture()
    planned = plan(decoder, Recipe(bits=16))
    quantization = {name: packing.entry for name, packing in planned.packing.items()}
    manifest = {"graphs": [], "quantization": quantization, "architecture": to_json(decoder), "files": {},
                "tokens": {"stop": [0]}, "context": 64}  # fmt: skip
    lacking = Package(tmp_path, {"name": "package", **manifest})
    with pytest.raises(DeviceUnavailable) as caught:
        registry.open_engine(lacking, Device(name=device, backend="onnxruntime", description="", available=True))
    ((_, reason, remedy),) = caught.value.tried
    assert reason == f"'package' has no '{variant}' graph (it has none)"
    assert remedy == f"embedllm graph {tmp_path} --variant {variant}"


def test_exactness_of_onnx_runtimes_graphs_is_asked_of_pairs_too(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = found(package, "openvino+cpu", "cpu+openvino", "openvino+openvino:AUTO")
    cpu, asked = drivers.find_family("cpu"), list[Package]()
    assert cpu is not None
    monkeypatch.setitem(drivers._FAMILIES, "cpu", replace(cpu, check_exact=asked.append))
    rounding: set[str] = set()
    for name, device in devices.items():
        asked.clear()
        registry.check_exact(package, device)
        rounding |= {name} if asked else set()
    assert {"cpu", "openvino+cpu", "cpu+openvino"} <= rounding
    assert not {"openvino", "reference", "npu-on-cpu", "openvino+openvino:AUTO"} & rounding


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("1.24.4", True), ("1.30.9", True), ("1.31.0", False), ("1.31.1", False), ("1.100.0.dev2", False), ("2.0", False)],
)
def test_an_old_runtime_is_refused_what_it_would_ignore_and_told_of(
    version: str, is_old: bool, package: Package, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The DirectML build's CPU: 1.24.4 takes the option for exactness and rounds all the same."""
    monkeypatch.setattr(ort, "unsupported_exact", partial(ort.unsupported_exact, version=version))
    monkeypatch.setattr(ort, "warn_of_age", partial(ort.warn_of_age, version=version))
    with embedllm.load(package.folder, device="cpu"):
        assert (f"ONNX Runtime {version} is older than 1.31" in caplog.text) == is_old
    if not is_old:
        embedllm.load(package.folder, device="cpu", exact=True).close()
        return
    with pytest.raises(
        DeviceUnavailable, match=rf"ONNX Runtime {re.escape(version)} rounds activations .*without exact"
    ):
        embedllm.load(package.folder, device="cpu", exact=True)


# --- what is imported, in processes of their own


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_openvino_is_not_loaded_for_others(device: str, package: Package) -> None:
    code = (
        "import sys, embedllm\n"
        "embedllm.load(sys.argv[1], device=sys.argv[2]).generate('a', max_tokens=1)\n"
        "print('openvino' in sys.modules)"
    )
    assert python(code, str(package.folder), device) == "False"
    assert python(code, str(package.folder), "openvino") == "True"


def test_without_openvino_its_devices_say_what_to_install(package: Package) -> None:
    code = (
        "import sys; sys.modules['openvino'] = None\n"
        "import embedllm\n"
        "for one in embedllm.devices(): print(one.name, one.available, one.reason, one.remedy, sep='|')\n"
        "for name in ('openvino', 'npu', 'openvino:AUTO', 'cpu+openvino'):\n"
        "    try: embedllm.load(sys.argv[1], device=name)\n"
        "    except embedllm.DeviceUnavailable as error: print(error)\n"
        "print(embedllm.load(sys.argv[1]).device.name)\n"
    )
    lines = python(code, str(package.folder)).splitlines()
    listed = {line.split("|")[0]: line.split("|")[1:] for line in lines if "|" in line}
    for name in ("openvino", "openvino-gpu", "npu", "npu-on-cpu"):
        available, reason, remedy = listed[name]
        assert (available, remedy) == ("False", PIP)
        assert reason.startswith("OpenVINO cannot be imported (")
    assert listed["cpu"][0] == "True"
    *refusals, last = lines[len(listed) :]
    assert len(refusals) == 4
    assert all(PIP in refusal and "cannot be imported" in refusal for refusal in refusals)
    assert last == "cpu"  # what "auto" takes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("openvino:", "OpenVINO has no ''"),
        ("openvino:nope", "OpenVINO has no 'nope'"),
        ("openvino:NPU", "it has no dynamic shapes (use the device 'npu')"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_it_is_loaded(name: str, reason: str, package: Package) -> None:
    with pytest.raises(DeviceUnavailable, match=re.escape(f"'{name}': {reason}")):
        embedllm.load(package.folder, device=name)


def test_what_is_left_of_onnxruntime_is_said_to_be_damaged(package: Package, tmp_path: Path) -> None:
    """pip leaves the folder when one build is removed that another one was installed over."""
    (tmp_path / "onnxruntime" / "capi").mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    code = (
        "import sys, embedllm\n"
        "try: embedllm.load(sys.argv[1], device='cpu')\n"
        "except embedllm.DeviceUnavailable as error: print(error)\n"
        "print(embedllm.load(sys.argv[1], device='reference').device.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(package.folder)], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    refusal, name = done.stdout.splitlines()
    assert "is not whole; install it again" in refusal
    assert name == "reference"
