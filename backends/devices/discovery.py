"""Where devices come from: each backend's list, or, when that backend is not here, why and what to install.

What is not asked for is not loaded; and what "auto" would look for is not loaded when the hardware cannot be there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from embedllm.backends.base import Device
from embedllm.backends.devices.selection import family_of
from embedllm.backends.system import hardware
from embedllm.backends.system.ort_builds import builds, conflict
from embedllm.backends.system.ort_providers import BY_DEVICE, GROUP, PROVIDERS, Provider

_OPENVINO = ("openvino", "openvino-gpu", "npu", "npu-on-cpu")
_INSTALL_OPENVINO = "pip install openvino, which is the extra embedllm[openvino]"
_GENAI = "genai"
_INSTALL_GENAI = "pip install embedllm[genai]"
_SYSTEMS = {"linux": "Linux", "win32": "Windows", "darwin": "macOS"}
_NO_DEVICES = {"azure"}  # calls a server


@dataclass(frozen=True, slots=True)
class Source:
    """A backend's list of devices."""

    families: tuple[str, ...]  # what the names of its devices begin with
    devices: Callable[[], list[Device]]
    # a quick look for a device that nobody asked for by name: what it lacks, without loading its runtime
    absent: Callable[[str], Device | None] = lambda name: None

    def has(self, name: str) -> bool:
        return family_of(name) in self.families


def missing(name: str, backend: str, reason: str, remedy: str = "") -> Device:
    """A device that is not there."""
    return Device(name=name, backend=backend, description="", available=False, reason=reason, remedy=remedy)


def plug_in_devices(name: str) -> list[Device]:
    """The device of a provider's library, "plugin:PATH"."""
    if lack := _runtime_lack():
        return [missing(name, _runtime(), *lack)]
    from embedllm.backends.ort import host_providers

    return host_providers.library_devices(name)


def _devices_of(provider: Provider) -> list[Device]:
    """What one provider of ONNX Runtime offers."""
    if lack := _lack_of(provider):
        return [missing(provider.device, _runtime(), *lack)]
    return _LISTS[provider.engine](provider)


def _cpu_devices(provider: Provider) -> list[Device]:
    from embedllm.backends.ort import engine as ort

    return ort.devices()


def _host_devices(provider: Provider) -> list[Device]:
    from embedllm.backends.ort import host_providers

    return host_providers.devices(provider)


def _cuda_devices(provider: Provider) -> list[Device]:
    from embedllm.backends.gpu import cuda

    return cuda.devices()


def _webgpu_devices(provider: Provider) -> list[Device]:
    from embedllm.backends.gpu import webgpu

    return webgpu.devices()


def _directml_devices(provider: Provider) -> list[Device]:
    from embedllm.backends.gpu import directml

    return directml.devices()


# by a provider's `engine`
_LISTS = {
    "cpu": _cpu_devices,
    "host": _host_devices,
    "cuda": _cuda_devices,
    "webgpu": _webgpu_devices,
    "directml": _directml_devices,
}


def _lack_of(provider: Provider) -> tuple[str, str] | None:
    """Why a provider is not here, as far as that can be told without asking it."""
    if sys.platform not in provider.platforms and sys.platform in _SYSTEMS:
        systems = " and ".join(_SYSTEMS[name] for name in sorted(provider.platforms))
        return f"it is for {systems} only", ""
    if provider.module and find_spec(provider.module) is None:
        return f"the package {provider.module} is not installed", provider.install
    if lack := _runtime_lack():
        return lack
    if not provider.module:
        from embedllm.backends.ort.runtime import ort

        if provider.name not in ort.get_available_providers():
            name = provider.name.removesuffix("ExecutionProvider")
            return f"this build of ONNX Runtime has no {name} provider", provider.install
    return None


def _runtime_lack() -> tuple[str, str] | None:
    """Why ONNX Runtime cannot be used; asked before it is imported."""
    if trouble := conflict(builds()):
        return trouble
    try:
        from embedllm.backends.ort import engine as ort  # noqa: F401 - whether it can be
    except ImportError as error:
        return f"ONNX Runtime cannot be imported ({error})", BY_DEVICE["cpu"].install
    return None


def _runtime() -> str:
    """ONNX Runtime and its version, without importing it."""
    return next((f"onnxruntime {build.version}" for build in builds()), "onnxruntime")


def _unknown_devices() -> list[Device]:
    """Providers of this build of ONNX Runtime that have no row."""
    if _runtime_lack():
        return []
    from embedllm.backends.ort.runtime import ort

    known = {provider.name for provider in PROVIDERS}
    others = {
        provider.removesuffix("ExecutionProvider").lower(): provider
        for provider in ort.get_available_providers()
        if provider not in known and provider in ort.get_all_providers()  # which leaves out those of plug-ins
    }
    reason = "this version of embedllm does not drive this provider"
    backend = f"onnxruntime {ort.__version__}"
    return [
        Device(name=name, backend=backend, description=provider, available=False, reason=reason)
        for name, provider in others.items()
        if name not in _NO_DEVICES
    ]


def _announced_devices() -> list[Device]:
    """Providers that installed packages announce."""
    from importlib.metadata import entry_points

    if not entry_points(group=GROUP) or _runtime_lack():
        return []
    from embedllm.backends.ort import host_providers

    return host_providers.announced_devices()


def _ov_devices() -> list[Device]:
    try:
        from embedllm.backends.openvino import runtime as ov_runtime
    except ImportError as error:
        lack = f"OpenVINO cannot be imported ({error})"
        return [missing(name, "openvino", lack, _INSTALL_OPENVINO) for name in _OPENVINO]
    return ov_runtime.devices()


def _no_intel_gpu(name: str) -> Device | None:
    """Importing OpenVINO takes half a second, which a machine without an Intel GPU need not spend."""
    if family_of(name) != "openvino-gpu":
        return None
    vendors = hardware.gpu_vendors()
    if vendors is not None and hardware.INTEL not in vendors:
        return missing(name, "openvino", "no Intel GPU is in this machine")
    if find_spec("openvino") is None:
        return missing(name, "openvino", "OpenVINO is not installed", _INSTALL_OPENVINO)
    return None


def _genai_devices() -> list[Device]:
    if lack := _runtime_lack():
        return [missing(_GENAI, "onnxruntime-genai", *lack)]
    try:
        from embedllm.backends.genai import engine as genai
    except ImportError as error:
        lack = f"onnxruntime-genai cannot be imported ({error})"
        return [missing(_GENAI, "onnxruntime-genai", lack, _INSTALL_GENAI)]
    return genai.devices()


def _reference_devices() -> list[Device]:
    from embedllm.backends.reference import engine as reference

    return [reference.DEVICE]


def _of_providers(providers: Iterable[Provider]) -> list[Source]:
    return [Source((provider.device,), partial(_devices_of, provider)) for provider in providers]


SOURCES = (
    *_of_providers(PROVIDERS),
    Source((), _announced_devices),
    Source((), _unknown_devices),
    Source(_OPENVINO, _ov_devices, _no_intel_gpu),
    Source((_GENAI,), _genai_devices),
    Source(("reference",), _reference_devices),
)
