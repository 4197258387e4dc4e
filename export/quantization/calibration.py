"""Quantizes a checkpoint layer by layer, each for the inputs that it gets from the quantized layers before it.

All calibration sequences go through one layer after the other, with the mathematics of backends/reference. When a
matrix is about to be used, it is quantized for just these inputs (gptq.py), so one pass does everything. In memory are
the sequences' activations, one matrix and its inputs' gram matrix, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.quantization.float_forward import FloatPass, read_table
from embedllm.export.quantization.gptq import compensated, compensation
from embedllm.export.quantization.importance import AS_INPUT
from embedllm.export.writing.stream import Piece, pack
from embedllm.package.packing import Packed, Packing, dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture import Decoder, Linear
    from embedllm.types import F32

# Of the errors of earlier layers, what a matrix makes up for; all of it fits the calibration text, and that only.
_PROPAGATED = np.float32(0.5)


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
) -> F32:
    """compensation() of a tied table, in the model as it is."""
    floats = FloatPass(source, decoder, sequences)
    floats.begin()
    for index in range(len(decoder.layers)):
        floats.layer(index)
        on_layer(index + 1)
    return _spread(floats, packing, as_input=AS_INPUT)


def _spread(floats: FloatPass, packing: Packing, *, as_input: float = 0.0) -> F32:
    """compensation() of the head's inputs. as_input: share of their mean square that is added to each."""
    x = floats.head_inputs()
    gram = x.T @ x
    gram[np.diag_indices_from(gram)] += as_input * np.trace(gram) / len(gram)
    return compensation(gram, packing)


def _table(
    source: Source,
    linear: Linear,
    packing: Mapping[str, Packing],
    spread: F32 | None,
    use: Callable[[int, F32], None] = lambda start, rows: None,
) -> Iterator[Piece]:
    """An embedding or a head, of which there may be more than memory should hold as floats. use: start, float rows."""
    for start, rows in read_table(source, linear):
        packed = _packed(rows, packing[linear.name], spread)
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
        self._spread = self._lost = np.empty(0, np.float32)  # that go with them

    def _linear(self, x: F32, linear: Linear) -> F32:
        packing = self._packing[linear.name]
        weight = self.floats.matrix(linear)
        spread = self._weighed(x, linear) if packing.quantized else None
        if spread is not None:
            weight = weight + self._made_up(weight, x, linear)
        packed = _packed(weight, packing, spread)
        self.pieces.append((linear, packed))
        product = x @ _floats(packed, packing, linear.columns).T
        return product + self.floats.tensor(f"{linear.name}.bias") if linear.bias else product

    def _weighed(self, x: F32, linear: Linear) -> F32:
        """compensation() of the inputs; matrices that share them find it made."""
        if x is not self._inputs:
            self._inputs, self._spread = x, compensation(x.T @ x, self._packing[linear.name])
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
        spread = self._spread[:columns, :columns]
        rotated: F32 = lost @ spread.T
        return _PROPAGATED * (rotated @ spread)


def _packed(rows: F32, packing: Packing, spread: F32 | None) -> Packed | F32 | NDArray[np.float16]:
    return pack(rows, packing, search=True) if spread is None else compensated(rows, spread, packing)


def _floats(packed: Packed | F32 | NDArray[np.float16], packing: Packing, columns: int) -> F32:
    return dequantize(packed, packing, columns) if isinstance(packed, Packed) else packed.astype(np.float32)
