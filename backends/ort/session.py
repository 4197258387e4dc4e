"""Sequences in ONNX Runtime whose KV lies in the memory of the host; several in one run: batch.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.checks import check_change, check_rewind, check_room, check_span, check_state, check_tokens
from embedllm.backends.images import text_and_images
from embedllm.backends.mrope import open_places
from embedllm.backends.ort.activation_replay import Activations
from embedllm.backends.ort.binding import bind_adapter, bind_kv
from embedllm.backends.ort.recurrent_state import HostStateMemory, KeptStates, States
from embedllm.backends.ort.runtime import feed_errors, ort, run_options
from embedllm.backends.sessions.hidden_rows import HiddenRows
from embedllm.backends.sessions.sparse_memory import empty_rows, forget, move_rows
from embedllm.backends.sessions.window_retention import WindowedKvRetention
from embedllm.backends.system.host_memory import HugePages, return_freed_memory
from embedllm.package.graph_variants import HIDDEN_FROM, HIDDEN_STATES, LAST_HIDDEN_STATE
from embedllm.package.tensors import ROPE_TABLES
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.backends.base import Cached, KeyValues, RecurrentStates, Span
    from embedllm.backends.images import ImageFeatures
    from embedllm.backends.ort.activation_replay import ReplayGraph
    from embedllm.backends.sessions.shared_kv import SharedKv
    from embedllm.package.lora.adapter import Adapter
    from embedllm.package.package import Package
    from embedllm.types import F32

_STEP = 256  # tokens; capacities are multiples of it
_GROWTH = 1.5  # each growth copies the KV once, so that a token costs a constant number of copies on average


class SessionHost(Protocol):
    """What a session needs of its engine."""

    package: Package
    adapts: bool
    only_last: bool
    hidden_rows: int  # of the last tokens of a feed, whose hidden states the graph shall give; 0: it cannot
    images: ImageFeatures | None
    windows: dict[str, int]  # by the name of the keys or values
    pages: HugePages
    replay_graph: ReplayGraph | None  # where its graph gives what that takes

    @property
    def session(self) -> ort.InferenceSession: ...

    @property
    def dtype(self) -> np.dtype[np.floating]: ...

    def empty_kv(self) -> dict[str, NDArray[Cached]]: ...


class OrtSession:
    """One sequence. Its KV lies in buffers that are past and present at once: a step appends, a rewind is a number."""

    def __init__(self, engine: SessionHost, capacity: int) -> None:
        self.position = 0
        self.capacity = 0
        self.is_stopping = False
        self.shared: SharedKv | None = None  # where it has a slot, with sessions that step together
        self.adapter: Adapter | None = None
        self._adapts = engine.adapts
        self._context, self._remedy = engine.package.context, engine.package.larger_context
        self._decoder = engine.package.decoder
        self._vocabulary = self._decoder.vocabulary
        self._logits_size = self._decoder.head.rows  # fewer than tokens, of a draft head
        self._session: ort.InferenceSession | None = engine.session
        self._pages = engine.pages
        self._binding: ort.IOBinding | None = None  # of an open session
        self._run_options = run_options()
        self._is_bound = False  # to its KV as that lies now
        self._first: ort.OrtValue | None = None  # the value of logits_from
        self._only_last = engine.only_last
        self._images = engine.images
        self.hidden = HiddenRows(self._decoder.hidden) if engine.hidden_rows else None
        self.hidden_states: F32 | None = None  # that a head reads with the next tokens, [1, T, D]
        self._hidden_rows = engine.hidden_rows
        self._first_hidden: ort.OrtValue | None = None  # the value of hidden_from
        self._bound_hidden = 0  # rows that there is room for in the binding
        self._given_hidden = np.empty((1, 0, 0), np.float32)  # by the last run
        self._image_inputs: list[ort.OrtValue] = []  # inputs of the images in a run, which the binding may not hold
        self._places = open_places(self._decoder, engine.images)
        self._rope: list[NDArray[np.float32]] = []  # tables of its own, where an image has moved positions
        self.kv = engine.empty_kv()
        self.retention = WindowedKvRetention(engine.windows)
        self._was_many = False  # the last feed: a prompt
        self.state_buffers = States(self._decoder, HostStateMemory())
        self._activations = Activations(engine.replay_graph)
        self._ones = np.ones((1, 0), np.int64)
        self.logits = np.empty((1, 1, self._logits_size), engine.dtype)
        self._unbind()
        self._reserve(max(capacity, 1))

    def feed(self, tokens: Sequence[int]) -> NumpyLogits:
        self.check(tokens)
        self.begin_feed(len(tokens))
        pieces = self._pieces(tokens)
        if len(pieces) == 1:
            return self._feed(tokens, self._run_options)
        start = self.position
        try:
            *_, last = [self._feed(piece, self._run_options) for piece in pieces]
        except BaseException:
            self.position = start
            raise
        return last

    def step(self, token: int, options: ort.RunOptions) -> NumpyLogits:
        """As feed of a token that was checked, which `interrupt` does not stop."""
        self.begin_feed(1)
        return self._feed([token], options)

    def check(self, tokens: Sequence[int]) -> None:
        """Raises ValueError and ContextFull, as feed."""
        if self._binding is None:
            raise ValueError("this session was closed")
        check_tokens(tokens, self.position, vocabulary=self._vocabulary, limit=self._context, remedy=self._remedy,
                     images=self._images)  # fmt: skip

    def begin_feed(self, count: int) -> None:
        """Call before that many tokens are fed, when the session's position is final.

        Frees what no window sees any more, and what was kept of the feed before.
        """
        self._activations.forget()
        if count == 1 and self._was_many:
            self.retention.end_prompt(self.position)
        self._was_many = count > 1
        if self.retention.may_forget(self.position):
            forget(self)

    def feed_all(self, tokens: Sequence[int]) -> F32:
        self.check(tokens)
        if self._only_last:
            return self._feed_each(tokens)
        if self.retention.may_forget(self.position):
            forget(self)
        start, rows = self.position, []
        try:
            for piece in self._pieces(tokens):
                binding = self._prepare(piece, logits_from=0)
                # without a buffer of ours, which would be checked against the one position that the graph declares
                binding.bind_output("logits")
                self._run(binding, len(piece), self._run_options)
                rows.append(binding.get_outputs()[0].numpy()[0].astype(np.float32, copy=False))
        except BaseException:
            self.position = start
            raise
        self._end_feed()
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def feed_drafts(self, tokens: Sequence[int]) -> F32:
        self.check(tokens)
        if not self._activations.ask(len(tokens)):
            return self.feed_all(tokens)
        try:
            return self.feed_all(tokens)
        finally:
            self._unbind_activations()

    def _pieces(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """What is fed in runs of their own: an image whose tokens attend to one another."""
        return text_and_images(tokens) if self._images is not None and self._images.bidirectional else [tokens]

    def _feed_each(self, tokens: Sequence[int]) -> F32:
        """As feed_all, where the graph gives one row at a time."""
        start, rows = self.position, np.empty((len(tokens), self._logits_size), np.float32)
        try:
            for row, token in zip(rows, tokens, strict=True):
                self.feed([token])
                row[:] = self.logits[0, 0]
        except BaseException:
            self.position = start
            raise
        return rows

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        if (back := self.back(position)) != position:
            raise ValueError(
                f"cannot rewind to {position}: what windows saw there is no longer kept. Rewind to {back}, and feed "
                "the tokens from there on again."
            )
        self.position = position
        self._activations.rewind(position)
        if self._places is not None:
            self._places.rewind(position)
        self.retention.rewind(position)
        if not position:
            self.state_buffers.reset()

    @property
    def keeps_all(self) -> bool:
        return self.retention.keeps_all

    @keeps_all.setter
    def keeps_all(self, keeps_all: bool) -> None:
        self.retention.keeps_all = keeps_all

    def whole(self) -> int:
        return self.retention.whole(self.position)

    def back(self, position: int) -> int:
        return self.retention.back(position)

    def states(self) -> KeptStates:
        return self.state_buffers.keep()

    def set_states(self, states: KeptStates) -> None:
        self.state_buffers.put(states)

    def can_replay(self, start: int, position: int) -> bool:
        return self._activations.reach(start, position)

    def replay(self, position: int) -> None:
        self.rewind(position)
        with feed_errors(position, lambda: False):
            self._activations.replay(self.state_buffers, position)

    def copied(self, states: KeptStates) -> RecurrentStates:
        return {name: value.numpy()[0].copy() for name, value in states.buffers.items()}

    def take_states(self, states: RecurrentStates) -> None:
        self.state_buffers.take({name: array[None] for name, array in states.items()})

    def export_state(self, start: int, stop: int) -> KeyValues:
        return self.export_stored([(start, stop)])[0]

    def export_stored(self, spans: Sequence[Span]) -> list[KeyValues]:
        for start, stop in spans:
            check_span(start, stop, self.position)
            if not self.retention.has(start, stop, self.position):
                raise ValueError(
                    f"the KV of tokens {start} to {stop} is not kept in layers with windows; there is that of the "
                    f"first {self.whole()}. Feed the tokens again where they are needed, or set keeps_all before."
                )
        pairs = [(self.kv[f"{number}.key"][0], self._values(number)[0]) for number in range(self._kv_layers())]
        return [
            [(key[:, start:stop].copy(), value[:, start:stop].copy()) for key, value in pairs] for start, stop in spans
        ]

    def import_state(self, state: KeyValues) -> None:
        if self._binding is None:
            raise ValueError("this session was closed")
        pairs = [(self.kv[f"{number}.key"], self._values(number)) for number in range(self._kv_layers())]
        shapes = [(key.shape[1], key.shape[3], value.shape[3]) for key, value in pairs]
        dtype = self.kv["0.key"].dtype
        end = self.position + check_state(state, shapes, dtype="" if dtype.kind == "f" else dtype.name)
        check_room(self.position, end - self.position, limit=self._context, remedy=self._remedy)
        self._reserve(end)
        for number, (keys, values) in enumerate(state):
            self.kv[f"{number}.key"][0, :, self.position : end] = keys
            self._values(number)[0, :, self.position : end] = values
        self.position = end
        if self.hidden is not None:
            self.hidden.clear()

    def _kv_layers(self) -> int:
        return sum(name.endswith(".key") for name in self.kv)

    def _values(self, number: int) -> NDArray[Cached]:
        """Values of a layer [1, kv heads, capacity, D]; of latents, which are among the keys, D is 0."""
        values = self.kv.get(f"{number}.value")
        return self.kv[f"{number}.key"][..., :0] if values is None else values

    @property
    def has_own_positions(self) -> bool:
        """Whether an image has moved its positions: then it steps in a run of its own, with tables of its own."""
        return bool(self._places)

    def put_images(self, place: int, tokens: Sequence[int]) -> None:
        if self._places is not None:
            self._places.put(place, tokens)

    def adapt(self, adapter: Adapter | None) -> None:
        check_change(adapter, self.position, can=self._adapts)
        if self._adapts and self._binding is not None:
            if self.shared is not None and adapter is not self.adapter:
                self.shared.leave(self)  # its members have one
            bind_adapter(self._binding, self._decoder, adapter)
            self.adapter = adapter  # its arrays are bound, not copied

    def interrupt(self, stop: bool = True) -> None:
        self.is_stopping = stop
        self._run_options.terminate = stop

    def close(self) -> None:
        self.state_buffers.close()
        self._activations.forget()
        if self.shared is not None:
            self.shared.close(self)
        self._binding = None
        self._session = None  # the weights go with the last session that holds it
        self.kv.clear()
        self.capacity = self.position = 0

    def hold(self, kv: dict[str, NDArray[Cached]], capacity: int) -> None:
        if self._is_bound:
            self._unbind()  # a binding holds the buffers
        self.kv.update(kv)
        if capacity != self.capacity:
            self._ones = np.ones((1, capacity), np.int64)
            self.capacity = capacity

    def _feed(self, tokens: Sequence[int], options: ort.RunOptions) -> NumpyLogits:
        binding = self._prepare(tokens, logits_from=-1)
        binding.bind_ortvalue_output("logits", ort.OrtValue.ortvalue_from_numpy(self.logits))
        self._run(binding, len(tokens), options)
        self._end_feed()
        return NumpyLogits(self.logits[0, 0].astype(np.float32, copy=False))

    def _unbind(self) -> None:
        """A binding that has nothing of the KV yet."""
        assert self._session is not None  # as long as there is a binding
        binding = self._session.io_binding()
        binding.bind_output("logits")  # the first to be bound is the first of get_outputs()
        if self._adapts:
            bind_adapter(binding, self._decoder, self.adapter)
        self._binding = binding
        self._is_bound = False
        self._bound_hidden = 0
        self._image_inputs = []

    def _unbind_activations(self) -> None:
        """The binding as it was before a feed that gave them; an adapter stays bound."""
        binding = self._binding
        assert binding is not None  # as it was fed
        self._activations.unbind(binding)
        binding.bind_output("logits")
        if self._is_bound:
            bind_kv(binding, self.kv)
        self._bound_hidden = 0

    def _end_feed(self) -> None:
        if self.shared is not None:
            self.shared.end_feed(self)

    def _prepare(self, tokens: Sequence[int], *, logits_from: int) -> ort.IOBinding:
        """Makes room for the tokens and binds the inputs."""
        end = self.position + len(tokens)
        self._reserve(end)
        self.put_images(self.position, tokens)
        if self._rope and not self._places:
            self._rope = []
            self._unbind()  # from the tables
        binding = self._binding
        assert binding is not None  # checked
        if not self._is_bound:
            bind_kv(binding, self.kv)
            self._is_bound = True
        ids = tokens if self._images is None else self._bind_images(binding, self._images, tokens)
        binding.bind_cpu_input("input_ids", np.array([ids], np.int64))
        binding.bind_cpu_input("attention_mask", self._ones[:, :end])
        if not self._only_last:
            # as a value: bind_cpu_input does not find an input that has a default (ONNX Runtime 1.31)
            # and kept by us: the binding of older versions (1.24 to 1.27) leaves it to be freed before the run
            self._first = ort.OrtValue.ortvalue_from_numpy(np.array([logits_from], np.int64))
            binding.bind_ortvalue_input("logits_from", self._first)
        if self.hidden is not None:
            self._bind_hidden(binding, len(tokens), is_all=logits_from == 0)
        if self._places:
            self._bind_tables(end)
        self.state_buffers.bind(binding)
        self._activations.bind(binding)
        return binding

    def _bind_hidden(self, binding: ort.IOBinding, count: int, *, is_all: bool) -> None:
        """Binds room for the hidden states of all tokens of a feed, or of the last ones; and those that it reads."""
        rows = count if is_all else min(count, self._hidden_rows)
        if rows != self._bound_hidden:  # else they are bound since the last step: a twentieth of a small model's
            self._given_hidden = np.empty((1, rows, self._decoder.hidden), np.float32)
            self._first_hidden = ort.OrtValue.ortvalue_from_numpy(np.array([-rows], np.int64))  # kept as self._first is
            binding.bind_ortvalue_input(HIDDEN_FROM, self._first_hidden)
            binding.bind_ortvalue_output(LAST_HIDDEN_STATE, ort.OrtValue.ortvalue_from_numpy(self._given_hidden))
            self._bound_hidden = rows
        if self.hidden_states is not None:
            binding.bind_cpu_input(HIDDEN_STATES, self.hidden_states)

    def _bind_tables(self, end: int) -> None:
        """Rotary tables of this sequence, of which a run reads the rows of its own tokens only."""
        assert self._places is not None
        assert self._binding is not None
        rows = self._places.rope_rows(self.position, end)
        if not self._rope or len(self._rope[0]) < end:
            self._rope = [np.empty((self.capacity, each.shape[1]), np.float32) for each in rows]
        for table, new in zip(self._rope, rows, strict=True):
            table[self.position : end] = new
        for name, table in zip(ROPE_TABLES, self._rope, strict=True):
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(table))

    def _bind_images(
        self, binding: ort.IOBinding, images: ImageFeatures, tokens: Sequence[int]
    ) -> Sequence[int] | NDArray[np.int64]:
        """Binds the features of the images among the tokens, or none; the ids that the graph takes."""
        inputs = images.take(tokens, lambda: self.is_stopping)
        if inputs is None and not self._image_inputs:
            return tokens
        width = self._decoder.image_width
        features = np.zeros((0, width), np.float32) if inputs is None else inputs.features
        places = np.array([(0, place) for place in (inputs.places if inputs else ())], np.int64).reshape(-1, 2)
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in (features, places)]
        for name, value in zip(("image_features", "image_positions"), values, strict=True):
            binding.bind_ortvalue_input(name, value)
        self._image_inputs = values
        return tokens if inputs is None else inputs.tokens

    def _run(self, binding: ort.IOBinding, count: int, options: ort.RunOptions) -> None:
        assert self._session is not None  # as long as there is a binding
        stops = feed_errors(self.position, lambda: options is self._run_options and self.is_stopping)
        with stops, self._pages.beside(count):
            self._session.run_with_iobinding(binding, options)
        self.state_buffers.advance()
        self._activations.take(binding, self.position, count)
        self.position += count
        if self.hidden is not None:
            self.hidden.put(self.position, self._given_hidden[0])

    def _reserve(self, tokens: int) -> None:
        """Makes room for that many tokens; buffers grow one by one, so that only one is there twice."""
        if tokens <= self.capacity:
            return
        if self.shared is not None:
            self.shared.leave(self, room=tokens - self.position)
            return
        target = max(tokens, int(self.capacity * _GROWTH))
        capacity = min(-(-target // _STEP) * _STEP, self._context)
        try:
            for name in list(self.kv):  # not the items, which would hold every old buffer until the end
                self._grow(name, capacity)
        except MemoryError:
            self.hold({}, 0)  # buffers of two sizes: all of them grow again before the next run
            raise
        if self.position:
            return_freed_memory()

    def _grow(self, name: str, capacity: int) -> None:
        old = self.kv[name]
        _, heads, _, size = old.shape
        new = empty_rows((1, heads, capacity, size), old.dtype, is_windowed=self.retention.is_windowed(name))
        move_rows(name, self, new)
        self.hold({name: new}, capacity)
