"""How large the inputs of each column of a matrix are: what an error in it costs, whatever its weights are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.quantization.float_forward import FloatPass
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.package.architecture import Decoder
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
    sequences: NDArray[np.int64],
    on_layer: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, F32]:
    """The mean square of each input, [columns], by the name of the matrix; an embedding that is not tied has none.

    sequences: [S, T], token ids. on_layer: called with how many of how many layers are done.
    Raises ExportError for inputs that are not finite.
    """
    floats = FloatPass(source, decoder, sequences)
    floats.begin()
    found: dict[str, F32] = {}
    for index, layer in enumerate(decoder.layers):
        floats.layer(index)
        known: dict[int, F32] = {}  # by the inputs, which matrices share
        for linear in linears(layer):
            x = floats.inputs[linear.name]
            if id(x) not in known:
                known[id(x)] = mean_square(x, linear.name)
            found[linear.name] = known[id(x)]
        on_layer(index + 1, len(decoder.layers))
    found[decoder.head.name] = mean_square(floats.head_inputs(), decoder.head.name)
    return found


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
