"""Quantizes a checkpoint layer by layer, each for the inputs that it gets from the quantized layers before it.

All calibration sequences go through one layer after the other, with the mathematics of backends/reference. When a
matrix is about to be used, it is quantized for just these inputs (rounding/compensation.py), so one pass does
everything. In memory are the sequences' activations, one matrix and its inputs' Gram matrix, however many layers there
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.quantization.float_forward import FloatPass, read_table
from embedllm.export.quantization.importance import AS_INPUT, mean_products
from embedllm.export.rounding.compensation import Feedback, damp, feedback
from embedllm.export.writing.stream import Piece, pack_in_pieces, rounding_threads
from embedllm.package.packing import Packed, Packing, dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.weights import Linear
    from embedllm.types import F32

# Of the errors of earlier layers, what a matrix makes up for; all of it fits the calibration text, and that only.
_PROPAGATED = np.float32(0.5)
_FLOOR = 0.03  # of the mean square of an input, added to each: inputs that were hardly seen are not to be trusted
# As many tokens for each column halve products of inputs of different groups: docs/numerics.md#calibration-of-smollm2
_TOKENS_OF_COLUMN = 4
_HEAD_FLOOR = 0.01 + AS_INPUT  # of a tied table
_HEAD_SEQUENCES = 8  # for the inputs of a tied head, at least; a quarter of a long text


def calibrated(
    source: Source,
    decoder: Decoder,
    packing: Mapping[str, Packing],
    sequences: NDArray[np.int64],
    on_layer: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Piece]:
    """Every matrix of a model, in rows, in the order of the weights file.

    packing: by the name of the matrix. sequences: [S, T], token ids of the text that the model is calibrated on.
    on_layer: called with how many of how many passes through a layer are done.
    Raises ExportError for weights that cannot be stored, and for activations that are not finite.
    """
    layers, head = len(decoder.layers), packing[decoder.head.name]
    is_read_twice = decoder.tied and head.quantized  # the table comes first in the file, its inputs last in the model
    before = layers if is_read_twice else 0
    on_layer(0, before + layers)
    spread = None
    if is_read_twice:
        spread = _head_spread(source, decoder, head, sequences, lambda done: on_layer(done, 2 * layers))
    floats = FloatPass(source, decoder, sequences)
    floats.begin()
    with rounding_threads() as pool:
        run = _Quantizing(floats, packing, pool)
        yield from _table(source, decoder.embedding, packing, spread, pool, run.embed)
        run.embedded()
        for index in range(layers):
            floats.layer(index)
            run.layer(index)
            yield from run.pieces
            run.pieces.clear()
            on_layer(before + index + 1, before + layers)
        if not decoder.tied:
            spread = _spread(run, head, _FLOOR) if head.quantized else None
            yield from _table(source, decoder.head, packing, spread, pool)


def _head_spread(
    source: Source,
    decoder: Decoder,
    packing: Packing,
    sequences: NDArray[np.int64],
    on_layer: Callable[[int], None],
) -> Feedback:
    """feedback() for a tied table, in the model as it is.

    A part of the text tells it as well as all of it: it has as few columns as the stream, and a high floor.
    """
    count = max(_HEAD_SEQUENCES, len(sequences) // 4)
    floats = FloatPass(source, decoder, sequences[:: max(1, len(sequences) // count)])
    floats.begin()
    for index in range(len(decoder.layers)):
        floats.layer(index)
        on_layer(index + 1)
    return _spread(floats, packing, _HEAD_FLOOR)


def _spread(floats: FloatPass, packing: Packing, floor: float) -> Feedback:
    """feedback() for the head's inputs."""
    x = floats.head_inputs()
    products = _products(x, packing, floats.decoder.head)
    return feedback(products, packing.group_size, floor=floor, shrinkage=_shrinkage(x))


