"""The devices of OpenVINO: "openvino", its CPU plugin; "openvino-gpu", "npu" and "npu-on-cpu"; "openvino:TARGET"."""

from __future__ import annotations

import logging
import mmap
import platform
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from embedllm.backends.base import Unsupported
from embedllm.backends.driver import (
    TESTED_LINUX,
    UNTESTED,
    Capabilities,
    DeviceFamily,
    Driver,
    MemoryFootprint,
    Source,
    absent_device,
    family_name,
)
from embedllm.backends.options import OpenVINOOptions
from embedllm.backends.system import hardware
from embedllm.errors import DeviceError
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import (
    EAGLE_FOLDER,
    EAGLE_HIDDEN,
    HEADS_ON_CPU,
    HIDDEN,
    OPENVINO,
    OPENVINO_LATENT,
    STATEFUL,
)
from embedllm.package.package import open_package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedllm.backends.base import Device, Engine, OpenOptions
    from embedllm.backends.openvino.logits_slice import GivenHidden
    from embedllm.package.package import Package

_CPU, _GPU, _NPU, _NPU_ON_CPU = "openvino", "openvino-gpu", "npu", "npu-on-cpu"
_NAMES = (_CPU, _GPU, _NPU, _NPU_ON_CPU)
_INSTALL = "pip install openvino, which is the extra embedllm[openvino]"
_FREE_FORM = f"{_CPU}:"  # a target in OpenVINO's own words follows
_PLUGINS = ("CPU", "GPU", "AUTO", "HETERO")  # with dynamic shapes
_GRAPHS, _CPU_GRAPHS = (OPENVINO,), (OPENVINO, OPENVINO_LATENT)
_X86 = ("x86_64", "amd64")
_TILED = b"experts.tiles"  # in the name of what export/openvino/mlp.py writes for experts in one operation
_log = logging.getLogger("embedllm")


def _devices() -> list[Device]:
    try:
        from embedllm.backends.openvino import runtime
    except ImportError as error:
        reason = f"OpenVINO cannot be imported ({error})"
        return [absent_device(name, "openvino", reason, _INSTALL) for name in _NAMES]
    return runtime.devices()


def _absent(name: str) -> Device | None:
    """Importing OpenVINO takes half a second, which a machine without an Intel GPU need not spend."""
    if family_name(name) != _GPU:
        return None
    vendors = hardware.gpu_vendors()
    if vendors is not None and hardware.INTEL not in vendors:
        return absent_device(name, "openvino", "no Intel GPU is in this machine")
    if find_spec("openvino") is None:
        return absent_device(name, "openvino", "OpenVINO is not installed", _INSTALL)
    return None


def _free_form(name: str, listed: Sequence[Device]) -> list[Device]:
    """A target in OpenVINO's own words, on the word of OpenVINO's CPU device."""
    return [_target_device(name, device) for device in listed if device.name == _CPU and name.startswith(_FREE_FORM)]


def _target_device(name: str, cpu: Device) -> Device:
    target = name.removeprefix(_FREE_FORM)
    described = replace(cpu, name=name, description=f"OpenVINO's {target}")
    plugin = target.partition(":")[0].partition(".")[0].upper()
    if not cpu.available:
        return described
    if plugin == "NPU":
        return replace(described, available=False, reason="it has no dynamic shapes", remedy="use the device 'npu'")
    if plugin not in _PLUGINS:
        reason = f"OpenVINO has no '{target}'"
        return replace(described, available=False, reason=reason, remedy="CPU, GPU, AUTO:... or HETERO:...")
    return described


def _facts(device: str) -> dict[str, str]:
    from embedllm.backends.openvino import runtime

    return runtime.facts(device)


def _open(options: OpenOptions) -> Engine:
    from embedllm.backends.openvino.engine import OvEngine
    from embedllm.backends.openvino.paged_engine import PagedEngine
    from embedllm.backends.openvino.properties import properties
    from embedllm.backends.openvino.runtime import target_of

    graph, target, chosen = options.require_graph(), target_of(options.device.name), _with_kv(options)
    hidden = _given_hidden(options)
    if target == "CPU" and not options.adapts and graph.variant != STATEFUL:
        config = properties(options.package, target, chosen or OpenVINOOptions(), options.runtime.threads,
                            options.exact)  # fmt: skip
        try:
            return PagedEngine(options.package, graph, options.device, config, joins=not options.exact,
                               hidden=hidden)  # fmt: skip
        except DeviceError as error:
            _log.info("replies on '%s' take turns, without paged attention: %s", options.device.name, error)
    return OvEngine(
        options.package,
        graph,
        options.device,
        target,
        options=chosen,
        threads=options.runtime.threads,
        exact=options.exact,
        adapts=options.adapts,
        hidden=hidden,
    )


def _given_hidden(options: OpenOptions) -> GivenHidden | None:
    """What the model's head reads of it; None: it has none. Raises PackageError for an EAGLE-3 head that is damaged."""
    from embedllm.backends.openvino.logits_slice import GivenHidden
    from embedllm.backends.reference.engine import ReferenceEngine

    if options.hidden_graph != EAGLE_HIDDEN.name:
        return GivenHidden() if options.hidden_graph else None
    head = open_package(options.package.folder / EAGLE_FOLDER)
    eagle = head.decoder.eagle
    assert eagle is not None  # as the caller has opened it
    return GivenHidden(eagle.layers, ReferenceEngine(head).matrix(eagle.fc))


