"""The GPU that WebGPU runs on, as ONNX Runtime's plug-in lists it, and what there is to say where it cannot be used.

Which GPU that is the provider (0.4.0) does not tell and cannot be told: Dawn takes the one that it expects to be
fastest, and a software driver when there is no other.
"""

from __future__ import annotations

import sys

from embedllm.backends.base import Device
from embedllm.backends.ort import plugins
from embedllm.backends.ort.runtime import ort
from embedllm.backends.system import vulkan
from embedllm.errors import DeviceError
from embedllm.files.switches import switch

ALLOW_SOFTWARE = "EMBEDLLM_ALLOW_SOFTWARE_GPU"  # environment variable: "1" makes software adapters available
_DRIVER = "install the GPU's Vulkan driver: mesa-vulkan-drivers for Intel and AMD, NVIDIA's own for its GPUs"
_NO_GPU = ("ONNX Runtime finds no GPU here", "docs/webgpu.md tells where it looks")


def devices() -> list[Device]:
    """The GPU that WebGPU runs on, others that it cannot be told to take, and what there is to say when there is none.

    They are called "webgpu", "webgpu:1" and so on, as ONNX Runtime lists them.
    """
    if not plugins.is_installed(plugins.WEBGPU):
        return [_missing(f"the package {plugins.WEBGPU.package} is not installed", plugins.WEBGPU.install)]
    try:
        provider_devices = plugins.devices(plugins.WEBGPU)
    except DeviceError as error:
        return [_missing(str(error), plugins.WEBGPU.install)]
    if not provider_devices:
        return [_missing(*_NO_GPU)]
    adapters = vulkan.adapters() if sys.platform == "linux" else []
    return [_listed(index, device, adapters) for index, device in enumerate(provider_devices)]


def _listed(index: int, device: plugins.ProviderDevice, adapters: list[vulkan.Adapter] | None) -> Device:
    """A device of the provider. adapters: what the system's drivers drive, on Linux; None without a Vulkan loader."""
    name = f"webgpu:{index}" if index else "webgpu"
    backend = f"onnxruntime {ort.__version__}, WebGPU plug-in {device.version}"
    is_software, description, memory = device.kind == "CPU", device.description, device.memory
    lack, remedy = "", ""
    if index:
        lack = f"the plug-in ({device.version}) cannot be told which GPU to take; 'webgpu' is the one that it takes"
    elif sys.platform == "linux" and is_software and not adapters:
        lack, remedy = _NO_GPU
    elif sys.platform == "linux" and adapters is None:
        lack, remedy = "there is no Vulkan loader (libvulkan.so.1)", f"install libvulkan1; {_DRIVER}"
    elif sys.platform == "linux" and not adapters:
        lack, remedy = "no Vulkan driver drives a GPU here", _DRIVER
    elif adapters:
        is_software, description, memory = adapters[0].is_software, adapters[0].name, adapters[0].memory
    if is_software and not lack:
        description = f"{description}, software"
        if switch(ALLOW_SOFTWARE) != "on":
            lack = "only a software driver is there, slower than the CPU itself"
            needed = {ALLOW_SOFTWARE: "1", **plugins.WEBGPU.environment}  # without the second it lists no such adapter
            remedy = f"{_DRIVER}; for tests, set {' and '.join(f'{name}={value}' for name, value in needed.items())}"
    return Device(name=name, backend=backend, description=description, available=not lack, reason=lack, remedy=remedy,
                  memory=memory)  # fmt: skip


def _missing(reason: str, remedy: str) -> Device:
    backend = f"onnxruntime {ort.__version__}"
    return Device(name="webgpu", backend=backend, description="", available=False, reason=reason, remedy=remedy)
