"""AWQ: columns whose inputs are large are made larger before a matrix is rounded, and what comes before them smaller.

A group's steps are as wide as its largest weights ask for. A column that is twice as large loses half as much to them,
and what its neighbours lose more may count less. Each vector of scales is a power of the inputs' mean magnitudes; which
power, is tried out on the outputs. Lin et al. 2023, https://arxiv.org/abs/2306.00978.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.quantization.float_forward import FloatPass, read_table
from embedllm.export.quantization.importance import mean_square, weighing
from embedllm.export.quantization.scaled_source import Fold, ScaledSource, folds, head_fold
from embedllm.export.rounding.quantize import quantize
from embedllm.package.packing import dequantize
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.weights import Linear
    from embedllm.package.packing import Packing
    from embedllm.types import F32

_POWERS = tuple(index / 20 for index in range(20))  # 0 first: nothing replaces it that is not better
_ROWS = 256  # of a matrix that a power is tried out on: they are alike
_LEAST = 1e-4  # of the largest: inputs that are hardly there do not get scales without bounds


def scaled(
    source: Source,
    decoder: Decoder,
    packing: Mapping[str, Packing],
    sequences: NDArray[np.int64],
    on_layer: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[ScaledSource, dict[str, F32]]:
    """The same model with other columns, and the mean squares of their inputs.

    packing: by the name of the matrix. sequences: [S, T], token ids. on_layer: called with how many of how many layers
    are done. Raises ExportError for inputs that are not finite, and for weights that cannot be stored.
    """
    floats = FloatPass(source, decoder, sequences)
    floats.begin()
    scales: list[tuple[Fold, F32]] = []
    squares: dict[str, F32] = {}

    def take(fold: Fold, x: F32) -> None:
        scale, mean_squares = _chosen(source, fold, packing, x)
        scales.append((fold, scale))
        squares.update(dict.fromkeys((linear.name for linear in fold.after), mean_squares))

    for index, layer in enumerate(decoder.layers):
        floats.layer(index)
        for fold in folds(layer):
            take(fold, floats.inputs[fold.after[0].name])
        for linear in linears(layer):
            if linear.name not in squares:  # no fold has it
                squares[linear.name] = mean_square(floats.inputs[linear.name], linear.name)
        on_layer(index + 1, len(decoder.layers))
    if not scales:
        raise ExportError(
            f"in a '{decoder.model_type}' checkpoint there are no columns that can be scaled (its matrices lie inside "
            "larger ones, or behind norms with biases). Use the method 'weighted' or 'gptq'."
        )
    fold, x = head_fold(decoder), floats.head_inputs()
    if fold is None:
        squares[decoder.head.name] = mean_square(x, decoder.head.name)
    else:
        take(fold, x)
    return ScaledSource(source, scales), squares


def _chosen(source: Source, fold: Fold, packing: Mapping[str, Packing], x: F32) -> tuple[F32, F32]:
    """The vector that leaves the outputs nearest, and the mean squares of the inputs that it makes.

    x: [T, columns], the inputs.
    """
    square = mean_square(x, fold.after[0].name)
    rounded = [linear for linear in fold.after if packing[linear.name].quantized]
    best, least = np.ones(fold.size, np.float32), np.inf
    if rounded and square.any():
        magnitude = np.bincount(fold.place, np.abs(x).mean(axis=0)) / np.bincount(fold.place)
        magnitude = np.maximum(magnitude, _LEAST * magnitude.max())
        gram = x.T @ x
        trials = [_Trial(source, linear, packing[linear.name], gram) for linear in rounded]
        for power in _POWERS:
            scale = magnitude**power
            scale = (scale / np.sqrt(scale.max() * scale.min())).astype(np.float32)
            columns = scale[fold.place]
            loss = sum(trial.loss(columns, weighing(square / columns**2)) for trial in trials)
            if loss < least:
                best, least = scale, loss
    return best, square / best[fold.place] ** 2


class _Trial:
    """Some rows of a matrix, rounded in one way after the other."""

    def __init__(self, source: Source, linear: Linear, packing: Packing, gram: F32) -> None:
        """gram: X^T X of the inputs, [columns, columns]."""
        step = -(-linear.rows // _ROWS)
        self._rows = np.concatenate([rows[-start % step :: step] for start, rows in read_table(source, linear)])
        self._name, self._packing, self._gram = f"{linear.source}.weight", packing, gram
        self._all = self._energy(self._rows)

    def loss(self, columns: F32, weights: F32) -> float:
        """What share of the outputs' squares is lost with scaled columns. weights: as quantize() has them."""
        try:
            packed = quantize(self._rows * columns, self._packing, search=True, weights=weights)
        except ExportError as error:
            raise ExportError(f"'{self._name}': {error}") from error
        approximation = dequantize(packed, self._packing, len(columns)) / columns
        return self._energy(approximation - self._rows) / self._all if self._all else 0.0

    def _energy(self, rows: F32) -> float:
        """The sum of squares of what rows make of the inputs."""
        with np.errstate(over="ignore", invalid="ignore"):  # such a loss is less than none
            return float(np.einsum("rc,rc->", rows @ self._gram, rows))
