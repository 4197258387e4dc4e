"""The model as it is, run over sequences of a text layer by layer, with the mathematics of backends/reference.py.

In memory are the sequences' activations and the matrix in use, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.reference import ReferenceSession
from embedllm.export.decoder import linears, norms
from embedllm.export.rope import tables
from embedllm.export.stream import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.decoder import Attention, Decoder, Linear
    from embedllm.types import F32

_PIECE = 1 << 24  # values of a table that are in memory at once: 64 MB of float32


def read_table(source: Source, linear: Linear) -> Iterator[tuple[int, F32]]:
    """An embedding or a head by pieces: the first row, and float rows from there on."""
    step = max(1, _PIECE // linear.columns)
    for start in range(0, linear.rows, step):
        yield start, source.rows(f"{linear.source}.weight", start, min(start + step, linear.rows))


class FloatPass(ReferenceSession):
    """Sequences of a text, [S, T], on their way through the layers of a checkpoint."""

    def __init__(self, source: Source, decoder: Decoder, sequences: NDArray[np.int64]) -> None:
        self.floats = _Checkpoint(source, decoder, sequences.shape[1])
        super().__init__(self.floats)
        self.source, self.decoder, self.sequences = source, decoder, sequences
        self.inputs: dict[str, F32] = {}  # of the last layer's matrices, by name, [S * T, columns]
        self.stream: dict[str, F32] = {}  # what the products of its o and down were added to, by name
        self.x: F32 = np.empty((sequences.size, decoder.hidden), np.float32)  # behind the last layer

    def begin(self) -> None:
        """Puts the sequences in front of the first layer."""
        for start, rows in read_table(self.source, self.decoder.embedding):
            self.embed(start, rows)

    def embed(self, start: int, rows: F32) -> None:
        """Gives the sequences what rows of the embedding, from `start` on, say of their tokens."""
        tokens = self.sequences.reshape(-1)
        here = (tokens >= start) & (tokens < start + len(rows))
        self.x[here] = rows[tokens[here] - start]

    def layer(self, index: int) -> None:
        """Takes the sequences through a layer."""
        layer = self.decoder.layers[index]
        self.inputs.clear()
        with np.errstate(over="ignore", invalid="ignore"):  # who uses what comes out looks at it
            self.stream = {layer.attention.o.name: self.x}
            self.x = self.x + self._attention(index, layer.attention, self._norm(self.x, layer.attention_norm))
            self.stream[layer.mlp.down.name] = self.x
            self.x = self.x + self._mlp(layer.mlp, self._norm(self.x, layer.mlp_norm))

    def head_inputs(self) -> F32:
        """What the head is given once the last layer is done, [S * T, hidden]."""
        return self._norm(self.x, self.decoder.norm)

    def _linear(self, x: F32, linear: Linear) -> F32:
        self.inputs[linear.name] = x
        return super()._linear(x, linear)

    def _attended(self, index: int, attention: Attention, q: F32, k: F32, v: F32) -> F32:
        found: list[F32] = []
        for start in range(0, self.sequences.size, self.sequences.shape[1]):
            self.rewind(0)
            here = slice(start, start + self.sequences.shape[1])
            found.append(super()._attended(index, attention, q[:, here], k[:, here], v[:, here]))
        self.rewind(0)
        return np.concatenate(found)


class _Checkpoint:
    """What the reference reads of an engine, out of a checkpoint."""

    def __init__(self, source: Source, decoder: Decoder, length: int) -> None:
        self.decoder = decoder
        self._source = source
        self._rope = dict(zip(("rope.cos", "rope.sin"), tables(decoder.rope, length), strict=True))
        matrices = [linear for layer in decoder.layers for linear in linears(layer)]
        self._places = {f"{norm.name}.weight": (norm.source, norm.size) for norm in norms(decoder)}
        self._places |= {f"{linear.name}.bias": (f"{linear.source}.bias", linear.rows) for linear in matrices}

    def tensor(self, name: str) -> F32:
        if name in self._rope:
            return self._rope[name]
        origin, size = self._places[name]
        return self._source.rows(origin, 0, size)

    def matrix(self, linear: Linear) -> F32:
        return self._source.rows(f"{linear.source}.weight", 0, linear.rows)
