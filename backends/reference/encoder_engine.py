"""Runs an embedding or reranker (cross-encoder) model: in bounded batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from embedllm.backends.base import Device, Interrupted, Session
from embedllm.backends.reference.encoder_layers import EncoderLayers
from embedllm.backends.reference.engine import ReferenceEngine

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from embedllm.backends.base import OpenOptions
    from embedllm.package.package import Package
    from embedllm.types import F32

    Inputs: TypeAlias = dict[str, NDArray[np.int64]]  # of the graphs, [B, T] each

BATCH = 4096  # tokens of a run at most, those that fill shorter texts up among them; a longer text is a run of its own


class Tokens(NamedTuple):
    """A text, or a pair of them."""

    ids: Sequence[int]
    types: Sequence[int]  # of each token: 0, or 1 in the second text of a pair


class EncoderEngine:
    """A package on a device. May be used from several threads.

    run: gives the vectors of tokens, [B, T, hidden], for the inputs of the graphs.
    """

    chunk = BATCH

    def __init__(
        self, package: Package, device: Device, run: Callable[[Inputs], F32], layers: EncoderLayers | None = None
    ) -> None:
        """layers: of the reference, where they are there already."""
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = package.larger_context
        self._run: Callable[[Inputs], F32] | None = run
        self._layers = layers or EncoderLayers(ReferenceEngine(package))
        decoder = package.decoder
        assert decoder.encoder is not None
        self._types = decoder.encoder.token_types
        steps = decoder.encoder.dense
        self.dimensions = steps[-1].linear.rows if steps else decoder.hidden  # of a vector

    def vectors(self, texts: Sequence[Tokens], is_cancelled: Callable[[], bool] = lambda: False) -> F32:
        """The vector, or the score, of each text, [texts, dimensions]; each text has at least one token.

        Raises DeviceError; Interrupted when it is cancelled.
        """
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        for places in batches([len(text.ids) for text in texts]):
            if is_cancelled():
                raise Interrupted
            run = self._run  # once: another thread may close it meanwhile
            if run is None:
                raise ValueError("this model was closed")
            batch = [texts[place] for place in places]
            inputs, lengths = self._inputs(batch)
            vectors[places] = self._layers.finished(run(inputs), lengths)
        return vectors

    def open(self, capacity: int = 0) -> Session:
        raise ValueError(f"'{self.package.name}' is an embedding or reranker model and generates no text.")

    def close(self) -> None:
        self._run = None

    def _inputs(self, batch: Sequence[Tokens]) -> tuple[Inputs, NDArray[np.int64]]:
        """The inputs of a run, and how many tokens each text has."""
        lengths = np.array([len(text.ids) for text in batch], np.int64)
        shape = (len(batch), int(lengths.max()))
        inputs = {"input_ids": np.zeros(shape, np.int64)}
        inputs["attention_mask"] = (np.arange(shape[1]) < lengths[:, None]).astype(np.int64)
        if self._types is not None:
            inputs["token_type_ids"] = np.zeros(shape, np.int64)
        for row, text in enumerate(batch):
            inputs["input_ids"][row, : lengths[row]] = text.ids
            if self._types is not None and self._types.rows > 1:
                inputs["token_type_ids"][row, : lengths[row]] = text.types
        return inputs, lengths


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The places of texts that are run together, by their numbers of tokens: the longest first."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    start = 0
    while start < len(order):
        count = max(1, BATCH // max(1, lengths[order[start]]))
        yield order[start : start + count]
        start += count


def open_reference(options: OpenOptions) -> EncoderEngine:
    """In NumPy, text by text: nothing is filled up."""
    weights = ReferenceEngine(options.package)
    layers, decoder = EncoderLayers(weights), options.package.decoder

    def run(inputs: Inputs) -> F32:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        types = inputs.get("token_type_ids", np.zeros_like(ids))
        hidden = np.zeros((*ids.shape, decoder.hidden), np.float32)
        for row, count in enumerate(mask.sum(axis=1)):
            rows = weights.rows(decoder.embedding, ids[row, :count].tolist())
            hidden[row, :count] = layers.hidden(rows, types[row, :count])
        return hidden

    return EncoderEngine(options.package, options.device, run, layers)


def describe_size(inputs: Inputs) -> str:
    """Of a batch, for messages."""
    texts, tokens = inputs["input_ids"].shape
    return f"{texts} texts of {tokens} tokens"
