"""The table of providers, two builds of ONNX Runtime at once, the hardware, and providers that are plugged in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

import embedllm
from embedllm.backends.base import Device
from embedllm.backends.devices import drivers, registry
from embedllm.backends.devices.support import package_unsupported
from embedllm.backends.driver import UNTESTED
from embedllm.backends.gpu.driver import CUDA, WEBGPU
from embedllm.backends.gpu.driver import DIRECTML as DIRECTML_ROW
from embedllm.backends.ort.default_inputs import without_defaults
from embedllm.backends.ort.driver import CPU as CPU_ROW
from embedllm.backends.ort.host_driver import PROVIDERS as HOST_PROVIDERS
from embedllm.backends.ort.providers import PLUGIN, Provider
from embedllm.backends.ort.runtime import first_line
from embedllm.backends.probe import probe
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.system import hardware, ort_builds
from embedllm.backends.system.ort_builds import Build, conflict
from embedllm.errors import DeviceUnavailable
from embedllm.export import Recipe
from embedllm.package.graph_variants import IMAGES_VARIANTS, VARIANTS
from embedllm.package.package import open_package
from embedllm.sampling.options import Sampling

GUIDE = (Path(__file__).parents[3] / "docs" / "devices.md").read_text(encoding="utf-8")
PROVIDERS = [CPU_ROW, CUDA, WEBGPU, DIRECTML_ROW, *HOST_PROVIDERS]
ROWS = [*PROVIDERS, PLUGIN]


def named(provider: Provider) -> str:
    return provider.device


# --- the table


def test_each_device_and_provider_has_one_row() -> None:
    for names in ([row.device for row in ROWS], [row.name for row in ROWS]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("recipe", "is_taken"),
    [
        (Recipe(symmetric=False), False),
        (Recipe(symmetric=False, group_size=16), True),
        (Recipe(symmetric=False, bits=8), True),
        (Recipe(), True),
    ],
)
def test_cuda_is_not_given_an_odd_number_of_zero_points_a_row(
    recipe: Recipe, is_taken: bool, tiny_package: Callable[..., Path]
) -> None:
    """Measured on an H200, ONNX Runtime 1.31: logits were off by 5 times their spread (docs/cuda.md)."""
    package = open_package(tiny_package("llama", recipe, hidden_size=96))  # 3 groups of 32
    cuda, cpu = drivers.find_family("cuda"), drivers.find_family("cpu")
    assert cuda is not None
    assert cpu is not None
    assert package_unsupported(package, cpu, kv=None) is None
    lack = package_unsupported(package, cuda, kv=None)
    assert (lack is None) == is_taken
    assert is_taken or (lack is not None and "has rows of 3 zero points of 4 bits, an odd number" in lack[0])


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_each_row_can_be_used(row: Provider) -> None:
    assert set(row.variants) <= {variant.name for variant in (*VARIANTS, *IMAGES_VARIANTS)}
    assert set(row.exact) <= set(row.variants)
    assert row.hardware in ("CPU", "GPU", "NPU")
    assert row.platforms <= {"linux", "win32", "darwin"}
    assert "MatMulNBits" in row.runs
    family = drivers.find_family(row.device)
    assert family is not None
    assert family.capabilities.variants == row.variants
    assert row.device == PLUGIN.device or f"`{row.device}`" in GUIDE
    assert row.install in GUIDE or row in (PROVIDERS[0], PLUGIN)


@pytest.mark.parametrize("row", [row for row in ROWS if row.tested.startswith(UNTESTED)], ids=named)
def test_the_guide_says_what_is_untested(row: Provider) -> None:
    (line,) = (line for line in GUIDE.splitlines() if line.startswith(f"| `{row.device}`"))
    assert "untested" in line


# --- two builds of ONNX Runtime

CPU, GPU, OLDER = Build("onnxruntime", "1.31.1"), Build("onnxruntime-gpu", "1.31.1"), Build("onnxruntime-gpu", "1.27.0")
DIRECTML = Build("onnxruntime-directml", "1.24.4")
WITH_CUDA = 'pip install "onnxruntime-gpu[cuda,cudnn]"'


@pytest.mark.parametrize(
    "installed",
    [[], [CPU], [GPU], [Build("onnxruntime-qnn", "2.7.0"), CPU], [Build("onnxruntime-qnn", "2.7.0")],
     [Build("onnxruntime-qnn", "1.22.0")]],
)  # fmt: skip
def test_one_build_is_no_conflict(installed: Sequence[Build]) -> None:
    assert conflict(installed) is None


@pytest.mark.parametrize(
    ("installed", "reason", "remedy"),
    [
        ([GPU, CPU], "onnxruntime-gpu 1.31.1 and onnxruntime 1.31.1 are installed",
         f"pip uninstall -y onnxruntime-gpu onnxruntime, then one of them again: {WITH_CUDA}"),
        ([OLDER, CPU], "onnxruntime-gpu 1.27.0 and onnxruntime 1.31.1 are", WITH_CUDA),
        ([DIRECTML, CPU], "onnxruntime-directml 1.24.4 and onnxruntime 1.31.1 are",
         "pip uninstall -y onnxruntime-directml onnxruntime, then one of them again: pip install onnxruntime-directml"),
        ([GPU, DIRECTML, CPU], "onnxruntime-gpu 1.31.1 and onnxruntime-directml 1.24.4 and onnxruntime 1.31.1 are",
         "pip uninstall -y onnxruntime-gpu onnxruntime-directml onnxruntime, then"),
        ([Build("onnxruntime-openvino", "1.24.1"), CPU], "onnxruntime-openvino 1.24.1 and", "pip install"),
        ([Build("onnxruntime-qnn", "1.22.0"), CPU], "onnxruntime-qnn 1.22.0 and onnxruntime 1.31.1", "pip install"),
    ],
)  # fmt: skip
def test_two_builds_are_named_with_what_to_do(installed: Sequence[Build], reason: str, remedy: str) -> None:
    found = conflict(installed)
    assert found is not None
    assert found[0].startswith(reason)
    assert remedy in found[1]


def test_two_builds_in_one_environment_are_refused_before_either_is_imported(
    tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    """A real environment: two distributions on sys.path, and a package that says when it is imported."""
    for build in (GPU, CPU):
        folder = tmp_path / f"{build.name.replace('-', '_')}-{build.version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {build.name}\nVersion: {build.version}\n")
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise SystemExit('onnxruntime was imported')")
    code = (
        "import sys, embedllm\n"
        "for name in ('auto', 'cpu', 'cuda'):\n"
        "    try: embedllm.load(sys.argv[1], device=name)\n"
        "    except embedllm.DeviceUnavailable as error: print(tuple(error.tried[-1]))\n"
        "print({one.name for one in embedllm.devices() if one.available and one.backend.startswith('onnx')})\n"
        "print(embedllm.load(sys.argv[1], device='reference').device.name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, str(tiny_package())], capture_output=True, text=True,
                          env=environment, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    *refusals, available, last = done.stdout.splitlines()
    assert [refusal.partition(",")[0] for refusal in refusals] == ["('cpu'", "('cpu'", "('cuda'"]
    for refusal in refusals:
        assert "onnxruntime-gpu 1.31.1 and onnxruntime 1.31.1 are installed and overwrite each other" in refusal
        assert "pip uninstall -y onnxruntime-gpu onnxruntime" in refusal
    assert (available, last) == ("set()", "reference")


def test_a_build_that_another_one_hides_is_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own nothing is overwritten: the first on the path is what runs."""
    for build, place in ((GPU, "first"), (CPU, "second")):
        (tmp_path / place / f"{build.name.replace('-', '_')}-{build.version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "first"), str(tmp_path / "second")])
    assert ort_builds.builds.__wrapped__() == [GPU]


@pytest.mark.parametrize(
    "name",
    ["onnxruntime-windowsml", "onnxruntime-training", "onnxruntime-cann", "ort-nightly-gpu", "ort-nightly-directml"],
)
def test_rarer_builds_are_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for build in (name, "onnxruntime"):
        (tmp_path / f"{build.replace('-', '_')}-1.31.1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = ort_builds.builds.__wrapped__()
    assert [build.name for build in found] == [name, "onnxruntime"]
    assert conflict(found) is not None


def test_the_builds_of_this_environment_are_found() -> None:
    assert [build.name for build in ort_builds.builds()] != []
    assert conflict(ort_builds.builds()) is None


# --- hardware


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes up what Linux tells: system(drm=[vendor, ...], pci=[(vendor, class), ...])."""
    monkeypatch.setattr(hardware, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")

    def make(drm: Sequence[str] = (), pci: Sequence[tuple[str, str]] = (), *, sysfs: bool = True) -> None:
        if sysfs:
            (tmp_path / "sys/class").mkdir(parents=True)
        for index, vendor in enumerate(drm):
            folder = tmp_path / f"sys/class/drm/card{index}/device"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
        for index, (vendor, kind) in enumerate(pci):
            folder = tmp_path / f"sys/bus/pci/devices/0000:0{index}:00.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "class").write_text(f"{kind}\n")

    return make


@pytest.mark.parametrize(
    ("drm", "pci", "vendors"),
    [
        ([], [], set()),
        (["0x8086"], [], {0x8086}),
        (["0x10de"], [], {0x10DE}),
        (["0x10de", "0x8086"], [], {0x10DE, 0x8086}),
        ([], [("0x8086", "0x030000")], {0x8086}),
        ([], [("0x8086", "0x038000"), ("0x10de", "0x030200")], {0x8086, 0x10DE}),
        ([], [("0x8086", "0x060000"), ("0x8086", "0x020000")], set()),  # a bridge and a network card
        (["nonsense"], [], set()),
    ],
)
def test_vendors_of_graphics_cards(
    drm: list[str], pci: list[tuple[str, str]], vendors: set[int], system: Callable[..., None]
) -> None:
    system(drm, pci)
    assert hardware.gpu_vendors() == vendors


def test_where_linux_does_not_tell_any_card_may_be_there(system: Callable[..., None], tmp_path: Path) -> None:
    system(sysfs=False)
    assert hardware.gpu_vendors() is None
    (tmp_path / "sys/class").mkdir(parents=True)
    assert hardware.gpu_vendors() == set()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()  # WSL 2
    assert hardware.gpu_vendors() is None


def test_other_systems_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert hardware.gpu_vendors() is None


@pytest.mark.parametrize(
    ("text", "vendor"),
    [(r"PCI\VEN_8086&DEV_9A49", 0x8086), (r"pci\ven_10de&dev_2684", 0x10DE), ("ROOT\\BasicDisplay", None),
     ("PCI\\VEN_", None), ("", None)],
)  # fmt: skip
def test_windows_hardware_ids(text: str, vendor: int | None) -> None:
    assert hardware._vendor_of(text) == vendor


def test_the_stamp_changes_with_a_vulkan_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    file = tmp_path / "driver.json"
    stamps = {hardware.driver_stamp()}
    monkeypatch.setenv("VK_DRIVER_FILES", str(file))
    stamps.add(hardware.driver_stamp())
    for text in ("{}", "{...}"):
        file.write_text(text)
        stamps.add(hardware.driver_stamp())
    assert len(stamps) == 4
    assert hardware.driver_stamp() in stamps


def test_auto_does_not_import_openvino_where_no_intel_gpu_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpu_vendors", lambda: frozenset({0x10DE}))
    monkeypatch.setitem(sys.modules, "embedllm.backends.openvino.runtime", None)  # importing it would fail
    (absent,) = registry.DeviceCatalog().lookup("openvino-gpu", automatic=True)
    assert (absent.available, absent.reason) == (False, "no Intel GPU is in this machine")


@pytest.mark.parametrize("vendors", [frozenset({0x8086}), None])
def test_auto_asks_openvino_where_an_intel_gpu_may_be(
    vendors: frozenset[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(hardware, "gpu_vendors", lambda: vendors)
    found = {device.name for device in registry.DeviceCatalog().lookup("openvino-gpu", automatic=True)}
    assert "openvino" in found


# --- providers that have to be plugged in


def a_device(name: str) -> Device:
    return next(device for device in registry.DeviceCatalog().lookup(name) if device.name == name)


def test_a_library_that_is_none_says_so(tmp_path: Path, tiny_package: Callable[..., Path]) -> None:
    library = tmp_path / "no+library.so"  # no pair of devices either
    library.write_text("not a library")
    with pytest.raises(DeviceUnavailable, match=re.escape(f"cannot load '{library}'")) as caught:
        embedllm.load(tiny_package(), device=f"plugin:{library}")
    ((_, reason, _),) = caught.value.tried
    assert "Check that it is a plug-in" in reason
    with pytest.raises(DeviceUnavailable, match="is not at"):
        embedllm.load(tiny_package(), device=f"plugin:{tmp_path / 'nothing.so'}")


def test_a_provider_that_a_package_announces_is_listed(tmp_path: Path) -> None:
    """A real package, by its entry point, whose library is none, or OpenVINO's where that is installed."""
    record = tmp_path / "another-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1\n")
    (record / "entry_points.txt").write_text("[embedllm.providers]\nOpenVINOExecutionProvider = another:path\n")
    there = find_spec("onnxruntime_ep_openvino") is not None
    library = library_of("onnxruntime_ep_openvino") if there else str(tmp_path / "none.so")
    (tmp_path / "another.py").write_text(f"def path():\n    return {library!r}\n")
    name = "plugin:OpenVINOExecutionProvider"
    code = (
        "import embedllm\n"
        f"(one,) = (one for one in embedllm.devices() if one.name == {name!r})\n"
        "print(one.available, one.reason, one.backend, sep='|')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    available, reason, backend = done.stdout.strip().split("|")
    assert available == str(there)
    assert ("OpenVINOExecutionProvider 1." in backend) if there else (f"is not at '{library}'" in reason)


@pytest.mark.webgpu
def test_webgpu_is_right_by_its_probe() -> None:
    found = a_device("webgpu")
    if not found.available:
        pytest.skip(f"webgpu: {found.reason}")
    outcome = probe.run(found)
    assert outcome.ok
    assert outcome.variant in ("webgpu-float16", "gpu-float32")


@pytest.mark.gpu
def test_cuda_is_right_by_its_probe() -> None:
    outcome = probe.run(a_device("cuda"))
    assert (outcome.ok, outcome.variant) == (True, "generic-float16")


@pytest.mark.parametrize("row", [row for row in PROVIDERS if row.module], ids=named)
def test_a_plug_in_that_is_not_installed_says_the_pip_line(row: Provider) -> None:
    if find_spec(row.module) is not None or sys.platform not in row.platforms:
        pytest.skip(f"{row.module} is installed, or this is another system")
    found = a_device(row.device)
    assert found.reason == f"the package {row.module} is not installed"
    assert found.remedy == row.install


@pytest.mark.parametrize("row", [row for row in PROVIDERS if sys.platform not in row.platforms], ids=named)
def test_a_provider_of_another_system_says_so(row: Provider) -> None:
    assert re.fullmatch(r"it is for \w+( and \w+)* only", a_device(row.device).reason)


def test_inputs_with_defaults_become_constants() -> None:
    path = probe.FOLDER / "model.onnx"
    before, after = onnx.load(str(path), load_external_data=False), onnx.ModelProto.FromString(without_defaults(path))
    assert {value.name for value in before.graph.input} - {value.name for value in after.graph.input} == {"logits_from"}
    assert after.graph.initializer == before.graph.initializer
    assert after.graph.node == before.graph.node


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "/onnxruntime_src/onnxruntime/core/session/plugin_ep/ep_plugin_provider_interfaces.cc:71 virtual std::"
            "unique_ptr<onnxruntime::IExecutionProvider> onnxruntime::PluginExecutionProviderFactory::CreateProvider("
            "const OrtSessionOptions&, const OrtLogger&) Error creating execution provider: no adapter\nmore",
            "Error creating execution provider: no adapter",
        ),
        (
            "[ONNXRuntimeError] : 11 : EP_FAIL : Check failed (a) B",
            "[ONNXRuntimeError] : 11 : EP_FAIL : Check failed (a) B",
        ),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_onnx_runtime_is_told_without_its_place(said: str, meant: str) -> None:
    assert first_line(RuntimeError(said)) == meant


openvino_ep = pytest.mark.skipif(
    find_spec("onnxruntime_ep_openvino") is None, reason="onnxruntime-ep-openvino is not installed"
)


def library_of(package: str) -> str:
    return __import__(package).get_library_path()


@openvino_ep
def test_the_openvino_plug_in_is_right_by_its_name_and_by_its_path() -> None:
    for name in ("openvino-ep", f"plugin:{library_of('onnxruntime_ep_openvino')}"):
        found = a_device(name)
        assert found.available
        assert "OpenVINOExecutionProvider 1." in found.backend
        outcome = probe.run(found)
        assert (outcome.ok, outcome.variant) == (True, "generic-float32")


@openvino_ep
def test_the_openvino_plug_in_still_needs_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, `takes_defaults=False` of its row can go."""
    import onnxruntime as ort

    from embedllm.backends.ort.host_providers import attachment

    found = a_device("openvino-ep")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    (row,) = (row for row in PROVIDERS if row.device == "openvino-ep")
    attachment(row, found).add(options)
    with pytest.raises(Exception, match="OpenVINO input has no ONNX binding"):
        ort.InferenceSession(str(probe.FOLDER / "model.onnx"), options, enable_fallback=0)


@openvino_ep
def test_a_session_on_a_plug_in_is_a_session(tiny_package: Callable[..., Path]) -> None:
    """KV in the host's memory: pieces, a rewind, all positions at once, and the state to another engine and back."""
    package = open_package(tiny_package())
    tokens = [5, 17, 3, 250, 99, 41, 7, 300]
    with closing(registry.open_engine(package, a_device("openvino-ep"))) as engine:
        whole, pieces = engine.open(), engine.open()
        right = ReferenceEngine(package).open().feed_all(tokens)
        rows = whole.feed_all(tokens)  # type: ignore[attr-defined]  # this session can
        assert np.abs(rows - right).max() < 0.2
        pieces.feed(tokens[:3])
        pieces.feed(tokens[3:6])
        pieces.rewind(2)
        last = pieces.feed(tokens[2:])
        values = np.array(last.values(range(last.size)))
        assert np.abs(values - right[-1]).max() < 0.2
        assert pieces.position == whole.position == len(tokens)
        with closing(registry.open_engine(package, a_device("cpu"), exact=True)) as cpu:
            other = cpu.open()
            other.import_state(pieces.export_state(0, 8))  # type: ignore[attr-defined]  # these sessions can
            step = other.feed([11])
            wanted = ReferenceEngine(package).open().feed([*tokens, 11])
            gap = np.array(step.values(range(step.size))) - np.array(wanted.values(range(wanted.size)))
            assert np.abs(gap).max() < 0.2
        whole.close()
        pieces.close()


@openvino_ep
def test_the_demo_answers_on_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path)
    greedy = Sampling(temperature=0)
    with embedllm.load("demo", device="openvino-ep") as plugged, embedllm.load("demo") as cpu:
        texts = [one.generate("list files", greedy, max_tokens=12).text for one in (plugged, cpu)]
    assert texts[0] == texts[1]
    assert len([*tmp_path.rglob("openvino-ep-*.json")]) == 1


@pytest.mark.skipif(find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed")
def test_a_device_that_is_listed_and_then_fails_is_refused(
    tiny_package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QNN lists a device on any processor, and then cannot make a session there."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path)
    assert a_device("qnn").available
    with pytest.raises(DeviceUnavailable, match=r"'qnn': the probe failed: .*EMBEDLLM_PROBE=off"):
        embedllm.load(tiny_package(), device="qnn")
    with embedllm.load(tiny_package(), device=["qnn", "cpu"]) as model:
        assert model.device.name == "cpu"
