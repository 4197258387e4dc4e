"""What 4 bits cost, run by run: the KL from the model as it is when one run of matrices alone is rounded.

Sequences of a text go through the float model layer by layer, and with them those of every model that differs so far:
a run of a layer begins one, the layers before it cannot tell. Several pass a layer together, so that its matrices are
read once for all of them. In memory are the streams of all models, a few models' activations, one matrix and a block
of logits; time grows with the square of the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.tensor_mapping import Source
from embedllm.export.quantization.float_forward import FloatPass, read_table
from embedllm.export.rounding.quantize import quantize
from embedllm.package.packing import Packing, dequantize
from embedllm.package.tensors import linears

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.weights import Linear
    from embedllm.types import F32

_LENGTH = 128  # tokens of a sequence: many beginnings say more than a few long ones
_LOGITS = 1 << 24  # of all tokens together, which bounds the time with a large vocabulary
_FEWEST = 256  # tokens, however large it is
_TOGETHER = 1 << 13  # tokens of several models that pass a layer in one go
_BLOCK = 1 << 22  # logits of one model in memory: 16 MB
_PIECE = 1 << 18  # values that are quantized at once, as in export/writing/stream.py


def excerpt(sequences: NDArray[np.int64], vocabulary: int) -> NDArray[np.int64]:
    """Shorter and fewer sequences [s, t] from all over those of a text, [S, T]: as many as losses() should read."""
    length = min(_LENGTH, sequences.shape[1])
    pieces = sequences[:, : sequences.shape[1] // length * length].reshape(-1, length)
    count = max(_FEWEST, _LOGITS // vocabulary) // length or 1
    return pieces[np.linspace(0, len(pieces) - 1, min(count, len(pieces))).astype(np.int64)]


def losses(
    source: Source,
    decoder: Decoder,
    runs: Sequence[Sequence[Linear]],
    packing: Mapping[str, Packing],
    sequences: NDArray[np.int64],
    *,
    search: bool = True,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """For each run the mean KL, in nats over all tokens, of the model that has it as `packing` says and is float else.

    runs: matrices that are rounded together, of one layer each, or a table. packing: of those, by name, quantized.
    sequences: [S, T], token ids. search: as quantize() has it. on_run: called with how many of how many runs are done.
    Raises ExportError for weights that cannot be stored, and for a model that is not finite on the text.
    """
    model = _Rounding(source, decoder, sequences, packing, search=search)
    model.begin()
    with np.errstate(over="ignore", invalid="ignore"):  # divergences() finds and names it
        by_run = dict(_losses(model, runs, lambda done: on_run(done, len(runs))))
    return [by_run[at] for at in range(len(runs))]


def _losses(
    model: _Rounding, runs: Sequence[Sequence[Linear]], on_run: Callable[[int], None]
) -> Iterator[tuple[int, float]]:
    """The place of each run and its KL, as the stream comes by."""
    layers = len(model.decoder.layers)
    first = [_first_layer(model.decoder, run) for run in runs]
    streams: dict[int, F32] = {}  # of the models that differ so far, by the place of the run
    stream = model.x
    for index in range(layers):
        here = [at for at in range(len(runs)) if first[at] == index]
        tables = [at for at in here if model.is_embedding(runs[at])]
        streams |= {at: model.embedded_with(runs[at]) for at in tables}
        begun = {at: model.layer_with(index, stream, runs[at]) for at in here if at not in tables}
        stream, streams = model.layer_with(index, stream, ()), model.through(index, streams) | begun
        on_run(len(streams))
    base = model.head_inputs_of(stream)
    ended = [(runs[at], model.head_inputs_of(streams[at]) if at in streams else base) for at in range(len(runs))]
    yield from enumerate(model.divergences(base, ended))
    on_run(len(runs))


def _first_layer(decoder: Decoder, run: Sequence[Linear]) -> int:
    """The first layer whose outcome a run changes; behind the last one there is only the head."""
    name = run[0].name
    if name == decoder.embedding.name:
        return 0
    if name == decoder.head.name:
        return len(decoder.layers)
    return next(at for at, layer in enumerate(decoder.layers) if name in (linear.name for linear in linears(layer)))


class _Rounding(FloatPass):
    """A float model of which some matrices are rounded for a while."""

    def __init__(
        self,
        source: Source,
        decoder: Decoder,
        sequences: NDArray[np.int64],
        packing: Mapping[str, Packing],
        *,
        search: bool,
    ) -> None:
        super().__init__(source, decoder, sequences)
        self._packing, self._search = packing, search
        self._rounded: frozenset[str] = frozenset()

    def is_embedding(self, run: Sequence[Linear]) -> bool:
        """Whether it is what the first layer's stream is read from."""
        return run[0].name == self.decoder.embedding.name

    def embedded_with(self, rounded: Sequence[Linear]) -> F32:
        """The stream in front of the first layer, [S * T, hidden], of the model whose embedding is rounded."""
        self.x = np.empty_like(self.x)
        for start, rows in read_table(self.source, self.decoder.embedding):
            self.embed(start, self._stored(rows, rounded[0]))
        self.embedded()
        return self.x

    def layer_with(self, index: int, stream: F32, rounded: Sequence[Linear]) -> F32:
        """What a layer makes of a stream [S * T, hidden], with some of its matrices rounded."""
        self._rounded = frozenset(linear.name for linear in rounded)
        self.x = stream
        self.layer(index)
        self._rounded = frozenset()
        return self.x

    def through(self, index: int, streams: Mapping[int, F32]) -> dict[int, F32]:
        """What a layer as it is makes of several models' streams."""
        one, step = self.sequences, max(1, _TOGETHER // self.sequences.size)
        outputs: dict[int, F32] = {}
        for start in range(0, len(streams), step):
            places = list(streams)[start : start + step]
            self.sequences = np.tile(one, (len(places), 1))
            output = self.layer_with(index, np.concatenate([streams[at] for at in places]), ())
            outputs.update(zip(places, np.split(output, len(places)), strict=True))
        self.sequences = one
        return outputs

    def head_inputs_of(self, stream: F32) -> F32:
        """What the head is given of a stream behind the last layer."""
        self.x = stream
        return self.head_inputs()

    def divergences(self, base: F32, variants: Sequence[tuple[Sequence[Linear], F32]]) -> list[float]:
        """The mean KL of models from the float one, whose head's inputs are `base`.

        variants: the matrices that are rounded in each, and its head's inputs.
        """
        head = self.decoder.head
        expected, step = _LogSums(len(base)), max(1, _BLOCK // len(base))
        sums = [_LogSums(len(base)) for _ in variants]
        moved = [np.zeros(len(base)) for _ in variants]  # sums of exp(a - top) * (a - b)
        for first, table in read_table(self.source, head):
            for start in range(0, len(table), step):
                rows, places = table[start : start + step], slice(first + start, first + start + step)
                logits = self._of_head(base @ rows.T, places)
                weights, fading = expected.add(logits)
                for at, (run, inputs) in enumerate(variants):
                    is_rounded = any(linear.name == head.name for linear in run)
                    others = self._of_head(inputs @ (self._stored(rows, head) if is_rounded else rows).T, places)
                    sums[at].add(others)
                    moved[at] = moved[at] * fading + np.einsum("tv,tv->t", weights, logits - others)
        kls = [m / expected.total - expected.value + s.value for m, s in zip(moved, sums, strict=True)]
        if not np.isfinite(kls).all():
            raise ExportError("the logits are not finite (NaN or infinity) on the text that the bits are chosen by.")
        return [float(kl.mean()) for kl in kls]

    def _of_head(self, products: F32, places: slice) -> F32:
        """Logits of some tokens of the vocabulary, from what the head's weights made of its inputs."""
        head = self.decoder.head
        return self._scaled_logits(
            products + self.floats.tensor(f"{head.name}.bias")[places] if head.bias else products
        )

    def _linear(self, x: F32, linear: Linear) -> F32:
        if linear.name not in self._rounded:
            return super()._linear(x, linear)
        product = x @ self._stored(self.floats.matrix(linear), linear).T
        return product + self.floats.tensor(f"{linear.name}.bias") if linear.bias else product

    def _stored(self, rows: F32, linear: Linear) -> F32:
        """The float weights that are left of rows of a matrix."""
        packing, step = self._packing[linear.name], max(1, _PIECE // linear.columns)
        stored = np.empty_like(rows)
        for start in range(0, len(rows), step):
            here = slice(start, start + step)
            try:
                stored[here] = dequantize(quantize(rows[here], packing, search=self._search), packing, linear.columns)
            except ExportError as error:
                raise ExportError(f"'{linear.source}.weight': {error}") from error
        return stored


class _LogSums:
    """log(sum(exp(logits))) of every token, of logits [T, v] that come block by block."""

    def __init__(self, tokens: int) -> None:
        self.total = np.zeros(tokens)  # of exp(logits - top)
        self._top = np.full(tokens, -np.inf)

    def add(self, logits: F32) -> tuple[F32, NDArray[np.float64]]:
        """exp(logits - top) [T, v], and what sums of such of the blocks before are to be multiplied with, [T]."""
        top = np.maximum(self._top, logits.max(axis=1))
        weights = np.exp(logits - top[:, None].astype(np.float32))
        fading = np.exp(self._top - top)
        self.total = self.total * fading + weights.sum(axis=1, dtype=np.float64)
        self._top = top
        return weights, fading

    @property
    def value(self) -> NDArray[np.float64]:
        return self._top + np.log(self.total)
