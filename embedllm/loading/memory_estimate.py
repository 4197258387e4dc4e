"""What a model needs on a device, before it is loaded, against what is there: weights, KV cache and scratch memory."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace

from embedllm.backends.base import Device, Unsupported
from embedllm.backends.devices.drivers import capabilities
from embedllm.backends.driver import Capabilities, MemoryFootprint
from embedllm.backends.needed_memory import MemoryEstimate
from embedllm.backends.sessions.window_retention import most_rows
from embedllm.files.free_memory import free_bytes
from embedllm.files.switches import switch
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.weights import Linear
from embedllm.package.entries import LATENT_AND_VALUES
from embedllm.package.external_graph import ExternalGraph
from embedllm.package.graph_variants import VARIANTS
from embedllm.package.package import Package
from embedllm.package.recurrent_state import recurrent_mixer, state_bytes, state_kinds
from embedllm.package.tensors import (
    kv_bytes,
    kv_windows,
    linears,
    mixer_inputs,
    mlps,
    outer_matrices,
    parameters,
    vision_runs,
)

SWITCH = "EMBEDLLM_FIT"  # environment variable: "off" loads what is not expected to fit
LEAST = 256  # tokens of context that have to fit, or all of a package that holds fewer
_OWN = 20 << 20  # bytes of a runtime, its graph and a tokenizer, without the process that they are in
_FLOAT = 32  # bits
_QUANTIZED = {"int8": 9, "int4": 5}  # bits of a value of the KV with a share of a scale, rounded up


def estimate_memory(
    package: Package,
    device: Device,
    *,
    context: int | None = None,
    exact: bool = False,
    kv: str | None = None,
    adapter_bytes: int = 0,
    latents: bool | None = None,
) -> MemoryEstimate:
    """What a model needs on an available device; of a pair, which holds two copies of the weights, both together.

    context: tokens of the sequence; None: as many as the package holds. kv: as in load().
    adapter_bytes: of all adapters, which the halves of a pair share. latents: as OpenVINOOptions has it.
    Raises ValueError for a context that the package cannot hold.
    """
    from embedllm.backends.devices import registry

    length = package.context if context is None else context
    if not 1 <= length <= package.context:
        raise ValueError(f"context is {length} tokens; expected 1 to {package.context}, what this package holds.")
    parts = registry.parts(package, device, exact=exact)
    free = _free_bytes(parts)

    def needs(tokens: int, variants: tuple[str, ...]) -> MemoryEstimate:
        estimates = [_needs(package, part, tokens, exact=exact, kv=kv, variants=variants) for part in parts]
        return replace(
            estimates[0],
            variants=variants,
            device=device.name,
            weights_bytes=sum(one.weights_bytes for one in estimates) + adapter_bytes,
            kv_bytes=max(one.kv_bytes for one in estimates),  # it is held once
            scratch_bytes=sum(one.scratch_bytes for one in estimates),
            free_bytes=free,
            is_measured=all(one.is_measured for one in estimates),
        )

    variants = _of_latents(package, parts, exact=exact, kv=kv)
    # docs/performance.md#mla: steps and prompts take longer over latents
    if not latents and (latents is False or needs(package.context, ()).fits is not False):
        variants = ()
    if free is None:
        return _with_batches(needs(length, variants), package, parts, exact=exact)
    lengths = range(1, package.context + 1)
    largest = bisect_right(lengths, free, key=lambda tokens: needs(tokens, variants).needed_bytes)
    found = replace(needs(length, variants), largest_context=largest if largest >= min(LEAST, package.context) else 0)
    return _with_batches(found, package, parts, exact=exact)


def shortfall(
    package: Package,
    device: Device,
    *,
    estimate: MemoryEstimate | None = None,
    exact: bool = False,
    kv: str | None = None,
    adapter_bytes: int = 0,
    latents: bool | None = None,
) -> Unsupported | None:
    """Why a device has too little memory for a model, and what helps; None when it fits, or when that is not told.

    estimate: what estimate_memory() gave of the same, for a caller that has it already.
    """
    if switch(SWITCH) == "off":
        return None
    if estimate is not None and estimate.largest_context != 0:
        return None
    context = min(LEAST, package.context)
    least = estimate_memory(package, device, context=context, exact=exact, kv=kv, adapter_bytes=adapter_bytes,
                            latents=latents)  # fmt: skip
    if least.free_bytes is None or least.fits:
        return None
    reason = f"it has too little memory: '{package.name}' needs {least}; {least.free_bytes / 2**20:,.0f} MiB are free"
    remedy = f"close other programs, or take a smaller model; {SWITCH}=off loads it all the same, by swapping"
    return Unsupported(reason, remedy)


def _of_latents(package: Package, parts: list[Device], *, exact: bool, kv: str | None) -> tuple[str, ...]:
    """The variants of graphs that keep latents beside those with whole keys and values, which a device prefers."""
    if len(parts) > 1:
        return ()
    graphs = capabilities(parts[0]).graphs(package, exact=exact, kv=kv)
    return tuple(graph.variant for graph in graphs if graph.kv == LATENT_AND_VALUES)


def _needs(
    package: Package, device: Device, tokens: int, *, exact: bool, kv: str | None, variants: tuple[str, ...]
) -> MemoryEstimate:
    """On one device."""
    decoder = package.architecture
    can = capabilities(device)
    footprint = can.footprints.get(exact)
    weights, kv_bits, scratch = package.stored.bytes, _kv_bits(package, can, exact=exact), 0
    graphs = can.graphs(package, exact=exact, kv=kv, variants=variants)
    graph_kv = graphs[0].kv if graphs else ""
    held_states = can.state_places * _state_bytes(decoder, graphs[0].variant if graphs else "")
    if can.dequantizes:
        weights = 4 * parameters(decoder)
    if isinstance(decoder, ExternalGraph):
        kv_bits = 2 * _FLOAT  # a step's KV is another copy
    elif footprint is not None:
        weights = _OWN + _packed_bytes(package, footprint, is_latent=bool(graph_kv))
        kv_bits = min(footprint.kv_bits, _QUANTIZED.get(kv or "", _FLOAT))
        scratch = _scratch(decoder, footprint, tokens, is_latent=bool(graph_kv))
    return MemoryEstimate(
        model=package.name,
        device=device.name,
        context=tokens,
        weights_bytes=weights,
        kv_bytes=int(_kv_values(decoder, can, tokens, graph_kv) * kv_bits / 8) + held_states,
        scratch_bytes=scratch,
        free_bytes=None,
        largest_context=None,
        is_measured=footprint is not None and kv is None and not isinstance(decoder, ExternalGraph),
    )


def _with_batches(estimate: MemoryEstimate, package: Package, parts: list[Device], *, exact: bool) -> MemoryEstimate:
    """With the buffers of sequences that step together. Where there is no room for these, the sequences take turns."""
    decoder, can = package.architecture, capabilities(parts[0])
    if can.batches is None or len(parts) > 1 or exact or isinstance(decoder, ExternalGraph):
        return estimate
    values = can.batches.state_places * state_bytes(decoder, 1)
    if can.batches.copies_kv:
        if decoder.encoder is not None or decoder.is_mixture or any(kv_windows(decoder)):  # docs/webgpu.md#batches
            return estimate
        values += kv_bytes(decoder, estimate.context, 1)
    size = can.batches.rows * values * _kv_bits(package, can, exact=exact) // 8
    size = int(min(size, can.batches.most_bytes(parts[0].memory)))
    if estimate.free_bytes is not None:
        size = min(size, max(estimate.free_bytes - estimate.needed_bytes, 0))
    return replace(estimate, batch_bytes=size)


def _kv_values(decoder: Decoder | ExternalGraph, can: Capabilities, tokens: int, graph_kv: str) -> int:
    """Of a sequence. graph_kv: as Graph.kv has it."""
    values = kv_bytes(decoder, tokens, 1, kv=graph_kv)
    if not can.frees_windows or isinstance(decoder, ExternalGraph):
        return values
    if decoder.is_recurrent or decoder.encoder is not None:
        return values
    for attention, window in zip(decoder.kv_attentions, kv_windows(decoder), strict=True):
        if window is not None:
            gone = tokens - most_rows(window, tokens, can.footprints[False].chunk)
            values -= 2 * attention.kv_heads * attention.head_dim * gone
    return values


def _state_bytes(decoder: Decoder | ExternalGraph, variant_name: str) -> int:
    """Of the states of a sequence, once."""
    variant = next((one for one in VARIANTS if one.name == variant_name), None)
    if variant is None or isinstance(decoder, ExternalGraph):  # OpenVINO's model, or NumPy
        return state_bytes(decoder)
    kinds = state_kinds(decoder, variant).values()
    return sum((2 if kind == "float16" else 4) * math.prod(shape) for kind, shape in kinds)


def _packed_bytes(package: Package, footprint: MemoryFootprint, *, is_latent: bool) -> int:
    """Bytes of the matrices as a runtime packs them; an embedding that is only looked up stays in the mapped file.

    is_latent: what expands latents is there as floats.
    """
    packings = package.packing_entries
    floats = {part.name for each in package.decoder.attentions for part in (each.k, each.v) if is_latent}
    bits = 0.0
    for matrix in _products(package.decoder):
        of_weight = _FLOAT if matrix.name in floats else _bits(packings.get(matrix.name), footprint)
        bits += matrix.rows * matrix.columns * of_weight
    return int(bits / 8)


def _bits(packing: Mapping[str, object] | None, footprint: MemoryFootprint) -> float:
    """Of a weight, by what the manifest says of its matrix; plain floats become float32 on the CPU."""
    packing = packing or {}
    bits, group = packing.get("bits"), packing.get("group_size")
    if isinstance(bits, int) and bits <= 8 and isinstance(group, int) and group > 0:
        minimum = _FLOAT if packing.get("has_minimum") else 0
        return bits + (footprint.bits_per_group + minimum) / group
    return _FLOAT


def _products(decoder: Decoder) -> Iterator[Linear]:
    for layer in decoder.layers:
        yield from linears(layer)
    yield from outer_matrices(decoder)
    yield from (linear for run in vision_runs(decoder) for linear in run)
    yield decoder.head


def _scratch(decoder: Decoder, footprint: MemoryFootprint, tokens: int, *, is_latent: bool) -> int:
    """Bytes of the activations of a chunk in the widest layer, twice, and of the scores where they are kept."""
    chunk, later = min(tokens, footprint.chunk), min(max(tokens - footprint.chunk, 0), footprint.chunk)
    widest = max(_widest(layer) + _mixer_values(layer, is_latent=is_latent) for layer in decoder.layers)
    heads = max((attention.heads for attention in decoder.attentions), default=0) if footprint.keeps_scores else 0
    return 4 * (2 * chunk * (widest + 2 * decoder.hidden) + heads * later * tokens)


def _widest(layer: Layer) -> int:
    """Values of a token inside an mlp; of a mixture, in all the mlps that it goes through."""
    mlp = layer.mlp
    used = mlp.top_k + (mlp.shared is not None) if isinstance(mlp, Moe) else 1
    return used * max((2 * each.up.rows for each in mlps(mlp)), default=0)


def _mixer_values(layer: Layer, *, is_latent: bool) -> int:
    """Values of a token inside attention, and what is in its place or beside it."""
    attention, recurrent = layer.attention, recurrent_mixer(layer)
    values = 0 if recurrent is None else sum(linear.rows for linear in mixer_inputs(recurrent))
    if isinstance(attention, Attention):
        kv = 2 * attention.heads * attention.latent_dim if is_latent else 2 * attention.kv_heads * attention.head_dim
        values += attention.heads * attention.head_dim + kv
    return values


def _kv_bits(package: Package, can: Capabilities, *, exact: bool) -> int:
    graphs = can.graphs(package, exact=exact)
    return 16 if graphs and graphs[0].activations == "float16" else 32


def _free_bytes(parts: list[Device]) -> int | None:
    """Of the memory that all of the devices share; of different ones that is not told."""
    if all(capabilities(part).uses_host_memory for part in parts):
        return free_bytes()
    return parts[0].memory or None if len(parts) == 1 else None
