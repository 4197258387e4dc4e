"""What load() does with a device that is there and then does not open."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import embedllm
from embedllm.backends.base import Engine, OpenOptions
from embedllm.backends.devices import drivers
from embedllm.backends.devices import selection as select
from embedllm.backends.devices.drivers import find_family
from embedllm.backends.probe import runner as probe_run
from embedllm.backends.probe.probe import Outcome, failed
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.package.graph_variants import FLOAT16, FLOAT32


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """breaks("openvino", ...) makes these devices fail to open; "auto" is OpenVINO's CPU and then ONNX Runtime's."""

    def refuse(choices: OpenOptions) -> Engine:
        raise DeviceError(f"'{choices.device.name}' has lost its driver")

    def make(*names: str) -> None:
        for name in names:
            driver = find_family(name)
            assert driver is not None
            monkeypatch.setitem(drivers._FAMILIES, name, replace(driver, open=refuse))
        monkeypatch.setitem(select.RANKINGS, sys.platform, ("openvino", "cpu"))

    return make


@pytest.fixture
def fails_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception], None]:
    """fails_with("cpu", error) makes the device raise that when it opens."""

    def make(name: str, error: Exception) -> None:
        def fail(choices: OpenOptions) -> Engine:
            raise error

        family = find_family(name)
        assert family is not None
        monkeypatch.setitem(drivers._FAMILIES, name, replace(family, open=fail))

    return make


def test_auto_goes_on_and_says_so(
    breaks: Callable[..., None], tiny_package: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    breaks("openvino")
    with caplog.at_level(logging.INFO, logger="embedllm"), embedllm.load(tiny_package()) as model:
        assert model.device.name == "cpu"
    assert "'openvino' could not be opened: 'openvino' has lost its driver" in caplog.text
    assert "; not openvino: 'openvino' has lost its driver" in caplog.text


def test_an_explicit_device_raises_its_own_error_and_says_what_was_tried(
    breaks: Callable[..., None], tiny_package: Callable[..., Path]
) -> None:
    breaks("openvino")
    with pytest.raises(DeviceUnavailable, match=r"^'openvino' has lost its driver$") as caught:
        embedllm.load(tiny_package(), device="openvino")
    assert caught.value.tried == (("openvino", "'openvino' has lost its driver", ""),)
    assert isinstance(caught.value.__cause__, DeviceError)


def test_when_all_fail_each_is_told(breaks: Callable[..., None], tiny_package: Callable[..., Path]) -> None:
    breaks("openvino", "cpu")
    with pytest.raises(DeviceUnavailable) as caught:
        embedllm.load(tiny_package())
    assert [(name, reason) for name, reason, _ in caught.value.tried] == [
        (name, f"'{name}' has lost its driver") for name in ("openvino", "cpu")
    ]
    assert str(caught.value.__cause__) == "'cpu' has lost its driver"


def test_auto_on_a_machine_with_one_device_raises_that_ones_error(
    breaks: Callable[..., None], tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks("cpu")
    monkeypatch.setitem(select.RANKINGS, sys.platform, ("directml", "cpu") if sys.platform != "win32" else ("cpu",))
    with pytest.raises(DeviceUnavailable, match=r"^'cpu' has lost its driver$"):
        embedllm.load(tiny_package())


def test_a_list_of_one_falls_to_nothing(breaks: Callable[..., None], tiny_package: Callable[..., Path]) -> None:
    breaks("cpu")
    with pytest.raises(DeviceUnavailable, match="Tried 'cpu': 'cpu' has lost its driver"):
        embedllm.load(tiny_package(), device=["cpu"])


@pytest.mark.parametrize(
    "error",
    [
        DeviceError("ONNX Runtime cannot load 'model.onnx': Exception while pre-packing node 'up': std::bad_alloc"),
        DeviceError("ONNX Runtime cannot load 'model.onnx': CUDA failure 2: out of memory ; GPU=0"),
        DeviceError("OpenVINO cannot load 'model.xml' on GPU: CL_MEM_OBJECT_ALLOCATION_FAILURE"),
        DeviceError("OpenVINO cannot load 'model.xml' on CPU: Can not create file mapping, err=Cannot allocate memory"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory_that_runs_out_in_a_load_is_told_with_what_was_needed_and_what_helps(
    error: Exception, fails_with: Callable[[str, Exception], None], tiny_package: Callable[..., Path]
) -> None:
    fails_with("cpu", error)
    package = tiny_package()
    needs = r"'cpu' cannot run this model: memory ran out while it was loaded: '.*' needs about \d+ MiB for .* tokens"
    with pytest.raises(DeviceUnavailable, match=needs) as caught:
        embedllm.load(package, device="cpu")
    message = str(caught.value)
    assert str(error) in message
    assert "MiB were free" in message
    assert f"load(context=N)); 'embedllm fit {package}' says what each device needs" in message
    assert caught.value.tried[0][2].startswith("close other programs")
    assert caught.value.__cause__ is error


def test_auto_goes_on_where_memory_runs_out(
    breaks: Callable[..., None], fails_with: Callable[[str, Exception], None], tiny_package: Callable[..., Path]
) -> None:
    breaks("openvino")
    fails_with("openvino", MemoryError("no room"))
    with embedllm.load(tiny_package()) as model:
        assert model.device.name == "cpu"
    breaks("cpu")
    with pytest.raises(DeviceUnavailable, match=r"Tried 'openvino': memory ran out .*\(no room\) \(close other"):
        embedllm.load(tiny_package())


def test_an_error_of_a_file_is_no_error_of_the_device(
    fails_with: Callable[[str, Exception], None], tiny_package: Callable[..., Path]
) -> None:
    fails_with("cpu", PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(PermissionError):
        embedllm.load(tiny_package(), device="cpu")


def test_a_target_with_a_comma_is_one_device_of_the_environment(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLLM_DEVICE", "openvino:NPU:GPU,CPU")
    with pytest.raises(DeviceUnavailable) as caught:
        embedllm.load(tiny_package())
    assert [name for name, *_ in caught.value.tried] == ["openvino:NPU:GPU,CPU"]


def test_names_with_commas_are_tried_in_order(
    breaks: Callable[..., None], tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks("openvino")
    with embedllm.load(tiny_package(), device="openvino,cpu") as model:
        assert model.device.name == "cpu"
    monkeypatch.setenv("EMBEDLLM_DEVICE", " openvino , CPU,")
    with embedllm.load(tiny_package()) as model:
        assert model.device.name == "cpu"
    monkeypatch.setenv("EMBEDLLM_DEVICE", ",")
    with pytest.raises(DeviceUnavailable, match="openvino"):
        embedllm.load(tiny_package(), device="openvino,")


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The CPU, said to run the float16 graph best, which it refuses when it opens; and the graphs that it was given."""
    cpu = find_family("cpu")
    assert cpu is not None
    given: list[str] = []

    def open_it(choices: OpenOptions) -> Engine:
        assert choices.graph is not None
        given.append(choices.graph.variant)
        if choices.graph.variant == FLOAT16.name:
            lack = "the GPU has no 16-bit floats"
            raise DeviceUnavailable(f"'cpu' cannot run this model: {lack}.", [("cpu", lack, "another graph")])
        return cpu.open(choices)

    row = replace(cpu, capabilities=replace(cpu.capabilities, variants=(FLOAT16.name, FLOAT32.name)), open=open_it)
    monkeypatch.setitem(drivers._FAMILIES, "cpu", row)
    return given


