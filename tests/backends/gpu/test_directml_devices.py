"""Which GPUs DirectML is listed with, from what ONNX Runtime tells about them on Windows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from embedllm.backends.devices.selection import choose
from embedllm.backends.gpu import directml


@pytest.mark.skipif(os.name == "nt" or directml.PROVIDER in directml.ort.get_available_providers(), reason="Windows")
def test_elsewhere_the_device_says_that_it_is_of_windows() -> None:
    (device,) = directml.devices()
    assert (device.name, device.available) == ("directml", False)
    assert device.reason == f"the installed ONNX Runtime {directml.ort.__version__} has no DirectML provider"
    assert device.remedy == "DirectML is Windows only"


def test_a_windows_without_the_build_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directml.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(directml, "_WINDOWS", True)
    (device,) = directml.devices()
    assert device.remedy == "pip uninstall onnxruntime, then pip install onnxruntime-directml, which takes its place"


def on_windows(monkeypatch: pytest.MonkeyPatch, working: Sequence[int], listed: Sequence[Mapping[str, str]]) -> None:
    """A machine on which sessions can be made on some adapters, of which ONNX Runtime lists some."""

    def start(model: object, provider: str, number: int) -> None:
        if number not in working:
            raise RuntimeError("887A0002 no such adapter\nmore")

    entries = [SimpleNamespace(ep_name=directml.PROVIDER, device=SimpleNamespace(metadata=one)) for one in listed]
    of_cpu = SimpleNamespace(ep_name="CPUExecutionProvider", device=SimpleNamespace(metadata={"Description": "A CPU"}))
    monkeypatch.setattr(directml.ort, "get_available_providers", lambda: [directml.PROVIDER])
    monkeypatch.setattr(directml.ort, "get_ep_devices", lambda: [of_cpu, *entries])
    monkeypatch.setattr(directml, "start", start)


# as ONNX Runtime 1.24 words them
OF_THE_PROCESSOR = {"Description": "Intel(R)  UHD Graphics", "Discrete": "0", "DxgiAdapterNumber": "0",
                    "DxgiHighPerformanceIndex": "1", "DxgiVideoMemory": "128 MB"}  # fmt: skip
CARD = {"Description": "NVIDIA GeForce RTX 4060", "Discrete": "1", "DxgiAdapterNumber": "2",
        "DxgiHighPerformanceIndex": "0", "DxgiVideoMemory": "8002 MB"}  # fmt: skip


def test_the_fastest_adapter_comes_first_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    on_windows(monkeypatch, [0, 2], [OF_THE_PROCESSOR, CARD])
    first, second = directml.devices()
    assert (first.name, first.description, first.available) == ("directml", "NVIDIA GeForce RTX 4060", True)
    assert (second.name, second.description, second.available) == ("directml:1", "Intel(R) UHD Graphics", True)
    assert (first.memory, second.memory) == (8002 * 2**20, 0)  # the processor's GPU works in the machine's
    assert [directml.number_of(device.name) for device in (first, second)] == [2, 0]


def test_without_an_order_of_performance_cards_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [{k: v for k, v in one.items() if k != "DxgiHighPerformanceIndex"} for one in (OF_THE_PROCESSOR, CARD)]
    on_windows(monkeypatch, [0, 2], listed)
    assert [device.description for device in directml.devices()] == [CARD["Description"], "Intel(R) UHD Graphics"]


def test_an_adapter_that_makes_no_session_is_passed_over_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    on_windows(monkeypatch, [0], [OF_THE_PROCESSOR, CARD])
    choice = choose(directml.devices(), "auto", platform="win32")
    assert (choice.device.name, choice.device.description) == ("directml:1", "Intel(R) UHD Graphics")
    assert ("directml", "no session can be made on it: 887A0002 no such adapter") in [
        (refusal.device, refusal.reason) for refusal in choice.rejected
    ]


def test_adapters_that_are_not_listed_are_tried_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    on_windows(monkeypatch, [1, 2], [])
    devices = directml.devices()
    assert [(device.name, device.available) for device in devices] == [
        ("directml", False), ("directml:1", True), ("directml:2", True)
    ]  # fmt: skip
    assert devices[1].description == "DirectML adapter 1"
    assert [directml.number_of(device.name) for device in devices] == [0, 1, 2]


def test_a_provider_that_makes_no_session_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(model: object, provider: str, index: int) -> None:
        raise RuntimeError("887A0004 Failed to create DXGI factory.\nmore")

    monkeypatch.setattr(directml.ort, "get_available_providers", lambda: [directml.PROVIDER])
    monkeypatch.setattr(directml, "start", start)
    (device,) = directml.devices()
    assert not device.available
    assert device.reason == "no session can be made on it: 887A0004 Failed to create DXGI factory."
    assert device.remedy


def test_the_provider_gets_what_it_needs_and_nothing_to_fall_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[directml.ort.SessionOptions, dict[str, object]]] = []
    monkeypatch.setattr(
        directml.ort, "InferenceSession", lambda model, options, **choices: seen.append((options, choices))
    )
    directml.start(b"", directml.PROVIDER, 1)
    ((options, choices),) = seen
    assert choices == {"providers": [("DmlExecutionProvider", {"device_id": "1"})], "enable_fallback": 0}
    assert not options.enable_mem_pattern
    assert options.execution_mode == directml.ort.ExecutionMode.ORT_SEQUENTIAL
