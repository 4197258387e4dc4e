"""Decides what is stored and how, before anything is read: packing of every matrix, entries and their neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from embedllm.errors import ExportError
from embedllm.export.layout import Entry, Layout, lay_out
from embedllm.export.openvino import model as openvino_model
from embedllm.export.openvino.genai_models import genai_constants
from embedllm.export.recipe import Recipe
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear
from embedllm.package.packing import Packing
from embedllm.package.tensors import (
    layer_runs,
    outer_matrices,
    packed_alike,
    rope_name,
    small_matrices,
    tables,
    vectors,
    vision_runs,
)

_REST_BITS = 16  # of what a source holds as floats beside pre-quantized matrices
# of a vision encoder's matrices, at least (docs/numerics.md#vision-encoders): 4 bits are slower there than 8, and hurt;
# groups of 32 are a fifth slower than 128
_VISION_BITS, _VISION_GROUP = 8, 128
_MOST_FILLED = 1 / 16  # of a row's columns, to a whole number of such groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that follows from a description and a recipe."""

    decoder: Decoder
    packing: dict[str, Packing]  # by the name of the matrix
    # matrices in file order; those of a run are packed alike and lie next to each other
    runs: tuple[tuple[Linear, ...], ...]
    prequantized: frozenset[str]  # names of matrices that are stored as the source holds them
    constants: Mapping[str, bytes]  # of the OpenVINO models, by their entry in the weights file
    search: bool  # the scales of 4 bits
    layout: Layout
    openvino_images: bool = False  # there will be models for openvino-genai's VLMPipeline, too


def plan(
    decoder: Decoder,
    recipe: Recipe,
    packing: Mapping[str, Packing] | None = None,
    *,
    prequantized: Mapping[str, Packing] | None = None,
    openvino_images: bool = False,
) -> Plan:
    """Packing and layout of a model.

    packing: by the name of the matrix; None: as the recipe says, with 4 bits for a budget.
    prequantized: matrices that the source has quantized, which are stored as is unless the recipe has bits.
    openvino_images: there will be models for openvino-genai's VLMPipeline, too.
    Raises ExportError for a recipe that does not fit the model.
    """
    search = recipe.way.search
    passthrough = _passthrough(decoder, recipe, prequantized or {})
    packing = dict(packing or _packing(decoder, recipe, passthrough))
    runs = tuple(alike for run in matrix_runs(decoder) for alike in packed_alike(run, packing))
    constants = openvino_model.constants(decoder, packing)
    if openvino_images:
        constants |= genai_constants(decoder, packing)
    entries = [
        _small(decoder, packing),
        *([Entry(name, "U8", (len(data),))] for name, data in constants.items()),
        *(block for run in runs for block in blocks(run, packing[run[0].name])),
    ]
    return Plan(
        decoder=decoder,
        packing=packing,
        runs=runs,
        prequantized=frozenset(name for name, each in passthrough.items() if each.quantized),
        constants=constants,
        openvino_images=openvino_images,
        search=search,
        layout=lay_out(entries, {"format": "embedllm"}),
    )


def matrix_runs(decoder: Decoder) -> Iterator[tuple[Linear, ...]]:
    """All matrices that are stored in a packing of their own, in file order; those of a run have the same input."""
    yield from ((linear,) for linear in (*tables(decoder), *outer_matrices(decoder)))
    for layer in decoder.layers:
        yield from layer_runs(layer)
    if not decoder.tied:
        yield (decoder.head,)
    yield from vision_runs(decoder)


def with_orders(decoder: Decoder, packing: Mapping[str, Packing]) -> Iterator[Linear]:
    """Those matrices whose order of columns is stored, in file order. packing: by the name of the matrix."""
    yield from (
        linear for run in matrix_runs(decoder) for linear in run if packing[linear.name].column_order == linear.name
    )


def run_bytes(decided: Plan, run: Sequence[Linear]) -> int:
    """Bytes that a run takes: weights, scales and zero points."""
    return sum(entry.length for block in blocks(run, decided.packing[run[0].name]) for entry in block)


