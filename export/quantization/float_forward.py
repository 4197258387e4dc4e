"""The model as it is, run over sequences of a text layer by layer, with the mathematics of the reference decoder.

In memory are the sequences' activations and the matrix in use, however many layers there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.reference.layers import Layers
from embedllm.backends.system.cpu_threads import compute_threads
from embedllm.export.checkpoints.tensor_mapping import Source, read_matrix, read_vector
from embedllm.export.quantization.blas_threads import one_blas_thread
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.rope import tables
from embedllm.package.tensors import rope_name, small_matrices, vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture.attention import Attention
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.layer import Layer
    from embedllm.package.architecture.weights import Linear
    from embedllm.types import F32

_PIECE = 1 << 24  # values of a table that are in memory at once: 64 MB of float32


def read_table(source: Source, linear: Linear) -> Iterator[tuple[int, F32]]:
    """An embedding or a head by pieces: the first row, and float rows from there on."""
    step = max(1, _PIECE // linear.columns)
    for start in range(0, linear.rows, step):
        yield start, read_matrix(source, linear, start, min(start + step, linear.rows))


class FloatPass(Layers):
    """Sequences of a text, [S, T], on their way through the layers of a checkpoint."""

    def __init__(self, source: Source, decoder: Decoder, sequences: NDArray[np.int64]) -> None:
        self.floats = Checkpoint(source, decoder, sequences.shape[1])
        super().__init__(self.floats)
        self.source, self.decoder, self.sequences = source, decoder, sequences
        self.inputs: dict[str, F32] = {}  # of the last layer's matrices, by name, [S * T, columns]
        self.stream: dict[str, F32] = {}  # what the products of its o and down are added to as they are, by name
        self.x: F32 = np.empty((sequences.size, decoder.hidden), np.float32)  # behind the last layer

    def begin(self) -> None:
        """Puts the sequences in front of the first layer."""
        for start, rows in read_table(self.source, self.decoder.embedding):
            self.embed(start, rows)
        self.embedded()

    def embed(self, start: int, rows: F32) -> None:
        """Gives the sequences what rows of the embedding, from `start` on, say of their tokens."""
        tokens = self.sequences.reshape(-1)
        here = (tokens >= start) & (tokens < start + len(rows))
        self.x[here] = rows[tokens[here] - start]

    def embedded(self) -> None:
        """To be called when all rows were given."""
        self.x = np.concatenate([self._embedded(x, 0) for x in np.split(self.x, len(self.sequences))])

    def layer(self, index: int) -> None:
        """Takes the sequences through a layer."""
        layer = self.decoder.layers[index]
        self.inputs.clear()
        with np.errstate(over="ignore", invalid="ignore"):  # who uses what comes out looks at it
            self.stream = {}
            if layer.attention_post_norm is None and layer.residual_multiplier == 1:
                self.stream[layer.attention.o.name] = self.x
            self.x = self._layer(index, layer, self.x)

    def head_inputs(self) -> F32:
        """What the head is given once the last layer is done, [S * T, hidden]."""
        return self._norm(self.x, self.decoder.norm)

    def _added(self, layer: Layer, x: F32, more: F32) -> F32:
        total = super()._added(layer, x, more)
        if isinstance(layer.mlp, Mlp) and layer.mlp_post_norm is None and layer.residual_multiplier == 1:
            self.stream.setdefault(layer.mlp.down.name, total)  # attention comes first
        return total

    def _linear(self, x: F32, linear: Linear) -> F32:
        self.inputs[linear.name] = x
        return super()._linear(x, linear)

    def _attended(self, index: int, attention: Attention, q: F32, k: F32, v: F32) -> F32:
        count = len(self.sequences)
        own = zip(*(np.split(each, count, axis=1) for each in (q, k, v)), strict=True)

        def attended(one: tuple[F32, F32, F32]) -> F32:
            with np.errstate(over="ignore", invalid="ignore"):  # each thread has its own, as in layer()
                return Layers(self.floats)._attended(index, attention, *one)

        # two products for each head of each sequence, and between them what NumPy makes on one thread
        with one_blas_thread(), ThreadPoolExecutor(compute_threads() or os.cpu_count(), "attention") as pool:
            return np.concatenate(list(pool.map(attended, own)))

    def _recurred(
        self, index: int, q: F32, k: F32, v: F32, decay_factor: F32, beta: F32, *, is_delta: bool = True
    ) -> F32:
        outputs: list[F32] = []
        for start in range(0, self.sequences.size, self.sequences.shape[1]):
            self.rewind(0)
            here = slice(start, start + self.sequences.shape[1])
            own = (each[here] for each in (q, k, v, decay_factor, beta))
            outputs.append(super()._recurred(index, *own, is_delta=is_delta))
        return np.concatenate(outputs)

    def _convolved(self, index: int, kernel: int, x: F32, *, has_bias: bool) -> F32:
        outputs: list[F32] = []
        for one in np.split(x, len(self.sequences)):
            self.rewind(0)
            outputs.append(super()._convolved(index, kernel, one, has_bias=has_bias))
        return np.concatenate(outputs)


class Checkpoint:
    """The weights that the reference reads, out of a checkpoint.

    length: positions of the rotations' tables.
    """

    def __init__(self, source: Source, decoder: Decoder, length: int) -> None:
        self.decoder = decoder
        self._source = source
        self._vectors = {vector.name: vector for vector in vectors(decoder)}
        self._matrices = {f"{linear.name}.weight": linear for linear in small_matrices(decoder)}
        self._ropes = {
            rope_name(number, part): table
            for number, rope in enumerate(decoder.ropes)
            for part, table in zip(("cos", "sin"), tables(rope, length), strict=True)
        }

    def tensor(self, name: str) -> F32:
        if name in self._ropes:
            return self._ropes[name]
        if name in self._matrices:
            return self.matrix(self._matrices[name])
        return read_vector(self._source, self._vectors[name])

    def matrix(self, linear: Linear) -> F32:
        return read_matrix(self._source, linear, 0, linear.rows)
