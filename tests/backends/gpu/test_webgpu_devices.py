"""What WebGPU's list of devices says of a machine, and the graph that it is given. No GPU is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embedllm.backends.base import Device
from embedllm.backends.devices.drivers import find_family
from embedllm.backends.devices.support import package_unsupported
from embedllm.backends.gpu import webgpu, webgpu_devices
from embedllm.backends.gpu.webgpu_attention_check import SAFE, attends_to_many
from embedllm.backends.ort import plugins
from embedllm.backends.ort.plugins import Library, ProviderDevice
from embedllm.backends.system import vulkan
from embedllm.backends.system.vulkan import Adapter
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.export import Recipe
from embedllm.package.package import open_package
from tests.support.decoder_cases import CASES, plain
from tests.support.described import described_package

GPU = ProviderDevice(
    provider="WebGpuExecutionProvider", version="0.4.0", kind="GPU", vendor="Intel", vendor_id=0x8086, device_id=0x56A0,
    description="Intel 0x8086:0x56a0", memory=0, metadata={}, handle=None,  # type: ignore[arg-type]  # of no session
)  # fmt: skip
NO_GPU = ProviderDevice(
    provider="WebGpuExecutionProvider", version="0.4.0", kind="CPU", vendor="Intel", vendor_id=0x8086, device_id=0,
    description="Intel 0x8086:0x0000", memory=0, metadata={}, handle=None,  # type: ignore[arg-type]
)  # fmt: skip
ARC = Adapter(name="Intel(R) Arc(tm) A770", kind="discrete", vendor_id=0x8086, device_id=0x56A0, driver=1, memory=16)
LLVMPIPE = Adapter(name="llvmpipe", kind="software", vendor_id=0x10005, device_id=0, driver=1, memory=0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Device]]:
    """A function that gives the devices of an invented machine."""

    def make(
        *listed: ProviderDevice | DeviceError, adapters: list[Adapter] | None, platform: str = "linux", allow: str = ""
    ) -> list[Device]:
        def devices(library: Library) -> list[ProviderDevice]:
            for one in listed:
                if isinstance(one, DeviceError):
                    raise one
            return [one for one in listed if isinstance(one, ProviderDevice)]

        monkeypatch.setattr(plugins, "is_installed", lambda library: True)
        monkeypatch.setattr(plugins, "devices", devices)
        monkeypatch.setattr(vulkan, "adapters", lambda: adapters)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setenv(webgpu_devices.ALLOW_SOFTWARE, allow)
        return webgpu_devices.devices()

    return make


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "is_installed", lambda library: False)
    (device,) = webgpu_devices.devices()
    assert (device.name, device.available) == ("webgpu", False)
    assert device.reason == "the package onnxruntime_ep_webgpu is not installed"
    assert device.remedy == "pip install onnxruntime-ep-webgpu"


def test_a_library_that_does_not_load_is_the_reason(machine: Callable[..., list[Device]]) -> None:
    (device,) = machine(DeviceError("it cannot be loaded: no libstdc++"), adapters=[ARC])
    assert (device.available, device.reason) == (False, "it cannot be loaded: no libstdc++")


def test_a_gpu_with_a_driver_is_available_by_the_drivers_name(machine: Callable[..., list[Device]]) -> None:
    (device,) = machine(GPU, adapters=[ARC, LLVMPIPE])
    assert (device.name, device.available, device.description, device.memory) == ("webgpu", True, ARC.name, 16)
    assert device.backend.endswith("WebGPU plug-in 0.4.0")


def test_a_gpu_of_windows_is_available_without_vulkan(machine: Callable[..., list[Device]]) -> None:
    (device,) = machine(GPU, adapters=None, platform="win32")
    assert (device.available, device.description) == (True, GPU.description)


def test_a_second_gpu_is_named_but_cannot_be_chosen(machine: Callable[..., list[Device]]) -> None:
    first, second = machine(GPU, GPU, adapters=[ARC, ARC])
    assert first.available
    assert (second.name, second.available) == ("webgpu:1", False)
    assert "cannot be told which GPU to take" in second.reason


@pytest.mark.parametrize(
    ("listed", "adapters", "reason"),
    [
        ((), [ARC], "ONNX Runtime finds no GPU here"),
        ((GPU,), None, "there is no Vulkan loader (libvulkan.so.1)"),
        ((NO_GPU,), None, "ONNX Runtime finds no GPU here"),
        ((NO_GPU,), [], "ONNX Runtime finds no GPU here"),
        ((GPU,), [], "no Vulkan driver drives a GPU here"),
        ((GPU,), [LLVMPIPE], "only a software driver is there, slower than the CPU itself"),
        ((NO_GPU,), [LLVMPIPE], "only a software driver is there, slower than the CPU itself"),
    ],
)
def test_what_is_missing_is_said_with_a_remedy(
    machine: Callable[..., list[Device]],
    listed: tuple[ProviderDevice, ...],
    adapters: list[Adapter] | None,
    reason: str,
) -> None:
    (device,) = machine(*listed, adapters=adapters)
    assert (device.available, device.reason) == (False, reason)
    assert device.remedy


def test_a_software_driver_is_marked_and_available_when_that_is_allowed(machine: Callable[..., list[Device]]) -> None:
    for listed in (GPU, NO_GPU):
        (device,) = machine(listed, adapters=[LLVMPIPE], allow="1")
        assert (device.available, device.description, device.reason) == (True, "llvmpipe, software", "")
        (device,) = machine(listed, adapters=[LLVMPIPE], allow="0")
        assert (device.available, device.description) == (False, "llvmpipe, software")
        assert f"{webgpu_devices.ALLOW_SOFTWARE}=1" in device.remedy


def test_a_gpu_without_float16_is_told_when_the_engine_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the words that the provider has for it; what runs here has float16."""

    class Session:
        def rewind(self, position: int) -> None: ...
        def close(self) -> None: ...

        def feed(self, tokens: list[int]) -> None:
            raise DeviceError(
                "ONNX Runtime failed: Program MatMulNBits requires f16 but the device does not support it."
            )

    engine = object.__new__(webgpu.WebGpuEngine)
    engine.device = Device(name="webgpu", backend="", description="", available=True)
    engine.package, engine.chunk, engine.context = SimpleNamespace(name="any"), 31, 128  # type: ignore[assignment]
    monkeypatch.setattr(webgpu.WebGpuEngine, "open", lambda self: Session())
    with pytest.raises(DeviceUnavailable, match="the GPU has no 16-bit floats") as caught:
        engine._warm_up()
    assert caught.value.tried[0][2] == "use the 'gpu-float32' graph"


