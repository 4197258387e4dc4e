"""Pre-quantized weights: matrices that the source has quantized are stored as they are, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.tensor_mapping import Source, places, stretches
from embedllm.export.recipe import incompatible_option
from embedllm.export.rounding.quantize import NOT_FINITE
from embedllm.export.writing.plan import matrix_runs
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear
from embedllm.package.packing import Packed, Packing, ordered
from embedllm.package.tensors import tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.recipe import Recipe


@runtime_checkable
class PackedSource(Source, Protocol):
    """A source that can give rows of some of its matrices in the form in which they are stored."""

    def packing(self, name: str) -> Packing | None:
        """How a tensor is to be stored so that nothing is lost; None: it holds plain numbers, which may be rounded.

        Of 16 and 32 bits: floats, which are read by rows().
        """
        ...

    def packed(self, name: str, start: int, stop: int) -> Packed:
        """Rows [start, stop) of a tensor that packing() says is quantized, of as many groups as its columns fill."""
        ...


@runtime_checkable
class OrderedSource(PackedSource, Protocol):
    """A source of which packed() gives the columns of some matrices in another order than rows() does."""

    def order(self, name: str) -> NDArray[np.int32] | None:
        """Which of a tensor's columns each packed one is, [columns]; None: each itself."""
        ...


def prequantized(source: Source, decoder: Decoder) -> dict[str, Packing]:
    """How a source holds those matrices that it does not hold as plain numbers, by the matrix's name.

    Empty when it holds none quantized: floats alone are rounded as ever.
    Raises ExportError for a table whose columns lie in another order.
    """
    if not isinstance(source, PackedSource):
        return {}
    packings: dict[str, Packing] = {}
    for run in matrix_runs(decoder):
        owners: dict[bytes, str] = {}  # of an order, the first matrix with it
        for linear in run:
            packing = None if _is_transposed(linear) else source.packing(f"{linear.source}.weight")
            if packing is not None:
                order = source.order(f"{linear.source}.weight") if isinstance(source, OrderedSource) else None
                name = "" if order is None else owners.setdefault(order.tobytes(), linear.name)
                packings[linear.name] = replace(packing, column_order=name, scale_bits=_scale_bits(packing, linear))
    for table in tables(decoder):
        if table.name in packings and packings[table.name].column_order:
            raise ExportError(
                f"the columns of the table '{table.source}.weight' lie in another order (desc_act), in which rows "
                "cannot be looked up. Give the bits that the weights are to be rounded to once more, such as --bits 4."
            )
    return packings if any(packing.quantized for packing in packings.values()) else {}


def _scale_bits(packing: Packing, linear: Linear) -> int:
    """Bits that lose nothing of a scale, nor of its product with what the matrix is multiplied by."""
    return packing.scale_bits if linear.weight_multiplier == 1 or not packing.quantized else 32


def _is_transposed(linear: Linear) -> bool:
    """Whether its rows are the source's columns, which groups do not lie along."""
    return linear.origin is not None and linear.origin.transposed


def check_prequantized(prequantized: Mapping[str, Packing], recipe: Recipe, options: Mapping[str, object]) -> None:
    """Raises ExportError for what would change pre-quantized weights.

    prequantized: of prequantized(), empty where all is rounded.
    options: of convert(), by their names; None and False: not given.
    """
    if not prequantized:
        return
    if option := incompatible_option(recipe, options):
        raise ExportError(
            f"the model's weights are quantized already and are stored as they are, which {option} would change. "
            "Leave it out, or give the bits that the weights are to be rounded to once more, such as --bits 4."
        )


def read_packed(source: PackedSource, linear: Linear, start: int, stop: int) -> Packed:
    """Rows [start, stop) of a matrix, in its own order: no order of rows touches the groups along them.

    What the matrix is multiplied by multiplies its scales. Raises ExportError for scales that are no numbers.
    """
    name, origin = f"{linear.source}.weight", linear.origin
    if origin is None:
        packed = source.packed(name, start, stop)
    else:
        spans, order = stretches(places(origin, start, stop))
        packed = ordered([source.packed(name, first, last) for first, last in spans], order)
    if linear.weight_multiplier != 1:
        by = np.float32(linear.weight_multiplier)
        minimum = None if packed.minimum is None else packed.minimum * by
        packed = replace(packed, scale=packed.scale.astype(np.float32) * by, minimum=minimum)
    for values in (packed.scale, packed.minimum):
        if values is not None and not np.isfinite(values).all():
            raise ExportError(NOT_FINITE)
    return packed
