"""Providers of ONNX Runtime that run with KV in the host's memory, a row each; a new provider is a new row.

Those of plug-ins that packages announce as entry points, or that are given by the path of their library, come without.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from embedllm.backends.base import Device
from embedllm.backends.driver import UNTESTED, DeviceFamily, Driver, Source, absent_device
from embedllm.backends.ort.driver import CPU, check_exact
from embedllm.backends.ort.providers import (
    GROUP,
    INSTALL,
    PLUGIN,
    SWAP_BUILDS,
    Provider,
    runtime_name,
    runtime_unsupported,
    source,
)
from embedllm.package.graph_variants import FLOAT16, FLOAT32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedllm.backends.base import Engine, OpenOptions

_NO_DEVICES = {"azure"}  # calls a server
# by backends of their own
_DRIVEN_ELSEWHERE = {CPU.name, "CUDAExecutionProvider", "WebGpuExecutionProvider", "DmlExecutionProvider"}

PROVIDERS = (
    Provider(
        device="openvino-ep",
        name="OpenVINOExecutionProvider",
        module="onnxruntime_ep_openvino",
        variants=(FLOAT32.name,),  # the float16 graph: QuickGelu of float16 is not converted (1.8.1)
        hardware="CPU",
        platforms=frozenset({"linux", "win32"}),
        install="pip install onnxruntime-ep-openvino",
        takes_defaults=False,  # "OpenVINO input has no ONNX binding" (1.8.1; tests/backends/devices/test_providers.py)
        tested="Linux x86-64, on the CPU; the device 'openvino' is faster",
    ),
    Provider(
        device="qnn",
        name="QNNExecutionProvider",
        module="onnxruntime_qnn",
        # its NPU takes static shapes and QDQ nodes, for which there is no variant: what it is offered runs on the CPU,
        # and it is refused for that
        variants=(FLOAT32.name,),
        hardware="NPU",
        platforms=frozenset({"linux", "win32"}),
        install="pip install onnxruntime-qnn",
        tested=f"{UNTESTED}; on a machine without its NPU it is found, and refused",
    ),
    Provider(
        device="coreml",
        name="CoreMLExecutionProvider",
        variants=(FLOAT32.name,),
        hardware="GPU",
        platforms=frozenset({"darwin"}),
        install=INSTALL,
        options={"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"},
        tested=UNTESTED,
    ),
    Provider(
        device="tensorrt-rtx",
        name="NvTensorRTRTXExecutionProvider",
        module="onnxruntime_ep_nv_tensorrt_rtx",
        variants=(FLOAT16.name,),
        hardware="GPU",
        platforms=frozenset({"linux", "win32"}),
        install="pip install onnxruntime-ep-nv-tensorrt-rtx",
        tested=UNTESTED,
    ),
    Provider(
        device="migraphx",
        name="MIGraphXExecutionProvider",
        variants=(FLOAT16.name,),
        hardware="GPU",
        platforms=frozenset({"linux"}),
        install=SWAP_BUILDS + "pip install onnxruntime-migraphx",
        options={"device_id": "0"},
        tested=UNTESTED,
    ),
)


def _devices(provider: Provider) -> list[Device]:
    from embedllm.backends.ort import host_providers

    return host_providers.devices(provider)


def _plug_in_devices(name: str, listed: Sequence[Device]) -> list[Device]:
    """The device of a provider's library, "plugin:PATH"."""
    if unsupported := runtime_unsupported():
        return [absent_device(name, runtime_name(), *unsupported)]
    from embedllm.backends.ort import host_providers

    return host_providers.library_devices(name)


def _announced_devices() -> list[Device]:
    """Providers that installed packages announce."""
    from importlib.metadata import entry_points

    if not entry_points(group=GROUP) or runtime_unsupported():
        return []
    from embedllm.backends.ort import host_providers

    return host_providers.announced_devices()


def _unknown_devices() -> list[Device]:
    """Providers of this build of ONNX Runtime that have no row."""
    if runtime_unsupported():
        return []
    from embedllm.backends.ort.runtime import ort

    own_providers = _DRIVEN_ELSEWHERE | {provider.name for provider in PROVIDERS}
    others = {
        provider.removesuffix("ExecutionProvider").lower(): provider
        for provider in ort.get_available_providers()
        if provider not in own_providers and provider in ort.get_all_providers()  # which leaves out those of plug-ins
    }
    reason = "this version of embedllm does not drive this provider"
    backend = f"onnxruntime {ort.__version__}"
    return [
        Device(name=name, backend=backend, description=provider, available=False, reason=reason)
        for name, provider in others.items()
        if name not in _NO_DEVICES
    ]


def _open(provider: Provider, options: OpenOptions) -> Engine:
    from embedllm.backends.ort.engine import OrtEngine
    from embedllm.backends.ort.host_providers import attachment

    return OrtEngine(
        options.package,
        options.require_graph(),
        options.device,
        runtime=options.runtime,
        exact=options.exact,
        attachment=attachment(provider, options.device),
    )


def _family(provider: Provider) -> DeviceFamily:
    return DeviceFamily(
        name=provider.device,
        open=partial(_open, provider),
        capabilities=provider.capabilities(),
        python_package=provider.module,
        version=provider.version,
        check_exact=check_exact if FLOAT32.name in provider.variants else None,
    )


DRIVER = Driver(
    families=(
        *(_family(provider) for provider in PROVIDERS),
        DeviceFamily(
            name=PLUGIN.device,
            open=partial(_open, PLUGIN),
            capabilities=PLUGIN.capabilities(),
            free_form=_plug_in_devices,
            names_paths=True,
            version=PLUGIN.version,
            check_exact=check_exact,
        ),
    ),
    sources=(
        *(source(provider, partial(_devices, provider)) for provider in PROVIDERS),
        Source((PLUGIN.device,), list),  # by name only
        Source((), _announced_devices),
        Source((), _unknown_devices),
    ),
)
