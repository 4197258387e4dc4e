"""Quantizes a checkpoint layer by layer, each for the inputs that it gets from the quantized layers before it.

All calibration sequences go through one layer after the other, with the mathematics of backends/reference. When a
matrix is about to be used, it is quantized for just these inputs (rounding/compensation.py), so one pass does
everything. In memory are the sequences' activations, one matrix and its inputs' Gram matrix, however many layers there
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.quantization.float_forward import FloatPass, read_table
from embedllm.export.quantization.importance import AS_INPUT, mean_products
from embedllm.export.rounding.compensation import Feedback, damp, feedback
from embedllm.export.writing.stream import Piece, pack
from embedllm.package.packing import Packed, Packing, dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture import Decoder, Linear
    from embedllm.types import F32

# Of the errors of earlier layers, what a matrix makes up for; all of it fits the calibration text, and that only.
_PROPAGATED = np.float32(0.5)
_FLOOR = 0.01  # of the mean square of an input, added to all: inputs that were hardly seen are not to be trusted


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
    run = _Quantizing(floats, packing)
    yield from _table(source, decoder.embedding, packing, spread, run.embed)
    run.embedded()
    for index in range(layers):
        floats.layer(index)
        run.layer(index)
        yield from run.pieces
        run.pieces.clear()
        on_layer(before + index + 1, before + layers)
    if not decoder.tied:
        spread = _spread(run, head) if head.quantized else None
        yield from _table(source, decoder.head, packing, spread)


def _head_spread(
    source: Source,
    decoder: Decoder,
    packing: Packing,
    sequences: NDArray[np.int64],
    on_layer: Callable[[int], None],
) -> Feedback:
    """feedback() for a tied table, in the model as it is."""
    floats = FloatPass(source, decoder, sequences)
    floats.begin()
    for index in range(len(decoder.layers)):
        floats.layer(index)
        on_layer(index + 1)
    return _spread(floats, packing, _FLOOR + AS_INPUT)


def _spread(floats: FloatPass, packing: Packing, floor: float = _FLOOR) -> Feedback:
    """feedback() for the head's inputs."""
    return feedback(_products(floats.head_inputs(), packing, floats.decoder.head), packing.group_size, floor=floor)


def _products(x: F32, packing: Packing, linear: Linear) -> F32:
    """mean_products() of all columns together, [1, size, size]: whole groups."""
    return mean_products(x, packing.groups(linear.columns) * packing.group_size, linear.name)


def _table(
    source: Source,
    linear: Linear,
    packing: Mapping[str, Packing],
    spread: Feedback | None,
    use: Callable[[int, F32], None] = lambda start, rows: None,
) -> Iterator[Piece]:
    """An embedding or a head, of which there may be more than memory should hold as floats. use: start, float rows."""
    for start, rows in read_table(source, linear):
        packed = pack(rows, packing[linear.name], search=True, spread=spread)
        use(start, _floats(packed, packing[linear.name], linear.columns))
        yield linear, packed


class _Quantizing(FloatPass):
    """The same sequences through the same layers, which are quantized on the way."""

    def __init__(self, floats: FloatPass, packing: Mapping[str, Packing]) -> None:
        """floats: is always a layer ahead."""
        super().__init__(floats.source, floats.decoder, floats.sequences)
        self.pieces: list[Piece] = []  # that were quantized
        self._packing, self._float_pass = packing, floats
        self._inputs: F32 | None = None  # of the last matrix, which others may share
        self._products = self._lost = np.empty(0, np.float32)  # that go with them, and
        self._spread: Feedback = ()

    def _linear(self, x: F32, linear: Linear) -> F32:
        packing = self._packing[linear.name]
        weight = self.floats.matrix(linear)
        spread = self._weighed(x, linear) if packing.quantized else None
        if spread is not None:
            weight = weight + self._made_up(weight, x, linear)
        packed = pack(weight, packing, search=True, spread=spread)
        self.pieces.append((linear, packed))
        product = x @ _floats(packed, packing, linear.columns).T
        return product + self.floats.tensor(f"{linear.name}.bias") if linear.bias else product

    def _weighed(self, x: F32, linear: Linear) -> Feedback:
        """feedback() for the inputs; matrices that share them find it made."""
        if x is not self._inputs:
            packing = self._packing[linear.name]
            self._inputs, self._products = x, _products(x, packing, linear)
            self._spread = feedback(self._products, packing.group_size, floor=_FLOOR)
            self._lost = (self._float_pass.inputs[linear.name] - x).T @ x
        return self._spread

    def _made_up(self, weight: F32, x: F32, linear: Linear) -> F32:
        """What is added to the weights, so that their products are again what the model as it is would have.

        By least squares over the sequences, for what the inputs lost in the layers before; and for what the stream
        lost that the product is added to.
        """
        lost: F32 = weight @ self._lost
        if linear.name in self.stream:
            missing: F32 = self._float_pass.stream[linear.name] - self.stream[linear.name]
            lost += np.matmul(missing.T, x)  # @, whose stub makes float64 of this
        columns = linear.columns
        gram = damp(self._products, _FLOOR)[0, :columns, :columns]
        found: F32 = np.linalg.solve(gram, lost.T / np.float32(len(x))).T.astype(np.float32)
        return _PROPAGATED * found


def _floats(packed: Packed | F32 | NDArray[np.float16], packing: Packing, columns: int) -> F32:
    return dequantize(packed, packing, columns) if isinstance(packed, Packed) else packed.astype(np.float32)
