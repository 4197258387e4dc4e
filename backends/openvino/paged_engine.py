"""OpenVINO on the CPU, several sequences in one run: attention reads the KV through a table of blocks.

A step reads the weights once for all of them (docs/performance.md#many-sequences). A rewind is a number. OpenVINO makes
the graph of the folder's model; keys have a scale for each token, so that what comes later does not change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

import numpy as np

from embedllm.backends.base import Device, Interrupted
from embedllm.backends.checks import check_change, check_rewind, check_room, check_span, check_state, check_tokens
from embedllm.backends.images import ImageFeatures
from embedllm.backends.mrope import open_places
from embedllm.backends.openvino.block_table import BLOCK, Blocks, layout_of
from embedllm.backends.openvino.logits_slice import GivenHidden, cut_rows
from embedllm.backends.openvino.runtime import as_device_error, core, ov, paged_attention
from embedllm.backends.openvino.vision import (
    IMAGE_INPUTS,
    TOKEN_TYPES,
    OvVision,
    add_images,
    add_token_types,
    image_inputs,
    token_types,
)
from embedllm.backends.sessions.hidden_rows import OF_PROMPT, HiddenRows
from embedllm.backends.system.host_memory import return_freed_memory
from embedllm.errors import DeviceError
from embedllm.images.aspect_ratio import most_tokens
from embedllm.package.architecture.vision import Vision
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import LAST_HIDDEN_STATE
from embedllm.package.package import WEIGHTS, Package
from embedllm.package.tensors import kv_shapes
from embedllm.sampling.numpy_logits import NumpyLogits

op = ov.opset13

if TYPE_CHECKING:
    from embedllm.backends.base import BatchRow, KeyValues, Span
    from embedllm.package.lora.adapter import Adapter
    from embedllm.types import F32

CHUNK = 1024  # tokens of a prompt fed at once (docs/performance.md)
MAX_BATCH = 16  # sequences in one run
# Measured with the shape of Qwen3-0.6B, INT4, on two cores without AMX (a step of one sequence 35 ms, of eight 91 ms):
# a run with a piece of 8, 16, 32, 48, 64 tokens takes 1.4, 1.5, 1.9, 2.2, 3.1 times a step of eight, and 2.4, 2.9, 4.0,
# 4.7, 8.9 times a step of one. Larger pieces are read hardly faster: 230 tokens a second by 32, 285 by 256.
PROMPT_BUDGET = 32
_PIECE, _LONG_PIECE = 256, 512  # of these in one run: a run is not stopped in the middle
_SMALL = 512 << 20  # bytes of weights with which a long one takes half a second, and saves 7 % (docs/performance.md)
_BY_TOKEN = {"KEY_CACHE_QUANT_MODE": "BY_TOKEN"}  # a scale for a channel of a block changes with each token (2026.4)
_INPUTS = ("input_ids", "position_ids", "max_context_len", "past_lens", "subsequence_begins", "block_indices_begins",
           "block_indices", "rows", "logits_rows", *IMAGE_INPUTS, TOKEN_TYPES)  # fmt: skip


class PagedEngine:
    """A folder on OpenVINO's CPU. Weights are mapped from the file, then packed by the plugin."""

    chunk = CHUNK
    mixes_lengths = True
    prompt_budget = PROMPT_BUDGET

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        properties: Mapping[str, object],
        *,
        joins: bool = True,
        hidden: GivenHidden | None = None,
    ) -> None:
        """properties: in OpenVINO's words. joins: several make their steps in one run, which rounds otherwise.

        hidden: states that its sessions keep for a draft head.
        Raises DeviceError.
        """
        if any(attention.softcap for attention in package.decoder.attentions):
            raise DeviceError(
                f"attention of '{package.name}' has logit soft-capping, which paged attention does not do."
            )
        if package.decoder.chunk:
            raise DeviceError(f"layers of '{package.name}' attend in chunks, which paged attention does not do.")
        if package.decoder.is_recurrent:
            raise DeviceError(f"layers of '{package.name}' keep a state of fixed size, which has no pages.")
        if _exceeds_a_window(package):
            raise DeviceError(
                f"an image of '{package.name}' may be longer than a window, and paged attention lets all tokens of it "
                "attend to one another."
            )
        self.max_batch = MAX_BATCH if joins else 1
        self.gives_hidden = hidden is not None
        self.device = device
        self.package = package
        self.kv = kv_shapes(package.decoder, graph.kv)
        self.context = package.context
        self.remedy = package.larger_context
        self.piece = _LONG_PIECE if package.files[WEIGHTS].bytes < _SMALL else _PIECE
        self.images: ImageFeatures | None = None
        if package.decoder.vision is not None:
            self.images = ImageFeatures(
                lambda: OvVision(package, "CPU", properties), bidirectional=package.decoder.images_are_bidirectional
            )
        path = package.folder / graph.file
        with as_device_error(f"cannot load '{path}' on CPU"):
            model = core().read_model(path, package.weights)
            paged_attention(model)
            if self.images is not None and self.images.bidirectional:
                add_token_types(model, in_windows=package.decoder.images_are_whole_in_windows_only)
            if self.images is not None:
                add_images(model, package.decoder)
            cut_rows(model, package.decoder, hidden=hidden)
            compiled = core().compile_model(model, "CPU", {**properties, **_BY_TOKEN})
            self._compiled: ov.CompiledModel | None = compiled
            self._request: ov.InferRequest | None = compiled.create_infer_request()
            caches = {port.get_any_name(): port for port in compiled.inputs}
            if unknown := sorted(name for name in caches if "_cache." not in name and name not in _INPUTS):
                raise RuntimeError(f"the model with paged attention has inputs that are not known: {unknown}")
            layouts = {name: layout_of(port) for name, port in caches.items() if "_cache." in name}
            self.blocks = Blocks(layouts, self._bind)

    @property
    def compiled(self) -> ov.CompiledModel:
        if self._compiled is None:
            raise ValueError("this model was closed")
        return self._compiled

    def open(self, capacity: int = 0) -> PagedSession:
        if self._request is None:
            raise ValueError("this model was closed")
        return PagedSession(self)

    def run_batch(self, rows: Sequence[BatchRow]) -> list[NumpyLogits]:
        feeds = [(cast("PagedSession", row.session), row.tokens) for row in rows]
        for session, tokens in feeds:
            session.check(tokens)
        logits = self.run(feeds)
        for session, tokens in feeds:
            session.position += len(tokens)
        return [NumpyLogits(row) for row in logits]

    def run(self, feeds: Sequence[tuple[PagedSession, Sequence[int]]], *, is_all: bool = False) -> F32:
        """Appends tokens to each session; the logits after the last of each, or after all, [rows, V].

        The positions of the sessions are left to the caller. Raises DeviceError.
        """
        if self._request is None:
            raise ValueError("this model was closed")
        try:
            for session, tokens in feeds:
                session.reserve(session.position + len(tokens))
        except MemoryError as error:
            raise DeviceError(f"there is no memory for the KV of {len(feeds)} sequences in one run.") from error
        inputs = self._inputs(feeds, is_all=is_all)
        with as_device_error("cannot make a step"):
            for name, values in inputs.items():
                self._request.set_tensor(name, ov.Tensor(values))
            self._request.infer()
            if self.gives_hidden:
                _keep_hidden(feeds, self._request.get_tensor(LAST_HIDDEN_STATE).data[:, 0], is_all=is_all)
            return self._request.get_output_tensor(0).data[:, 0].astype(np.float32)  # a copy

    def _inputs(self, feeds: Sequence[tuple[PagedSession, Sequence[int]]], *, is_all: bool) -> dict[str, np.ndarray]:
        inputs = _inputs(feeds, is_all=is_all, gives_hidden=self.gives_hidden)
        if self.images is None:
            return inputs
        images = self.images.take(
            [token for _, tokens in feeds for token in tokens], lambda: all(session.is_stopping for session, _ in feeds)
        )
        if self.images.bidirectional:
            inputs[TOKEN_TYPES] = token_types(len(inputs["input_ids"]), images.places if images else ())
        for session, tokens in feeds:
            session.put_images(session.position, tokens)
        spans = [(session.places, session.position, session.position + len(tokens)) for session, tokens in feeds]
        ids = {} if images is None else {"input_ids": images.tokens}
        return {**inputs, **ids, **image_inputs(self.package.decoder, images, spans)}

    def close(self) -> None:
        if self.images is not None:
            self.images.close()
        self._request = self._compiled = None  # sessions may be kept, and this with them: so that both go now
        return_freed_memory()

    def _bind(self, name: str, buffer: ov.Tensor) -> None:
        if self._request is not None:  # else a session gives its blocks back after the end
            self._request.set_tensor(name, buffer)