def test_a_system_without_a_vulkan_loader_has_no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "_LOADER", "libvulkan-that-is-not-there.so")
    assert vulkan.adapters() is None


def test_the_check_of_attention_passes_where_it_is_right_and_fails_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from embedllm.backends.gpu import webgpu_attention_check

    assert SAFE < webgpu_attention_check._TOKENS
    assert attends_to_many(lambda options: options.add_provider("CPUExecutionProvider", {}))
    right = webgpu_attention_check._attention
    monkeypatch.setattr(webgpu_attention_check, "_attention", lambda q, k, v: right(q, k, v) + np.float32(0.01))
    assert not attends_to_many(lambda options: options.add_provider("CPUExecutionProvider", {}))


@pytest.mark.parametrize(("case", "reason"), [("softcap", "has logit soft-capping, which WebGPU"), ("sinks", None)])
def test_models_whose_attention_caps_its_scores_are_refused(case: str, reason: str | None, tmp_path: Path) -> None:
    """test_webgpu.py tells when the plug-in does it."""
    folder = described_package(
        tmp_path / "package", CASES[case](plain()), Recipe(method="nearest"), variant="gpu-float32"
    )
    family = find_family("webgpu")
    assert family is not None
    found = package_unsupported(open_package(folder), family, kv=None)
    assert (found is None) if reason is None else (found is not None and reason in found.reason)
