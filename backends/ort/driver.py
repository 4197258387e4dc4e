"""The device "cpu": ONNX Runtime's own provider."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from embedllm.backends.driver import TESTED_LINUX, BatchBuffers, DeviceFamily, Driver, MemoryFootprint
from embedllm.backends.ort.providers import INSTALL, Provider, source
from embedllm.errors import PackageError
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.graph_variants import (
    EAGLE_HIDDEN,
    EXTERNAL,
    FLOAT32,
    FUSED,
    HEADS_ON_CPU,
    HIDDEN,
    INT4_KV,
    INT8_KV,
    MULTIMODAL,
    QMOE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedllm.backends.base import Device, Engine, OpenOptions, Unsupported
    from embedllm.package.package import Package

_HEEDED = 32  # the group for which ONNX Runtime 1.31 heeds mlas.qnbit.force_fp32 (docs/numerics.md)
CPU = Provider(
    device="cpu",
    name="CPUExecutionProvider",
    variants=(QMOE.name, MULTIMODAL.name, FLOAT32.name),
    exact=(MULTIMODAL.name, FLOAT32.name),
    hardware="CPU",
    install=INSTALL,
    probed=False,
    tested=TESTED_LINUX,
)


def _devices() -> list[Device]:
    from embedllm.backends.ort.engine import devices

    return devices()


def _open(options: OpenOptions) -> Engine:
    from embedllm.backends.checks import cannot_run
    from embedllm.backends.ort.engine import OrtEngine, unsupported_graph, unsupported_latents, warn_of_age

    warn_of_age()
    if reason := unsupported_graph(options.require_graph(), options.runtime):
        raise cannot_run(options.device, reason, "use the graph 'generic-float32'")
    if unsupported := unsupported_latents(options.require_graph()):
        raise cannot_run(options.device, *unsupported)
    if options.require_graph().variant == EXTERNAL.name:
        from embedllm.backends.ort.external_graph.engine import ExternalGraphEngine
        from embedllm.backends.ort.external_graph.placement import on_host

        placement = on_host(options.device, options.runtime, exact=options.exact)
        return ExternalGraphEngine(options.package, options.require_graph(), placement)
    return OrtEngine(
        options.package,
        options.require_graph(),
        options.device,
        runtime=options.runtime,
        exact=options.exact,
        adapts=options.adapts,
    )


def open_draft_head(options: OpenOptions) -> Engine:
    """Of a target model that runs on a processor, here or by another runtime."""
    from embedllm.backends.checks import cannot_run
    from embedllm.backends.ort.draft_head import open_on_host
    from embedllm.backends.ort.engine import unsupported_graph

    graph = options.require_graph()
    if reason := unsupported_graph(graph, options.runtime):
        raise cannot_run(options.device, reason, "use the head's graph without QMoE")
    return open_on_host(options.package, graph, options.device, runtime=options.runtime, exact=options.exact)


def _open_encoder(options: OpenOptions) -> Engine:
    from embedllm.backends.ort.encoder import open_cpu

    return open_cpu(options)


def _unsupported_request(exact: bool) -> Unsupported | None:
    from embedllm.backends.ort.engine import unsupported_exact

    return unsupported_exact(exact=exact)


def check_exact(package: Package) -> None:
    """Raises PackageError when the graph has products that round their activations, whatever the runtime is told."""
    recipe = package.manifest.get("recipe")
    if not isinstance(recipe, dict) or recipe.get("exact"):
        return
    decoder = package.architecture
    # an embedding alone is no product
    looked_up = set() if isinstance(decoder, ExternalGraph) else {decoder.embedding.name} - {decoder.head.name}
    entries = (entry for name, entry in package.packing_entries.items() if name not in looked_up)
    if rounded := next((matrices for entry in entries if (matrices := _rounded(entry))), ""):
        raise PackageError(
            f"'{package.name}' cannot be loaded with exact=True: it has {rounded}, whose products round their "
            "activations unless the folder was exported with --exact. Load it without exact; or on the device "
            "'reference', which rounds nothing and is slow; or, with its checkpoint at hand, export it so."
        )


def _rounded(packing: Mapping[str, object]) -> str:
    """What of a matrix is rounded though ONNX Runtime is told not to; empty where it heeds that."""
    bits, group = packing.get("bits"), packing.get("group_size")
    if bits == 4 and group != _HEEDED:
        return f"4-bit matrices in groups of {group}"
    return "8-bit matrices" if bits == 8 else ""


DRIVER = Driver(
    families=(
        DeviceFamily(
            name=CPU.device,
            open=_open,
            open_encoder=_open_encoder,
            open_draft_head=open_draft_head,
            capabilities=replace(
                CPU.capabilities(),
                kv={"int8": (INT8_KV.name,), "int4": (INT4_KV.name,)},
                hidden={one.name: (FUSED[one.name].name, one.name) for one in (HIDDEN, EAGLE_HIDDEN)},
                heads=HEADS_ON_CPU,
                external_graphs=(EXTERNAL.name,),
                adapters=True,
                recurrent=True,
                state_places=2,
                batches=BatchBuffers(rows=16, state_places=2, copies_kv=False),  # shared_states.py
                chunks=True,
                uses_host_memory=True,
                speculates=True,
                frees_windows=sys.platform == "linux",  # as sparse_memory.GIVES_BACK
                footprints={
                    False: MemoryFootprint(bits_per_group=96, kv_bits=32, chunk=512),
                    True: MemoryFootprint(bits_per_group=32, kv_bits=32, chunk=512),
                },
            ),
            unsupported_request=_unsupported_request,
            check_exact=check_exact,
        ),
    ),
    sources=(source(CPU, _devices),),
)
