"""What the inputs of each column of a matrix are like: what an error in it costs, whatever its weights are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.quantization.blas_threads import one_blas_thread
from embedllm.export.quantization.float_forward import FloatPass
from embedllm.export.rounding.compensation import Feedback, block_columns, feedback
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.weights import Linear
    from embedllm.package.packing import Packing
    from embedllm.types import F32

ENOUGH = 32  # sequences: docs/numerics.md#methods-compared
# Of the mean, added to each column: a text may hardly use one that another text does; measured, too.
_FLOOR = 0.1
# The most columns of a block in which errors are compensated, and what products of inputs of different groups are
# multiplied by, because a few thousand tokens do not tell them exactly: docs/numerics.md#the-default
_BLOCK, _SHRINKAGE = 640, 0.5
_VALUES = 1 << 29  # of all blocks, at most; matrices that share their inputs share them, which leaves some 1.3 GB
_COMPENSATED_BITS = (4,)
# A tied table is the head's weights and also the model's input, where all its values count alike: so much more of it.
AS_INPUT = 0.3


def excerpt(sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """Fewer sequences from all over those of a text, [S, T]: means need not more."""
    return sequences[np.linspace(0, len(sequences) - 1, min(ENOUGH, len(sequences))).astype(np.int64)]


def input_products(
    source: Source,
    decoder: Decoder,
    packing: Mapping[str, Packing],
    sequences: NDArray[np.int64],
    on_layer: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[tuple[tuple[str, ...], F32]]:
    """For the matrices in 4 bits, by those that share their inputs: the names, and mean_products() in blocks.

    An embedding that is not tied has none. packing: by the name of the matrix. sequences: [S, T], token ids.
    on_layer: called with how many of how many layers are done. Raises ExportError for inputs that are not finite.
    """
    floats = FloatPass(source, decoder, sequences)
    floats.begin()
    most = _VALUES // sum(linear.columns for layer in decoder.layers for linear in linears(layer))

    def compute_products(names: Sequence[str], linear: Linear, x: F32) -> tuple[tuple[str, ...], F32]:
        size = block_columns(linear.columns, packing[linear.name].group_size, min(_BLOCK, most))
        with one_blas_thread():
            return tuple(names), mean_products(x, size, linear.name)

    for index, layer in enumerate(decoder.layers):
        floats.layer(index)
        sharing: dict[tuple[int, int], list[Linear]] = {}  # by the inputs and the groups
        for linear in linears(layer):
            if packing[linear.name].bits in _COMPENSATED_BITS:
                key = id(floats.inputs[linear.name]), packing[linear.name].group_size
                sharing.setdefault(key, []).append(linear)
        for them in sharing.values():
            yield compute_products([linear.name for linear in them], them[0], floats.inputs[them[0].name])
        on_layer(index + 1, len(decoder.layers))
    head = decoder.head
    if packing[head.name].bits in _COMPENSATED_BITS:
        yield compute_products([head.name], head, floats.head_inputs())


def mean_products(x: F32, size: int, name: str) -> F32:
    """Of inputs [T, columns] in blocks of `size` columns: X^T X / T of each. Raises ExportError as mean_square()."""
    grouped = np.pad(x, ((0, 0), (0, -x.shape[1] % size))).reshape(len(x), -1, size).transpose(1, 0, 2)
    with np.errstate(over="ignore", invalid="ignore"):  # found and named below
        products: F32 = np.matmul(grouped.transpose(0, 2, 1), grouped) / np.float32(len(x))
    if not np.isfinite(products).all():
        raise ExportError(f"the inputs of '{name}' are not finite (NaN or infinity) on the calibration text.")
    return products


def spreads(
    products: Iterable[tuple[tuple[str, ...], F32]], decoder: Decoder, packing: Mapping[str, Packing]
) -> dict[str, Feedback]:
    """What compensated() needs, by the name of the matrix. products: as input_products() gives them."""
    tied = decoder.head.name if decoder.tied else None
    by_name: dict[str, Feedback] = {}
    for names, one in products:
        floor = AS_INPUT if tied in names else _FLOOR
        with one_blas_thread():  # not around the loop: products come out of a pass that has large ones
            spread = feedback(one, packing[names[0]].group_size, floor=floor, shrinkage=_SHRINKAGE)
        by_name.update(dict.fromkeys(names, spread))
    return by_name


def mean_square(x: F32, name: str) -> F32:
    """Of inputs [T, columns]. Raises ExportError, with the name of the matrix, for such as are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):  # found and named below
        square = np.einsum("tc,tc->c", x, x) / np.float32(len(x))
    if not np.isfinite(square).all():
        raise ExportError(f"the inputs of '{name}' are not finite (NaN or infinity) on the calibration text.")
    return square


def weights(importance: Mapping[str, F32], decoder: Decoder) -> dict[str, F32]:
    """What an error in each column counts when scales are searched, [columns], by the name of the matrix.

    importance: mean squares, likewise.
    """
    tied = decoder.head.name if decoder.tied else None
    return {name: weighing(square, AS_INPUT if name == tied else _FLOOR) for name, square in importance.items()}


def weighing(mean_squares: F32, floor: float = _FLOOR) -> F32:
    """The same of one matrix, around 1: all alike where there were no inputs at all."""
    largest = mean_squares.max()
    if largest == 0:
        return np.ones_like(mean_squares)
    relative = mean_squares / largest  # first, so that no sum overflows
    return relative / relative.mean() + np.float32(floor)
