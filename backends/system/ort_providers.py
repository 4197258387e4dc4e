"""ONNX Runtime's execution providers as data: a row each says how it comes, what it runs and how far it is tested.

A new provider is a new row. One that keeps KV in its own memory has an engine of its own; all others run in the one
that keeps KV in the host's memory (backends/ort/engine.py), which is correct with any provider, and not fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embedllm.package.graph_variants import DIRECTML, FLOAT16, FLOAT32, GPU_FLOAT32, WEBGPU_FLOAT16

_EVERYWHERE = frozenset({"linux", "win32", "darwin"})
# without which a provider would be there for show; engines of their own ask for more
_PRODUCTS = frozenset({"MatMul", "MatMulNBits"})
GROUP = "embedllm.providers"  # entry points of other packages: NAME = a function that returns its library's path
UNTESTED = "untested here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One execution provider."""

    device: str  # its name in this library
    name: str  # and in ONNX Runtime
    engine: str = "host"  # "cpu", "host" with KV in the host's memory, or the module of this package that has its own
    module: str = ""  # the Python package whose plug-in library brings it; empty: it is part of a build of ONNX Runtime
    variants: tuple[str, ...]  # of the graphs that it may run, best first
    exact: tuple[str, ...] = ()  # those of them that compute in float32 throughout
    hardware: str  # "CPU", "GPU" or "NPU"
    platforms: frozenset[str] = _EVERYWHERE  # as sys.platform says them
    install: str  # what brings it
    options: Mapping[str, str] = field(default_factory=dict)
    runs: frozenset[str] = _PRODUCTS  # operators of which none may be left to the CPU
    takes_defaults: bool = True  # False: an input with a default has to be a constant of the graph
    probed: bool = True  # a tiny model has to run and be right on it before it is used
    tested: str  # what was run on it


_SWAP = "pip uninstall onnxruntime, then "  # a build takes the place of the CPU's: docs/devices.md#conflicts

PROVIDERS = (
    Provider(
        device="cpu",
        name="CPUExecutionProvider",
        engine="cpu",
        variants=(FLOAT32.name,),
        exact=(FLOAT32.name,),
        hardware="CPU",
        install="pip install onnxruntime",
        probed=False,
        tested="Linux x86-64, in every change",
    ),
    Provider(
        device="cuda",
        name="CUDAExecutionProvider",
        engine="cuda",
        variants=(FLOAT16.name,),
        hardware="GPU",
        platforms=frozenset({"linux", "win32"}),
        install=_SWAP + 'pip install "onnxruntime-gpu[cuda,cudnn]"',
        tested="an NVIDIA H200 on Linux",
    ),
    Provider(
        device="webgpu",
        name="WebGpuExecutionProvider",
        engine="webgpu",
        module="onnxruntime_ep_webgpu",
        variants=(WEBGPU_FLOAT16.name, GPU_FLOAT32.name),  # which, the probe finds out: not every GPU has float16
        exact=(GPU_FLOAT32.name,),
        hardware="GPU",
        install="pip install onnxruntime-ep-webgpu",
        tested="a software GPU (lavapipe) on Linux; no hardware",
    ),
    Provider(
        device="directml",
        name="DmlExecutionProvider",
        engine="directml",
        variants=(DIRECTML.name,),
        hardware="GPU",
        platforms=frozenset({"win32"}),
        install=_SWAP + "pip install onnxruntime-directml",
        tested="the real DirectML under Wine, on a software GPU; no hardware",
    ),
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
        install="pip install onnxruntime",
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
        install=_SWAP + "pip install onnxruntime-migraphx",
        options={"device_id": "0"},
        tested=UNTESTED,
    ),
)
# a provider that has no row: "plugin:/path/to/library", or "plugin:NAME" of an entry point
PLUGIN = Provider(
    device="plugin",
    name="",  # the library says it
    module="a library",
    variants=(FLOAT16.name, GPU_FLOAT32.name, FLOAT32.name),
    hardware="GPU",
    install="give the path of its library: plugin:/path/to/library",
    takes_defaults=False,  # nobody knows
    tested="OpenVINO's plug-in, by its path",
)
BY_DEVICE = {provider.device: provider for provider in (*PROVIDERS, PLUGIN)}
