"""Decides what is stored and how, before anything is read: packing of every matrix, entries and their neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from embedllm.errors import ExportError
from embedllm.export import openvino_encoder, openvino_graph
from embedllm.export.decoder import Decoder, Linear
from embedllm.export.decoder_tensors import layer_runs, outer_matrices, rope_name, small_matrices, tables, vectors
from embedllm.export.methods import METHODS
from embedllm.export.quantize import Packing
from embedllm.export.weights import CONSTANTS, Entry, Layout, lay_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the user of an export can choose."""

    bits: int = 4  # of the layers' matrices: 4, 8, 16 or 32
    group: int = 32  # values that share a scale
    symmetric: bool = True
    # "nearest": scales from the extremes; "search": those of 4 bits by least squares; and on a text "weighted": so, for
    # the inputs of each column; "awq": these made alike first; "gptq": what a rounding loses is made up for by what is
    # rounded later; "awq+gptq": both (methods.py)
    method: str = "search"
    head_bits: int | None = None  # None: as `bits`
    embedding_bits: int | None = None  # None: as the head; a tied table always is the head
    context: int | None = None  # tokens; None: as the model
    exact: bool = False  # float activations in every product: slower, see docs/numerics.md
    rotate: bool = False  # each head's values, which o turns back (rotation.py): docs/numerics.md#rotation
    # Of these one, or none: 8 bits in place of 4 where they gain most on a text (docs/numerics.md#mixed-bits)
    size: int | None = None  # bytes of the weights file, at most
    mean_bits: float | None = None  # the same, by weight: 8 * bytes over the number of weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that follows from a description and a recipe."""

    decoder: Decoder
    packing: dict[str, Packing]  # by the name of the matrix
    runs: tuple[tuple[Linear, ...], ...]  # matrices in file order; those of a run lie next to each other
    constants: bytes  # of the OpenVINO model
    search: bool  # the scales of 4 bits
    layout: Layout


def plan(decoder: Decoder, recipe: Recipe, packing: Mapping[str, Packing] | None = None) -> Plan:
    """Packing and layout of a model.

    packing: by the name of the matrix, the same for all of a run; None: as the recipe says, with 4 bits for a budget.
    Raises ExportError for a recipe that does not fit the model.
    """
    if recipe.method not in METHODS:
        raise ExportError(f"method is {recipe.method!r}; expected one of: {', '.join(METHODS)}.")
    packing = dict(packing or _packing(decoder, recipe))
    runs = tuple(_runs(decoder))
    graphs = openvino_graph if decoder.encoder is None else openvino_encoder
    constants = graphs.constants(decoder, packing)
    entries = [
        _small(decoder),
        [Entry(CONSTANTS, "U8", (len(constants),))],
        *(block for run in runs for block in blocks(run, packing[run[0].name])),
    ]
    return Plan(
        decoder=decoder,
        packing=packing,
        runs=runs,
        constants=constants,
        search=METHODS[recipe.method].search,
        layout=lay_out(entries, {"format": "embedllm"}),
    )


def run_bytes(decided: Plan, run: Sequence[Linear]) -> int:
    """Bytes that a run takes: weights, scales and zero points."""
    return sum(entry.length for block in blocks(run, decided.packing[run[0].name]) for entry in block)


def _packing(decoder: Decoder, recipe: Recipe) -> dict[str, Packing]:
    head_bits = recipe.bits if recipe.head_bits is None else recipe.head_bits
    embedding_bits = head_bits if recipe.embedding_bits is None else recipe.embedding_bits
    if decoder.tied and embedding_bits != head_bits:
        raise ExportError(
            f"embedding bits {embedding_bits} and head bits {head_bits} differ, but this model's head is tied to its "
            "embedding: both are one table. Give only the head's bits."
        )
    try:
        body, head, table = (
            Packing(bits=bits, group=recipe.group, symmetric=recipe.symmetric)
            for bits in (recipe.bits, head_bits, embedding_bits)
        )
    except ValueError as error:
        raise ExportError(str(error)) from error
    names = {linear.name: body for run in _runs(decoder) for linear in run}
    return {**names, decoder.head.name: head, decoder.embedding.name: table}


def _runs(decoder: Decoder) -> Iterator[tuple[Linear, ...]]:
    yield from ((linear,) for linear in (*tables(decoder), *outer_matrices(decoder)))
    for layer in decoder.layers:
        yield from layer_runs(layer)
    if not decoder.tied:
        yield (decoder.head,)


def _small(decoder: Decoder) -> list[Entry]:
    """Norms, biases, routers and rotary tables: float32, as small things cost nothing to keep exact."""
    entries = [Entry(vector.name, "F32", (vector.size,)) for vector in vectors(decoder)]
    entries += [Entry(f"{m.name}.weight", "F32", (m.rows, m.columns)) for m in small_matrices(decoder)]
    for number, rope in enumerate(decoder.ropes):
        shape = decoder.context, rope.rotated // 2
        entries += [Entry(rope_name(number, part), "F32", shape) for part in ("cos", "sin")]
    return entries


def blocks(run: Sequence[Linear], packing: Packing) -> Iterator[list[Entry]]:
    """The entries of a run: all weights, then all scales, then all zero points."""
    if not packing.quantized:
        yield [Entry(f"{m.name}.weight", f"F{packing.bits}", (m.rows, m.columns)) for m in run]
        return
    groups = packing.groups(run[0].columns)
    yield [Entry(f"{m.name}.weight", "U8", (m.rows, groups, packing.group * packing.bits // 8)) for m in run]
    yield [Entry(f"{m.name}.scale", "F16", (m.rows, groups)) for m in run]
    if not packing.symmetric:
        yield [Entry(f"{m.name}.zero", "U8", (m.rows, -(-groups * packing.bits // 8))) for m in run]