@pytest.mark.parametrize("name", ["cpu", "openvino+cpu"])
def test_a_graph_that_a_device_refuses_gives_way_to_the_next(
    name: str, picky: list[str], tiny_package: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """As a GPU without float16 does, where no probe found that out."""
    with caplog.at_level(logging.INFO, logger="embedllm"), embedllm.load(tiny_package(), device=name) as model:
        assert model.generate("a", max_tokens=1).tokens
    assert picky == [FLOAT16.name, FLOAT32.name]
    assert "the graph 'generic-float16' is not used: 'cpu' cannot run this model: the GPU has no 16-bit" in caplog.text


def test_when_each_graph_is_refused_each_is_told(
    picky: list[str], tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = find_family("cpu")
    assert row is not None
    monkeypatch.setattr("tests.loading.test_device_search.FLOAT16", FLOAT32)  # the one that it refuses
    monkeypatch.setitem(
        drivers._FAMILIES,
        "cpu",
        replace(row, capabilities=replace(row.capabilities, variants=(FLOAT32.name, FLOAT32.name))),
    )
    with pytest.raises(DeviceUnavailable) as caught:
        embedllm.load(tiny_package(), device="cpu")
    assert len(caught.value.tried) == len(picky) == 2


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """What the probes of devices give, by name; those in here are probed."""
    outcomes: dict[str, Outcome] = {}
    monkeypatch.setattr("embedllm.backends.devices.registry.is_probed", lambda device: device.name in outcomes)
    monkeypatch.setattr(probe_run, "outcome_for", lambda device, **_: outcomes[device.name])
    return outcomes


def test_the_devices_of_a_pair_are_probed(
    probes: dict[str, Outcome], picky: list[str], tiny_package: Callable[..., Path]
) -> None:
    probes["cpu"] = Outcome(ok=True, variant=FLOAT32.name)
    embedllm.load(tiny_package(), device="openvino+cpu").close()
    assert picky == [FLOAT32.name]
    probes["openvino"] = failed("failed: it computes wrongly", remedy="another driver")
    with pytest.raises(DeviceUnavailable) as caught:
        embedllm.load(tiny_package(), device="openvino+cpu")
    reason = "'openvino': the probe failed: it computes wrongly"
    assert caught.value.tried == (("openvino+cpu", reason, "another driver"),)
