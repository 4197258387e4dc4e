"""How each device runs a folder: which graphs, and which engine opens them. A row per family of device names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from embedllm.backends.base import Device, Engine, OpenOptions
from embedllm.backends.devices.selection import family_of
from embedllm.backends.options import OpenVINOOptions
from embedllm.backends.system.ort_providers import PLUGIN, PROVIDERS, UNTESTED, Provider
from embedllm.errors import DeviceError
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import EXTERNAL, GENAI, INT4_KV, INT8_KV, OPENVINO, STATEFUL
from embedllm.package.package import Package

_log = logging.getLogger("embedllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """How a device runs a folder."""

    open: Callable[[OpenOptions], Engine]
    variants: tuple[str, ...] = ()  # of the graphs that it may run, best first; none: it reads the weights itself
    exact: tuple[str, ...] = ()  # those of them that it can compute in float32 throughout
    kv: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # as `variants`, by the type of a quantized KV
    provider: Provider | None = None  # of ONNX Runtime
    shares: bool = True  # its sessions give their KV away and take that of others
    zero_points: bool = True  # it runs weights that have some
    odd_zero_points: bool = True  # and those of 4 bits whose rows have an odd number of them
    mixtures: bool = True  # of experts
    recurrent: bool = False  # its sessions keep states of fixed size, too, and are rewound by copies of them
    adapts: bool = False  # its sessions take adapters
    external_graphs: tuple[str, ...] = ()  # variants of graphs of other exporters that it runs
    probed: bool = False  # a tiny model has to run and be right on it before it is used
    # the same for a model that embeds or scores texts; None: it runs none
    open_encoder: Callable[[OpenOptions], Engine] | None = None
    tested: str = ""  # what it was run on
    # why its runtime cannot do what is asked (exact), and what helps; asked of devices that are there
    lack: Callable[[bool], tuple[str, str] | None] = lambda exact: None

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU that ONNX Runtime drives."""
        return self.provider is not None and self.provider.hardware == "GPU"

    def wanted(self, *, exact: bool, kv: str | None, variants: Sequence[str]) -> list[str]:
        """Of the graphs that do what is asked, best first; variants: that may be used, all when there are none."""
        found = self.kv.get(kv, ()) if kv else self.exact if exact else self.variants
        return [one for one in found if not variants or one in variants]

    def graphs(
        self, package: Package, *, exact: bool = False, kv: str | None = None, variants: Sequence[str] = ()
    ) -> list[Graph]:
        """Those of a folder."""
        if kv is None and (found := [graph for graph in package.graphs if graph.variant in self.external_graphs]):
            return found
        allowed = self.wanted(exact=exact, kv=kv, variants=variants)
        return [graph for one in allowed if (graph := package.graph(one)) is not None]


def driver_of(name: str) -> Driver | None:
    """Of the device with that name, listed or not; None when there is no such family."""
    return _DRIVERS.get(family_of(name))


def known_driver(device: Device) -> Driver:
    """Of a device that was listed."""
    driver = driver_of(device.name)
    assert driver is not None
    return driver


def _graph(choices: OpenOptions) -> Graph:
    assert choices.graph is not None  # the driver has variants
    return choices.graph


def _open_cpu(provider: Provider, choices: OpenOptions) -> Engine:
    from embedllm.backends.ort.engine import OrtEngine, warn_of_age

    warn_of_age()
    return OrtEngine(
        choices.package,
        _graph(choices),
        choices.device,
        runtime=choices.runtime,
        exact=choices.exact,
        adapts=choices.adapts,
    )


def _cpu_lack(exact: bool) -> tuple[str, str] | None:
    from embedllm.backends.ort.engine import age_lack

    return age_lack(exact=exact)


def _open_host(provider: Provider, choices: OpenOptions) -> Engine:
    from embedllm.backends.ort.engine import OrtEngine
    from embedllm.backends.ort.host_providers import attachment

    return OrtEngine(
        choices.package,
        _graph(choices),
        choices.device,
        runtime=choices.runtime,
        exact=choices.exact,
        attachment=attachment(provider, choices.device),
    )


def _open_cuda(provider: Provider, choices: OpenOptions) -> Engine:
    from embedllm.backends.gpu.cuda import CudaEngine

    return CudaEngine(choices.package, _graph(choices), choices.device)


def _open_webgpu(provider: Provider, choices: OpenOptions) -> Engine:
    from embedllm.backends.gpu.webgpu import WebGpuEngine

    return WebGpuEngine(choices.package, _graph(choices), choices.device)


def _open_directml(provider: Provider, choices: OpenOptions) -> Engine:
    from embedllm.backends.gpu.directml import DirectMLEngine

    return DirectMLEngine(choices.package, _graph(choices), choices.device)


def _open_provider(provider: Provider, choices: OpenOptions) -> Engine:
    """A provider of ONNX Runtime."""
    if choices.graph is not None and choices.graph.variant == EXTERNAL.name:
        return _open_traced(provider.engine, choices)
    return _ENGINES[provider.engine](provider, choices)


def _open_traced(kind: str, choices: OpenOptions) -> Engine:
    """A graph that another exporter has written. kind: a provider's `engine`."""
    from embedllm.backends.external_graph import placement
    from embedllm.backends.external_graph.engine import ExternalGraphEngine

    if kind == "cpu":
        from embedllm.backends.ort.engine import warn_of_age

        warn_of_age()
        place = placement.on_host(choices.device, choices.runtime, exact=choices.exact)
    elif kind == "cuda":
        place = placement.on_cuda(choices.device)
    elif kind == "webgpu":
        place = placement.on_webgpu(choices.device)
    else:
        place = placement.on_directml(choices.device, choices.package.context)
    return ExternalGraphEngine(choices.package, _graph(choices), place)