def _open_draft_head(options: OpenOptions) -> Engine:
    """On ONNX Runtime's CPU provider, whose memory is the same."""
    from embedllm.backends.ort.driver import open_draft_head

    return open_draft_head(options)


def _with_kv(options: OpenOptions) -> OpenVINOOptions | None:
    """The options with the KV in OpenVINO's own 8-bit type, which is unsigned and needs no calibration."""
    if options.kv is None:
        return options.openvino
    return replace(options.openvino or OpenVINOOptions(), kv="u8")


def _open_npu(options: OpenOptions) -> Engine:
    from embedllm.backends.openvino.npu import NpuEngine

    return NpuEngine(
        options.package,
        options.require_graph(),
        options.device,
        options=options.openvino,
        on_cpu=options.device.name == _NPU_ON_CPU,
        exact=options.exact,
    )


def _open_encoder(options: OpenOptions) -> Engine:
    from embedllm.backends.openvino.encoder import open_openvino

    return open_openvino(options)


def _unsupported(package: Package, kv: str | None) -> Unsupported | None:
    decoder = package.architecture
    if platform.machine().lower() not in _X86 and _tiles_experts(package):
        return Unsupported(
            f"'{package.name}' is a mixture of experts, all of which OpenVINO 2026.4 computes for every token on a "
            f"processor of type '{platform.machine()}'; on x86 it computes the chosen ones",
            "use the device 'cpu'",
        )
    if kv is None or not isinstance(decoder, Decoder) or not any(one.softcap for one in decoder.attentions):
        return None
    return Unsupported(
        f"attention of '{package.name}' has logit soft-capping, which OpenVINO does with a KV of floats only",
        "load it without kv",
    )


def _tiles_experts(package: Package) -> bool:
    """Whether a folder's graph gives all tokens to all experts: those of earlier versions, and of others, do not."""
    decoder, graph = package.architecture, package.graph(OPENVINO)
    if graph is None or not isinstance(decoder, Decoder) or not decoder.is_mixture:
        return False
    with (package.folder / graph.file).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(_TILED) >= 0


def _unsupported_on_npu(package: Package, kv: str | None) -> Unsupported | None:
    packings = package.packing_entries.values()
    if not all(one.get("symmetric", True) for one in packings):
        return Unsupported(
            f"the weights of '{package.name}' have zero points, which the NPU's compiler does not take",
            "export it with --target npu",
        )
    if any(one.get("scale_bits", 16) != 16 for one in packings):
        return Unsupported(
            f"the weights of '{package.name}' have scales in float32, which the NPU's compiler is not known to take",
            "export it again with --bits 4 --target npu",
        )
    if isinstance(package.architecture, Decoder) and package.architecture.is_mixture:
        return Unsupported(
            f"'{package.name}' is a mixture of experts, which take as many tokens as there happen to be; the NPU's "
            "shapes are fixed",
            "use another device",
        )
    return None


_ON_CPU = Capabilities(
    variants=_CPU_GRAPHS,
    exact=_CPU_GRAPHS,
    kv={"int8": _CPU_GRAPHS},
    hidden=dict.fromkeys((HIDDEN.name, EAGLE_HIDDEN.name), _CPU_GRAPHS),
    heads=HEADS_ON_CPU,
    adapters=True,
    recurrent=True,
    chunks=True,
    external_graphs=(STATEFUL,),
    uses_host_memory=True,
    speculates=True,
    # KV of 8 bits with a scale and a zero point for each head
    footprints={False: MemoryFootprint(bits_per_group=85, kv_bits=9, chunk=1024, keeps_scores=True)},
    tested=TESTED_LINUX,
)
_ON_NPU = Capabilities(variants=_GRAPHS, moves_kv=False)

DRIVER = Driver(
    families=(
        DeviceFamily(
            name=_CPU,
            open=_open,
            open_encoder=_open_encoder,
            open_draft_head=_open_draft_head,
            capabilities=_ON_CPU,
            free_form=_free_form,
            free_form_capabilities=replace(
                _ON_CPU,
                variants=_GRAPHS,
                exact=_GRAPHS,
                kv={"int8": _GRAPHS},
                adapters=False,
                uses_host_memory=False,
                speculates=False,
                footprints={},
                hidden={},
            ),
            unsupported_package=_unsupported,
            facts=_facts,
        ),
        DeviceFamily(
            name=_GPU,
            open=_open,
            open_encoder=_open_encoder,
            capabilities=Capabilities(
                variants=_GRAPHS, exact=_GRAPHS, external_graphs=(STATEFUL,), probed=True, tested=UNTESTED
            ),
            facts=_facts,
        ),
        # not probed: compiling takes minutes, and nobody gets it unasked
        DeviceFamily(
            name=_NPU,
            open=_open_npu,
            capabilities=replace(_ON_NPU, tested=f"{UNTESTED}; as 'npu-on-cpu' it is"),
            unsupported_package=_unsupported_on_npu,
            facts=_facts,
        ),
        DeviceFamily(
            name=_NPU_ON_CPU,
            open=_open_npu,
            capabilities=replace(_ON_NPU, exact=_GRAPHS, uses_host_memory=True, tested=TESTED_LINUX),
            unsupported_package=_unsupported_on_npu,
            facts=_facts,
        ),
    ),
    sources=(Source(_NAMES, _devices, _absent),),
)