def _shrinkage(x: F32) -> float:
    """What products of inputs [T, columns] of different groups are multiplied by: few tokens tell them badly."""
    tokens, columns = x.shape
    return tokens / (tokens + _TOKENS_OF_COLUMN * columns)


def _products(x: F32, packing: Packing, linear: Linear) -> F32:
    """mean_products() of all columns together, [1, size, size]: whole groups."""
    return mean_products(x, packing.groups(linear.columns) * packing.group_size, linear.name)


def _table(
    source: Source,
    linear: Linear,
    packing: Mapping[str, Packing],
    spread: Feedback | None,
    pool: ThreadPoolExecutor,
    use: Callable[[int, F32], None] = lambda start, rows: None,
) -> Iterator[Piece]:
    """An embedding or a head, of which there may be more than memory should hold as floats. use: start, float rows."""
    for start, rows in read_table(source, linear):
        at = start
        for packed in pack_in_pieces(pool, rows, packing[linear.name], spread=spread):
            floats = _floats(packed, packing[linear.name], linear.columns)
            use(at, floats)
            at += len(floats)
            yield linear, packed


class _Quantizing(FloatPass):
    """The same sequences through the same layers, which are quantized on the way."""

    def __init__(self, floats: FloatPass, packing: Mapping[str, Packing], pool: ThreadPoolExecutor) -> None:
        """floats: is always a layer ahead. pool: rounds."""
        super().__init__(floats.source, floats.decoder, floats.sequences)
        self.pieces: list[Piece] = []  # that were quantized
        self._packing, self._float_pass, self._pool = packing, floats, pool
        self._inputs: F32 | None = None  # of the last matrix, which others may share, and
        self._inverse = self._lost = np.empty(0, np.float32)  # what goes with them: see _weighed()
        self._spread: Feedback = ()

    def _linear(self, x: F32, linear: Linear) -> F32:
        packing = self._packing[linear.name]
        weight = self.floats.matrix(linear)
        spread = self._weighed(x, linear) if packing.quantized else None
        if spread is not None:
            weight = weight + self._made_up(weight, x, linear)
        packed = list(pack_in_pieces(self._pool, weight, packing, spread=spread))
        self.pieces += [(linear, piece) for piece in packed]
        product = x @ np.concatenate([_floats(piece, packing, linear.columns) for piece in packed]).T
        return product + self.floats.tensor(f"{linear.name}.bias") if linear.bias else product

    def _weighed(self, x: F32, linear: Linear) -> Feedback:
        """feedback() for the inputs; matrices that share them find it made.

        Also the inverse of their damped mean products, and by it what the inputs lost in the layers before, as columns.
        """
        if x is not self._inputs:
            packing, columns = self._packing[linear.name], linear.columns
            self._inputs, products = x, _products(x, packing, linear)
            self._spread = feedback(products, packing.group_size, floor=_FLOOR, shrinkage=_shrinkage(x))
            inverse = np.linalg.inv(damp(products, _FLOOR)[0, :columns, :columns])
            self._inverse = (inverse / len(x)).astype(np.float32)
            self._lost = ((self._float_pass.inputs[linear.name] - x).T @ x) @ self._inverse
        return self._spread

    def _made_up(self, weight: F32, x: F32, linear: Linear) -> F32:
        """What is added to the weights, so that their products are again what the model as it is would have.

        By least squares over the sequences, for what the inputs lost in the layers before; and for what the stream
        lost that the product is added to.
        """
        correction: F32 = weight @ self._lost
        if linear.name in self.stream:
            missing: F32 = self._float_pass.stream[linear.name] - self.stream[linear.name]
            correction += np.matmul(missing.T, x) @ self._inverse  # matmul: the stub of @ makes float64 of this
        return _PROPAGATED * correction


def _floats(packed: Packed | F32 | NDArray[np.float16], packing: Packing, columns: int) -> F32:
    return dequantize(packed, packing, columns) if isinstance(packed, Packed) else packed.astype(np.float32)