def _passthrough(decoder: Decoder, recipe: Recipe, prequantized: Mapping[str, Packing]) -> dict[str, Packing]:
    """What is stored as the source holds it: all that the recipe does not give bits."""
    if recipe.bits is not None:
        return {}
    bits = {decoder.head.name: recipe.head_bits}
    if not decoder.tied:
        bits[decoder.embedding.name] = recipe.embedding_bits
    return {name: packing for name, packing in prequantized.items() if bits.get(name) is None}


def _packing(decoder: Decoder, recipe: Recipe, passthrough: Mapping[str, Packing]) -> dict[str, Packing]:
    bits = _REST_BITS if passthrough else recipe.body_bits
    head_bits = bits if recipe.head_bits is None else recipe.head_bits
    embedding_bits = head_bits if recipe.embedding_bits is None else recipe.embedding_bits
    if decoder.tied and embedding_bits != head_bits:
        raise ExportError(
            f"embedding bits {embedding_bits} and head bits {head_bits} differ, but this model's head is tied to its "
            "embedding: both are one table. Give only the head's bits."
        )

    def packing(linear: Linear, bits: int, group_size: int = recipe.group_size) -> Packing:
        symmetric = recipe.is_symmetric(bits, linear.columns, is_mixture=decoder.is_mixture)
        return Packing(bits=bits, group_size=group_size, symmetric=symmetric)

    try:
        packings = {linear.name: packing(linear, bits) for run in matrix_runs(decoder) for linear in run}
        packings[decoder.head.name] = packing(decoder.head, head_bits)
        packings[decoder.embedding.name] = packing(decoder.embedding, embedding_bits)
        packings |= {
            linear.name: packing(linear, max(bits, _VISION_BITS), vision_group(recipe, linear.columns))
            for run in vision_runs(decoder)
            for linear in run
        }
    except ValueError as error:
        raise ExportError(str(error)) from error
    return {**packings, **passthrough}


def vision_group(recipe: Recipe, columns: int) -> int:
    """The size of a group of a vision encoder's matrix."""
    filled = -columns % _VISION_GROUP
    return max(recipe.group_size, _VISION_GROUP) if filled <= columns * _MOST_FILLED else recipe.group_size


def _small(decoder: Decoder, packing: Mapping[str, Packing]) -> list[Entry]:
    """Norms, biases, routers and rotary tables: float32, as small things cost nothing to keep exact; and orders."""
    entries = [Entry(vector.name, "F32", (vector.size,)) for vector in vectors(decoder)]
    entries += [Entry(f"{m.name}.weight", "F32", (m.rows, m.columns)) for m in small_matrices(decoder)]
    return [
        *entries,
        *rope_entries(decoder),
        *(Entry(f"{m.name}.order", "I32", (m.columns,)) for m in with_orders(decoder, packing)),
    ]


def rope_entries(decoder: Decoder) -> list[Entry]:
    """The rotary tables."""
    return [
        Entry(rope_name(number, part), "F32", (decoder.context, rope.rotary_dim // 2))
        for number, rope in enumerate(decoder.ropes)
        for part in ("cos", "sin")
    ]


def blocks(run: Sequence[Linear], packing: Packing) -> Iterator[list[Entry]]:
    """The entries of a run: all weights, then all scales, then all zero points or minimums."""
    if not packing.quantized:
        yield [Entry(f"{m.name}.weight", f"F{packing.bits}", (m.rows, m.columns)) for m in run]
        return
    groups = packing.groups(run[0].columns)
    yield [Entry(f"{m.name}.weight", "U8", (m.rows, groups, packing.group_size * packing.bits // 8)) for m in run]
    yield [Entry(f"{m.name}.scale", f"F{packing.scale_bits}", (m.rows, groups)) for m in run]
    if packing.has_minimum:
        yield [Entry(f"{m.name}.minimum", f"F{packing.scale_bits}", (m.rows, groups)) for m in run]
    if packing.stores_zeros:
        yield [Entry(f"{m.name}.zero", "U8", (m.rows, -(-groups * packing.bits // 8))) for m in run]
