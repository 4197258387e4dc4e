"""What the inputs of each column of a matrix are like: what an error in it costs, whatever its weights are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.quantization.float_forward import FloatPass
from embedllm.export.rounding.quantize import group_compensation
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.package.architecture import Decoder
    from embedllm.package.packing import Packing
    from embedllm.types import F32

ENOUGH = 32  # sequences: docs/numerics.md#methods-compared
# Of the mean, added to each column: a text may hardly use one that another text does; measured, too.
_FLOOR = 0.1
# A tied table is the head's weights and also the model's input, where all its values count alike: so much more of it.
AS_INPUT = 0.3


def excerpt(sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """Fewer sequences from all over those of a text, [S, T]: means need not more."""
    return sequences[np.linspace(0, len(sequences) - 1, min(ENOUGH, len(sequences))).astype(np.int64)]


def measured(
    source: Source,
    decoder: Decoder,
    packing: Mapping[str, Packing],
    sequences: NDArray[np.int64],
    on_layer: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, F32]:
    """The mean products of the inputs of each group, [groups, group, group], by the name of the matrix.

    An embedding that is not tied has none. packing: by the name of the matrix. sequences: [S, T], token ids.
    on_layer: called with how many of how many layers are done. Raises ExportError for inputs that are not finite.
    """
    floats = FloatPass(source, decoder, sequences)
    floats.begin()
    found: dict[str, F32] = {}
    for index, layer in enumerate(decoder.layers):
        floats.layer(index)
        known: dict[tuple[int, int], F32] = {}  # by the inputs, which matrices share, and their groups
        for linear in linears(layer):
            x, size = floats.inputs[linear.name], packing[linear.name].group_size
            if (id(x), size) not in known:
                known[id(x), size] = mean_products(x, size, linear.name)
            found[linear.name] = known[id(x), size]
        on_layer(index + 1, len(decoder.layers))
    head = decoder.head.name
    found[head] = mean_products(floats.head_inputs(), packing[head].group_size, head)
    return found


def mean_products(x: F32, size: int, name: str) -> F32:
    """Of inputs [T, columns] in groups of `size` columns: X^T X / T of each. Raises ExportError as mean_square()."""
    grouped = np.pad(x, ((0, 0), (0, -x.shape[1] % size))).reshape(len(x), -1, size).transpose(1, 0, 2)
    with np.errstate(over="ignore", invalid="ignore"):  # found and named below
        found: F32 = np.matmul(grouped.transpose(0, 2, 1), grouped) / np.float32(len(x))
    if not np.isfinite(found).all():
        raise ExportError(f"the inputs of '{name}' are not finite (NaN or infinity) on the calibration text.")
    return found


def spreads(products: Mapping[str, F32], decoder: Decoder) -> dict[str, F32]:
    """What quantize() makes up for errors by, by the name of the matrix. products: as measured() gives them."""
    tied = decoder.head.name if decoder.tied else None
    known: dict[int, F32] = {}  # by the products, which matrices share
    for name, found in products.items():
        if id(found) not in known:
            known[id(found)] = group_compensation(found, AS_INPUT if name == tied else _FLOOR)
    return {name: known[id(found)] for name, found in products.items()}


def mean_square(x: F32, name: str) -> F32:
    """Of inputs [T, columns]. Raises ExportError, with the name of the matrix, for such as are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):  # found and named below
        found = np.einsum("tc,tc->c", x, x) / np.float32(len(x))
    if not np.isfinite(found).all():
        raise ExportError(f"the inputs of '{name}' are not finite (NaN or infinity) on the calibration text.")
    return found


def weights(importance: Mapping[str, F32], decoder: Decoder) -> dict[str, F32]:
    """What an error in each column counts when scales are searched, [columns], by the name of the matrix.

    importance: mean squares, likewise.
    """
    tied = decoder.head.name if decoder.tied else None
    return {name: weighing(found, AS_INPUT if name == tied else _FLOOR) for name, found in importance.items()}


def weighing(mean_squares: F32, floor: float = _FLOOR) -> F32:
    """The same of one matrix, around 1: all alike where there were no inputs at all."""
    largest = mean_squares.max()
    if largest == 0:
        return np.ones_like(mean_squares)
    relative = mean_squares / largest  # first, so that no sum overflows
    return relative / relative.mean() + np.float32(floor)