class PagedSession:
    """One sequence: the blocks that it has of the engine's, and how many tokens they hold."""

    def __init__(self, engine: PagedEngine) -> None:
        self.position = 0
        self.capacity = 0
        self.is_stopping = False
        self._engine = engine
        self._decoder = engine.package.decoder
        self.places = open_places(self._decoder, engine.images)
        self.hidden = HiddenRows(self._decoder.hidden) if engine.gives_hidden else None
        self._blocks: list[int] = []
        self._is_closed = False

    @property
    def blocks(self) -> Sequence[int]:
        return self._blocks

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        """As Session. Several runs where the tokens are many: a run is not stopped in the middle."""
        self.check(tokens)
        start, most, images = self.position, self._engine.piece, self._engine.images
        try:
            at = 0
            while at < len(tokens) - most:
                end = at + most if images is None else images.end_of_piece(tokens, at + most)
                if end == len(tokens):
                    break
                self._run(tokens[at:end])
                at = end
            return NumpyLogits(self._run(tokens[at:])[0])
        except BaseException:
            self.position = start
            raise

    def feed_all(self, tokens: Sequence[int]) -> F32:
        self.check(tokens)
        return self._run(tokens, is_all=True)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position
        if self.places is not None:
            self.places.rewind(position)
        if not position:
            self._give_back()

    def put_images(self, place: int, tokens: Sequence[int]) -> None:
        if self.places is not None:
            self.places.put(place, tokens)

    def adapt(self, adapter: Adapter | None) -> None:
        check_change(adapter, self.position, can=False)

    def interrupt(self, stop: bool = True) -> None:
        self.is_stopping = stop

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        read = self._engine.blocks.read
        return [
            (read(f"key_cache.{layer}", self._blocks, start, stop),
             read(f"value_cache.{layer}", self._blocks, start, stop))
            for layer in range(len(self._engine.kv))
        ]  # fmt: skip

    def export_stored(self, spans: Sequence[Span]) -> list[KeyValues]:
        for start, stop in spans:
            check_span(start, stop, self.position)
        read = self._engine.blocks.read_stored
        return [
            [(read(f"key_cache.{layer}", self._blocks, start, stop),
              read(f"value_cache.{layer}", self._blocks, start, stop))
             for layer in range(len(self._engine.kv))]
            for start, stop in spans
        ]  # fmt: skip

    def import_state(self, state: KeyValues) -> None:
        if self._is_closed:
            raise ValueError("this session was closed")
        count = self._count(state)
        check_room(self.position, count, limit=self._engine.context, remedy=self._engine.remedy)
        self.reserve(self.position + count)
        for layer, pair in enumerate(state):
            for part, values in zip(("key", "value"), pair, strict=True):
                self._engine.blocks.write(f"{part}_cache.{layer}", self._blocks, self.position, values)
        self.position += count
        if self.hidden is not None:
            self.hidden.clear()

    def close(self) -> None:
        self._is_closed = True
        self.position = 0
        self._give_back()

    def reserve(self, tokens: int) -> None:
        """Makes room for that many."""
        if (more := -(-tokens // BLOCK) - len(self._blocks)) > 0:
            self._blocks += self._engine.blocks.take(more)
            self.capacity = BLOCK * len(self._blocks)

    def _run(self, tokens: Sequence[int], *, is_all: bool = False) -> F32:
        if self.is_stopping:
            raise Interrupted
        logits = self._engine.run([(self, tokens)], is_all=is_all)
        self.position += len(tokens)
        return logits

    def check(self, tokens: Sequence[int]) -> None:
        """Raises ValueError and ContextFull, as feed."""
        if self._is_closed:
            raise ValueError("this session was closed")
        check_tokens(tokens, self.position, vocabulary=self._decoder.vocabulary, limit=self._engine.context,
                     remedy=self._engine.remedy, images=self._engine.images)  # fmt: skip

    def _count(self, state: KeyValues) -> int:
        """How many tokens a state has, of floats or as it is stored here; ValueError when it is of another model."""
        layouts = self._engine.blocks.layouts
        pairs = [(layouts[f"key_cache.{n}"], layouts[f"value_cache.{n}"]) for n in range(len(self._engine.kv))]
        if state and pairs[0][0].holds(state[0][0]):
            stored = [(key.heads, key.width, value.width) for key, value in pairs]
            return check_state(state, stored, dtype=pairs[0][0].dtype.name)
        return check_state(state, self._engine.kv)

    def _give_back(self) -> None:
        self._engine.blocks.give_back(self._blocks)
        self._blocks, self.capacity = [], 0


def _exceeds_a_window(package: Package) -> bool:
    """Whether an image whose tokens attend to one another may be longer than a layer's window."""
    decoder = package.decoder
    if not decoder.images_are_bidirectional:
        return False
    longest = decoder.vision.tile_tokens if isinstance(decoder.vision, Vision) else most_tokens(package.folder)
    return any(attention.window and attention.window < longest for attention in decoder.attentions)


def _inputs(
    feeds: Sequence[tuple[PagedSession, Sequence[int]]], *, is_all: bool, gives_hidden: bool
) -> dict[str, np.ndarray]:
    """What the model takes, all sequences behind one another."""
    counts = [len(tokens) for _, tokens in feeds]
    lengths = [session.position for session, _ in feeds]
    ends = [past + count for past, count in zip(lengths, counts, strict=True)]
    tables = [session.blocks[: -(-end // BLOCK)] for (session, _), end in zip(feeds, ends, strict=True)]
    row_counts = _hidden_counts(counts, is_all=is_all) if gives_hidden else counts if is_all else [1] * len(counts)
    behind = zip(row_counts, accumulate(counts), strict=True)
    rows = np.concatenate([np.arange(end - count, end) for count, end in behind])
    of_logits = np.arange(sum(row_counts)) if is_all else np.array(list(accumulate(row_counts))) - 1
    return {
        "input_ids": np.array([token for _, tokens in feeds for token in tokens], np.int64),
        "position_ids": np.concatenate([np.arange(*span) for span in zip(lengths, ends, strict=True)]).astype(np.int64),
        "past_lens": np.array(lengths, np.int32),
        "subsequence_begins": np.array([0, *accumulate(counts)], np.int32),
        "block_indices": np.array([block for table in tables for block in table], np.int32),
        "block_indices_begins": np.array([0, *accumulate(map(len, tables))], np.int32),
        "max_context_len": np.array(max(ends), np.int32),
        "rows": rows.astype(np.int64),
        **({"logits_rows": of_logits.astype(np.int64)} if gives_hidden else {}),
    }


def _hidden_counts(counts: Sequence[int], *, is_all: bool) -> Sequence[int]:
    """Of that many tokens of each sequence, how many pass the last layer: those whose hidden states are kept."""
    return counts if is_all else [min(count, OF_PROMPT) for count in counts]


def _keep_hidden(feeds: Sequence[tuple[PagedSession, Sequence[int]]], rows: F32, *, is_all: bool) -> None:
    """Gives each session its hidden states, of all rows of a run."""
    counts = [len(tokens) for _, tokens in feeds]
    ends = accumulate(_hidden_counts(counts, is_all=is_all))
    for (session, tokens), count, end in zip(feeds, _hidden_counts(counts, is_all=False), ends, strict=True):
        assert session.hidden is not None  # as the engine gives them
        session.hidden.put(session.position + len(tokens), rows[end - count : end])