def _open_ov(choices: OpenOptions) -> Engine:
    from embedllm.backends.openvino.engine import OvEngine, properties
    from embedllm.backends.openvino.paged_engine import PagedEngine
    from embedllm.backends.openvino.runtime import target_of

    graph, target, options = _graph(choices), target_of(choices.device.name), _with_kv(choices)
    if target == "CPU" and not choices.adapts and graph.variant != STATEFUL:
        chosen = properties(target, options or OpenVINOOptions(), choices.runtime.threads, choices.exact)
        try:
            return PagedEngine(choices.package, graph, choices.device, chosen, joins=not choices.exact)
        except DeviceError as error:
            _log.info("replies on '%s' take turns, without paged attention: %s", choices.device.name, error)
    return OvEngine(choices.package, graph, choices.device, target, options=options, threads=choices.runtime.threads,
                    exact=choices.exact, adapts=choices.adapts)  # fmt: skip


def _with_kv(choices: OpenOptions) -> OpenVINOOptions | None:
    """The options with the KV in OpenVINO's own 8-bit type, which is unsigned and needs no calibration."""
    if choices.kv is None:
        return choices.openvino
    return replace(choices.openvino or OpenVINOOptions(), kv="u8")


def _open_npu(choices: OpenOptions) -> Engine:
    from embedllm.backends.openvino.npu import NpuEngine

    return NpuEngine(
        choices.package,
        _graph(choices),
        choices.device,
        options=choices.openvino,
        on_cpu=choices.device.name == "npu-on-cpu",
        exact=choices.exact,
    )


def _open_genai(choices: OpenOptions) -> Engine:
    from embedllm.backends.genai.engine import GenaiEngine

    return GenaiEngine(choices.package, _graph(choices), choices.device, choices.runtime)


def _genai_lack(exact: bool) -> tuple[str, str] | None:
    return ("onnxruntime-genai cannot be told to round nothing", "load it without exact") if exact else None


def _open_reference(choices: OpenOptions) -> Engine:
    from embedllm.backends.reference.engine import ReferenceEngine

    return ReferenceEngine(choices.package)


def _open_encoder(kind: str, choices: OpenOptions) -> Engine:
    from embedllm.backends import encoder_engine

    opened: Engine = getattr(encoder_engine, f"open_{kind}")(choices)
    return opened


# by a provider's `engine`
_ENGINES = {
    "cpu": _open_cpu,
    "host": _open_host,
    "cuda": _open_cuda,
    "webgpu": _open_webgpu,
    "directml": _open_directml,
}
# by a provider's `engine` too, where there is anything to ask
_LACKS = {"cpu": _cpu_lack}
_QUANTIZED = {"cpu": {"int8": (INT8_KV.name,), "int4": (INT4_KV.name,)}}
_ENCODERS = ("cpu", "cuda")  # by a provider's `engine`: those that run models that embed or score texts
_TRACED = ("cpu", "cuda", "webgpu", "directml")  # likewise: those that run graphs of other exporters
_OV = (OPENVINO,)
_DRIVERS = {
    provider.device: Driver(
        open=partial(_open_provider, provider),
        variants=provider.variants,
        exact=provider.exact,
        kv=_QUANTIZED.get(provider.engine, {}),
        provider=provider,
        adapts=provider.engine == "cpu",
        recurrent=provider.engine == "cpu",
        odd_zero_points=provider.engine != "cuda",
        external_graphs=(EXTERNAL.name,) if provider.engine in _TRACED else (),
        probed=provider.probed,
        tested=provider.tested,
        lack=_LACKS.get(provider.engine, lambda exact: None),
        open_encoder=partial(_open_encoder, provider.engine) if provider.engine in _ENCODERS else None,
    )
    for provider in (*PROVIDERS, PLUGIN)
} | {
    "openvino": Driver(
        open=_open_ov,
        variants=_OV,
        exact=_OV,
        kv={"int8": _OV},
        adapts=True,
        recurrent=True,
        external_graphs=(STATEFUL,),
        open_encoder=partial(_open_encoder, "openvino"),
        tested="Linux x86-64, in every change",
    ),
    "openvino-gpu": Driver(
        open=_open_ov,
        variants=_OV,
        exact=_OV,
        external_graphs=(STATEFUL,),
        probed=True,
        open_encoder=partial(_open_encoder, "openvino"),
        tested=UNTESTED,
    ),
    # not probed: compiling takes minutes, and nobody gets it unasked
    "npu": Driver(
        open=_open_npu,
        variants=_OV,
        shares=False,
        zero_points=False,
        mixtures=False,
        tested=f"{UNTESTED}; as 'npu-on-cpu' it is",
    ),
    "npu-on-cpu": Driver(
        open=_open_npu,
        variants=_OV,
        exact=_OV,
        shares=False,
        zero_points=False,
        mixtures=False,
        tested="Linux x86-64, in every change",
    ),
    "genai": Driver(
        open=_open_genai,
        shares=False,
        external_graphs=(GENAI,),
        tested="Linux x86-64 on the CPU, in every change",
        lack=_genai_lack,
    ),
    "reference": Driver(
        open=_open_reference,
        shares=False,
        adapts=True,
        recurrent=True,
        open_encoder=partial(_open_encoder, "reference"),
        tested="Linux x86-64, in every change",
    ),
}
