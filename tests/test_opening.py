"""What load() does with a device that is there and then does not open."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import embedllm
from embedllm.backends import drivers, select
from embedllm.backends.base import Engine
from embedllm.backends.drivers import Choices, driver_of
from embedllm.errors import DeviceError, DeviceUnavailable


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """breaks("openvino", ...) makes these devices fail to open; "auto" is OpenVINO's CPU and then ONNX Runtime's."""

    def refuse(choices: Choices) -> Engine:
        raise DeviceError(f"'{choices.device.name}' is out of memory")

    def make(*names: str) -> None:
        for name in names:
            driver = driver_of(name)
            assert driver is not None
            monkeypatch.setitem(drivers._DRIVERS, name, replace(driver, open=refuse))
        monkeypatch.setitem(select.RANKINGS, sys.platform, ("openvino", "cpu"))

    return make


def test_auto_goes_on_and_says_so(
    breaks: Callable[..., None], tiny_package: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    breaks("openvino")
    with caplog.at_level(logging.INFO, logger="embedllm"), embedllm.load(tiny_package()) as model:
        assert model.device.name == "cpu"
    assert "'openvino' could not be opened: 'openvino' is out of memory" in caplog.text
    assert "; not openvino: 'openvino' is out of memory" in caplog.text


def test_an_explicit_device_raises_its_own_error(
    breaks: Callable[..., None], tiny_package: Callable[..., Path]
) -> None:
    breaks("openvino")
    with pytest.raises(DeviceError, match=r"^'openvino' is out of memory$"):
        embedllm.load(tiny_package(), device="openvino")


def test_when_all_fail_each_is_told(breaks: Callable[..., None], tiny_package: Callable[..., Path]) -> None:
    breaks("openvino", "cpu")
    with pytest.raises(DeviceUnavailable) as caught:
        embedllm.load(tiny_package())
    assert [(name, reason) for name, reason, _ in caught.value.tried] == [
        (name, f"'{name}' is out of memory") for name in ("openvino", "cpu")
    ]
    assert str(caught.value.__cause__) == "'cpu' is out of memory"


def test_auto_on_a_machine_with_one_device_raises_that_ones_error(
    breaks: Callable[..., None], tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks("cpu")
    monkeypatch.setitem(select.RANKINGS, sys.platform, ("directml", "cpu") if sys.platform != "win32" else ("cpu",))
    with pytest.raises(DeviceError, match=r"^'cpu' is out of memory$"):
        embedllm.load(tiny_package())


def test_a_list_of_one_falls_to_nothing(breaks: Callable[..., None], tiny_package: Callable[..., Path]) -> None:
    breaks("cpu")
    with pytest.raises(DeviceUnavailable, match="Tried 'cpu': 'cpu' is out of memory"):
        embedllm.load(tiny_package(), device=["cpu"])


def test_a_target_with_a_comma_is_one_device_of_the_environment(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDLLM_DEVICE", "openvino:NPU:GPU,CPU")
    with pytest.raises(DeviceUnavailable) as caught:
        embedllm.load(tiny_package())
    assert [name for name, *_ in caught.value.tried] == ["openvino:NPU:GPU,CPU"]
