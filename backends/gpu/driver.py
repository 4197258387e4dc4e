"""The devices "cuda", "webgpu" and "directml": GPUs of ONNX Runtime whose KV stays in their own memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from embedllm.backends.base import Unsupported
from embedllm.backends.driver import DeviceFamily, Driver
from embedllm.backends.gpu.webgpu_batch_limits import WEBGPU_BATCHES
from embedllm.backends.ort.providers import SWAP_BUILDS, Provider, source
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import DIRECTML as DIRECTML_GRAPH
from embedllm.package.graph_variants import (
    EXTERNAL,
    FLOAT16,
    GPU_FLOAT32,
    HEADS_ON_CUDA,
    HIDDEN_ON_CUDA,
    QMOE_FLOAT16,
    WEBGPU_FLOAT16,
)

if TYPE_CHECKING:
    from embedllm.backends.base import Device, Engine, OpenOptions
    from embedllm.backends.ort.external_graph.placement import Placement
    from embedllm.package.package import Package

CUDA = Provider(
    device="cuda",
    name="CUDAExecutionProvider",
    variants=(QMOE_FLOAT16.name, FLOAT16.name),
    hardware="GPU",
    platforms=frozenset({"linux", "win32"}),
    install=SWAP_BUILDS + 'pip install "onnxruntime-gpu[cuda,cudnn]"',
    tested="an NVIDIA H200 on Linux",
)
WEBGPU = Provider(
    device="webgpu",
    name="WebGpuExecutionProvider",
    module="onnxruntime_ep_webgpu",
    variants=(WEBGPU_FLOAT16.name, GPU_FLOAT32.name),  # which, the probe finds out: not every GPU has float16
    exact=(GPU_FLOAT32.name,),
    hardware="GPU",
    install="pip install onnxruntime-ep-webgpu",
    tested="a software GPU (lavapipe) on Linux; no hardware",
)
DIRECTML = Provider(
    device="directml",
    name="DmlExecutionProvider",
    variants=(DIRECTML_GRAPH.name,),
    hardware="GPU",
    platforms=frozenset({"win32"}),
    install=SWAP_BUILDS + "pip install onnxruntime-directml",
    tested="the real DirectML under Wine, on a software GPU; no hardware",
)


def _cuda_devices() -> list[Device]:
    from embedllm.backends.gpu import cuda

    return cuda.devices()


def _webgpu_devices() -> list[Device]:
    from embedllm.backends.gpu import webgpu_devices

    return webgpu_devices.devices()


def _directml_devices() -> list[Device]:
    from embedllm.backends.gpu import directml

    return directml.devices()


def _open_cuda(options: OpenOptions) -> Engine:
    if _is_external(options):
        from embedllm.backends.gpu.external_placement import on_cuda

        return _open_external(options, on_cuda(options.device))
    from embedllm.backends.checks import cannot_run
    from embedllm.backends.gpu.cuda import CudaEngine, index_of, unsupported_graph

    if reason := unsupported_graph(options.require_graph(), index_of(options.device.name)):
        raise cannot_run(options.device, reason, "use the graph 'generic-float16'")
    if options.package.decoder.is_recurrent:
        from embedllm.backends.gpu.cuda_recurrent import open_recurrent

        return open_recurrent(options.package, options.require_graph(), options.device)
    return CudaEngine(options.package, options.require_graph(), options.device)


def _open_cuda_head(options: OpenOptions) -> Engine:
    """Of a target model that runs on the same GPU."""
    from embedllm.backends.checks import cannot_run
    from embedllm.backends.gpu.cuda import CudaHeadEngine, index_of, unsupported_graph
    from embedllm.backends.sessions.draft_head import DraftHeadEngine

    graph = options.require_graph()
    if reason := unsupported_graph(graph, index_of(options.device.name)):
        raise cannot_run(options.device, reason, "use the head's graph without QMoE")
    return DraftHeadEngine(CudaHeadEngine(options.package, graph, options.device))


def _open_webgpu(options: OpenOptions) -> Engine:
    if _is_external(options):
        from embedllm.backends.gpu.external_placement import on_webgpu

        return _open_external(options, on_webgpu(options.device))
    from embedllm.backends.gpu.webgpu import WebGpuEngine

    # not when exact: products round by their number of rows, and a reply would depend on what runs beside it
    return WebGpuEngine(options.package, options.require_graph(), options.device, joins=not options.exact)


def _unsupported_on_webgpu(package: Package, kv: str | None) -> Unsupported | None:
    decoder = package.architecture
    if not isinstance(decoder, Decoder) or not any(attention.softcap for attention in decoder.attentions):
        return None
    return Unsupported(
        f"attention of '{package.name}' has logit soft-capping, which WebGPU's attention leaves out",
        "use another device",
    )


def _open_directml(options: OpenOptions) -> Engine:
    if _is_external(options):
        from embedllm.backends.gpu.external_placement import on_directml

        return _open_external(options, on_directml(options.device, options.package.context))
    from embedllm.backends.gpu.directml import DirectMLEngine

    return DirectMLEngine(options.package, options.require_graph(), options.device)


def _is_external(options: OpenOptions) -> bool:
    return options.require_graph().variant == EXTERNAL.name


def _open_external(options: OpenOptions, placement: Placement) -> Engine:
    """A graph that another exporter has written."""
    from embedllm.backends.ort.external_graph.engine import ExternalGraphEngine

    return ExternalGraphEngine(options.package, options.require_graph(), placement)


def _open_cuda_encoder(options: OpenOptions) -> Engine:
    from embedllm.backends.gpu.encoder import open_cuda

    return open_cuda(options)


DRIVER = Driver(
    families=(
        DeviceFamily(
            name=CUDA.device,
            open=_open_cuda,
            open_encoder=_open_cuda_encoder,
            open_draft_head=_open_cuda_head,
            # its operators misread them: docs/cuda.md
            capabilities=replace(
                CUDA.capabilities(),
                hidden=HIDDEN_ON_CUDA,
                heads=HEADS_ON_CUDA,
                external_graphs=(EXTERNAL.name,),
                odd_zero_points=False,
                recurrent=True,
                state_places=2,  # state_pool.py
            ),
            version=CUDA.version,
        ),
        DeviceFamily(
            name=WEBGPU.device,
            open=_open_webgpu,
            capabilities=replace(
                WEBGPU.capabilities(),
                external_graphs=(EXTERNAL.name,),
                recurrent=True,
                state_places=5,  # webgpu_states.py
                batches=WEBGPU_BATCHES,
            ),
            unsupported_package=_unsupported_on_webgpu,  # docs/webgpu.md#faults
            python_package=WEBGPU.module,
            version=WEBGPU.version,
        ),
        DeviceFamily(
            name=DIRECTML.device,
            open=_open_directml,
            capabilities=replace(DIRECTML.capabilities(), external_graphs=(EXTERNAL.name,)),
            version=DIRECTML.version,
        ),
    ),
    sources=(
        source(CUDA, _cuda_devices),
        source(WEBGPU, _webgpu_devices),
        source(DIRECTML, _directml_devices),
    ),
)
