"""One sequence of an engine whose KV stays on the device: a slot of a pool, and how many tokens are held there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from embedllm.backends.base import BatchRow, Interrupted
from embedllm.backends.checks import check_rewind, check_room, check_span, check_state, check_tokens
from embedllm.backends.gpu.device_logits import BEST, LogitsBoard, RunLogits
from embedllm.backends.gpu.device_memory import DeviceArray, DeviceBlock, DeviceMemory, DeviceState, new_arrays
from embedllm.backends.gpu.hidden_rows import DeviceHiddenRows
from embedllm.backends.gpu.images import ImageDecoder, bind_images, is_image, pieces_of
from embedllm.backends.gpu.kv_pool import KvPool
from embedllm.backends.gpu.on_device import not_waiting
from embedllm.backends.mrope import open_places
from embedllm.backends.ort.runtime import device_errors, feed_errors, ort
from embedllm.backends.sessions.hidden_rows import OF_PROMPT
from embedllm.errors import EmbedError
from embedllm.package.graph_variants import HIDDEN_FROM, LAST_HIDDEN_STATE
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    import threading

    from embedllm.backends.base import Device, KeyValues, Span
    from embedllm.backends.gpu.several_tokens import SeveralTokens
    from embedllm.backends.images import ImageFeatures, WithImages
    from embedllm.package.package import Package
    from embedllm.types import F32, Logits

_LAST = ort.OrtValue.ortvalue_from_numpy(np.array([-1], np.int64))
_FROM_LAST = [ort.OrtValue.ortvalue_from_numpy(np.array([-rows], np.int64)) for rows in range(OF_PROMPT + 1)]
_ALL = ort.OrtValue.ortvalue_from_numpy(np.array([0], np.int64))


class SessionHost(Protocol):
    """What a session needs of its engine (io_binding_engine.py)."""

    device: Device
    package: Package
    context: int  # tokens
    remedy: str
    lock: threading.RLock  # of all that runs on the device
    where: tuple[str, int]  # the device in ONNX Runtime's words: its type and index
    dtype: type[np.floating]  # of KV and logits
    memory: DeviceMemory
    tokens: DeviceBlock  # of a prompt
    mask: DeviceBlock  # zeros behind the first
    prompts: LogitsBoard  # of the latest prompt
    images: ImageFeatures | None  # None: it takes text only
    gives_hidden: bool  # its graph has hidden states as an output
    hidden: DeviceBlock | None  # then: of the latest prompt
    image_decoder: ImageDecoder  # for images whose tokens attend to one another
    several: SeveralTokens

    @property
    def session(self) -> ort.InferenceSession: ...

    def pool(self, capacity: int) -> KvPool:
        """The smallest whose sequences hold that many tokens."""
        ...

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        """Options to run what is captured under that number, or is captured so now; None: nothing is."""
        ...

    def run_batch(self, rows: Sequence[BatchRow]) -> Sequence[Logits]: ...


class _Hidden(NamedTuple):
    """Hidden states of the last tokens of a run."""

    address: int
    rows: int


class _Prompt(NamedTuple):
    """A run that appends tokens."""

    session: ort.InferenceSession
    binding: ort.IOBinding
    end: int  # the position behind them
    hidden: _Hidden | None


class ResidentSession:
    """One sequence. A step appends in place; a rewind is a number; a growth copies on the device."""

    def __init__(self, engine: SessionHost, capacity: int) -> None:
        self.position = 0
        self.side = 0  # of its states, if it has any: state_pool.py
        self.fed = 0  # how often; and once more when it was closed
        self.version = 0  # changes with all that is held
        self.best: int | None = None  # of the latest logits, once it was asked for
        self.greedy = 0  # steps in a row that took the best token and asked for nothing else
        self._engine = engine
        self._decoder = engine.package.decoder
        self._stopping = False
        self._without_waiting = not_waiting(engine.replaying(None))  # kernel by kernel
        self._options = self._without_waiting  # of the run that is under way, or was the last
        row_bytes = self._decoder.hidden * np.dtype(engine.dtype).itemsize
        self.hidden = DeviceHiddenRows(engine.memory, engine.lock, row_bytes) if engine.gives_hidden else None
        self._places = open_places(self._decoder, engine.images)
        self._inputs: tuple[DeviceBlock | None, ...] = ()  # of the latest run: its images, and rotary tables of its own
        self._imported: tuple[int, list[DeviceArray]] | None = None  # its first position, and what is to be copied
        self._pool: KvPool | None = engine.pool(min(capacity, engine.context))
        self._pool.take(self)

    @property
    def capacity(self) -> int:
        return self._pool.capacity if self._pool else 0

    @property
    def pool(self) -> KvPool:
        if self._pool is None:
            raise ValueError("this session was closed")
        return self._pool

    @property
    def can_step(self) -> bool:
        """Whether one token more is wanted, and fits where it lies."""
        return self._pool is not None and not self._stopping and self.position < self._pool.capacity

    def feed(self, tokens: Sequence[int]) -> Logits:
        self._check(tokens)
        if self._stopping:
            raise Interrupted
        if len(tokens) == 1 and self.position and not self.steps_alone(tokens[0]):
            return self._engine.run_batch([BatchRow(self, tokens)])[0]
        engine = self._engine
        with engine.lock, device_errors(engine.device), self._placed():
            self.reserve_for(tokens)
            self.note_fed()
            run = RunLogits(engine.prompts, [self])
            engine.prompts.replace(run)
            shape = (1, 1, self._decoder.vocabulary)
            for piece in pieces_of(tokens, engine.images):
                prompt = self._bound(piece, _LAST)
                prompt.binding.bind_output("logits", *engine.where, engine.dtype, shape, engine.prompts.address)
                # of another graph, memory of the host may still be needed when its session is closed
                is_own = prompt.session is engine.session
                self._run(prompt, self._without_waiting if is_own else engine.replaying(None))
            return run.row(0)

    def feed_all(self, tokens: Sequence[int]) -> F32:
        self._check(tokens)
        engine = self._engine
        with engine.lock, device_errors(engine.device), self._placed():
            self.reserve_for(tokens)
            self.note_fed()
            rows: list[np.ndarray] = []
            for piece in pieces_of(tokens, engine.images):
                prompt = self._bound(piece, _ALL)
                prompt.binding.bind_output("logits")
                self._run(prompt, engine.replaying(None))
                rows.append(prompt.binding.get_outputs()[-1].numpy()[0].astype(np.float32))  # bound last
            return np.concatenate(rows)

    def feed_rows(self, tokens: Sequence[int]) -> Sequence[Logits]:
        self._check(tokens)
        engine = self._engine
        width = engine.several.width(self, tokens)
        if not width:
            return [NumpyLogits(row) for row in self.feed_all(tokens)]
        if self._stopping:
            raise Interrupted
        with engine.lock, device_errors(engine.device), self._placed():
            self._reserve(self.position + width)
            self._copy_imported()
            return engine.several.feed(self, tokens, width)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        with self._engine.lock, device_errors(self._engine.device):
            self._copy_imported()
            self.position = position
            self.version += 1
            if not position and self._pool is not None:
                self._pool.states.zero(self._pool.table.slot(self), self.side)
            if self._places is not None:
                self._places.rewind(position)

    def put_images(self, place: int, tokens: Sequence[int]) -> None:
        if self._places is not None:
            self._places.put(place, tokens)

    @property
    def rope_position(self) -> int:
        """Where the next token stands, one of text."""
        return self._places.position(self.position) if self._places else self.position

    def steps_alone(self, token: int) -> bool:
        """Whether a step of that token takes inputs that captured steps do not have."""
        return is_image(token) or (bool(self._places) and not self.pool.rotary.has_positions)

    def reads_alone(self, tokens: Sequence[int]) -> bool:
        """Whether a prompt of these has rotary tables of its own, or runs of another graph."""
        images = self._engine.images
        is_apart = self._places is not None or (images is not None and images.bidirectional)
        return is_apart and any(map(is_image, tokens))

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop
        self._options.terminate = stop

    def export_state(self, start: int, stop: int) -> KeyValues:
        with self._engine.lock, device_errors(self._engine.device):
            block, arrays = self._exported(start, stop)
            values = np.empty(sum(array.nbytes for array in arrays) // arrays[0].dtype.itemsize, arrays[0].dtype)
            if values.size:
                self._engine.memory.read(block.address, values[None])
        ends = np.cumsum([np.prod(array.shape) for array in arrays])[:-1]
        parts = [part.reshape(array.shape) for part, array in zip(np.split(values, ends), arrays, strict=True)]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def export_stored(self, spans: Sequence[Span]) -> list[KeyValues]:
        """Arrays that stay on the device. Those of one call share memory, which is freed with the last of them."""
        start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
        with self._engine.lock, device_errors(self._engine.device):
            for span in spans:
                check_span(*span, self.position)
            _, arrays = self._exported(start, stop)
        states = [DeviceState(arrays, a - start, b - start) for a, b in spans]
        return cast("list[KeyValues]", states)  # what is asked of states and their arrays, these have

    def import_state(self, state: KeyValues) -> None:
        """Arrays of this device are copied there, those that lie one behind the other at once, before the next run."""
        engine, arrays = self._engine, [array for pair in state for array in pair]
        count = self._own_tokens(arrays)
        is_own = count is not None
        if count is None:
            count = check_state(state, [(a.kv_heads, a.head_dim) for a in self._decoder.kv_attentions])
        check_room(self.position, count, limit=engine.context, remedy=engine.remedy)
        if not count:
            return
        with engine.lock, device_errors(engine.device):
            start = self.position
            self._reserve(start + count)
            if is_own:
                self._note_imported(start, arrays)  # pyright: ignore[reportArgumentType] - they are this device's
            else:
                self._copy_imported()
                for name, array in zip(self.pool.shapes, arrays, strict=True):
                    self.pool.write(self, name, start, np.asarray(array).astype(engine.dtype, copy=False))
            self.position = start + count
            self.version += 1
            if self.hidden is not None:
                self.hidden.clear()

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            with self._engine.lock, suppress(EmbedError):  # closing is all that is left to do with a device that fails
                pool.release(self)
        self.position = 0
        self.fed += 1
        self._imported, self._inputs = None, ()

    def save_states(self) -> None:
        """See recurrent_engine.py; other models have none."""

    def advance(self, token: int) -> None:
        """Notes that a step has appended one."""
        self.greedy = self.greedy + 1 if token == self.best else 0
        self.note_fed(greedy=self.greedy)
        self.note_appended(1)

    def note_appended(self, count: int) -> None:
        """Notes that a run has appended that many tokens."""
        self.position += count
        self.side = self.pool.states.after(self.side)

    def put_hidden(self, address: int, count: int) -> None:
        """Notes the hidden states of the tokens that were appended last, which lie there, if the graph gives any."""
        if self.hidden is not None:
            self.hidden.put(self.position, address, count)

    def note_fed(self, *, greedy: int = 0) -> None:
        """Notes that logits of before are not those of the newest token any more. greedy: see there."""
        self.fed += 1
        self.version += 1
        self.best, self.greedy = None, greedy

    def go_back(self, position: int, side: int) -> None:
        """To where it stood before its latest runs, which have read the states of that side."""
        self.rewind(position)
        self.side = side

    def note_read(self, count: int) -> None:
        """Notes that a run of several prompts has read that many tokens of this one, which held none."""
        self.note_fed()
        self.position = count

    def reserve_for(self, tokens: Sequence[int]) -> None:
        """Checks the tokens, makes room for them, and puts what was imported in its place."""
        self._check(tokens)
        self._reserve(self.position + len(tokens))
        self._copy_imported()

    def take_images(self, tokens: Sequence[int]) -> WithImages | None:
        """What a graph takes for tokens with ids of images among them; None: all are text.

        Raises Interrupted, ValueError.
        """
        images = self._engine.images
        return None if images is None else images.take(tokens, lambda: self._stopping)

    def note_asked(self, head: str) -> None:
        if head != BEST:
            self.greedy = 0

    def note_best(self, token: int) -> None:
        self.best = token

    def _check(self, tokens: Sequence[int]) -> None:
        _ = self.pool
        vocabulary, limit = self._decoder.vocabulary, self._engine.context
        check_tokens(tokens, self.position, vocabulary=vocabulary, limit=limit, remedy=self._engine.remedy,
                     images=self._engine.images)  # fmt: skip

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """All of a feed, or nothing, nor its images: steps behind it would have positions behind these."""
        start = self.position
        try:
            yield
        except BaseException:
            self.position = start
            if self._places is not None:
                self._places.rewind(self.position)
            raise

    def _bound(self, tokens: Sequence[int], logits_from: ort.OrtValue) -> _Prompt:
        """What appends these tokens; its logits are to be bound yet."""
        engine, end, images = self._engine, self.position + len(tokens), self.take_images(tokens)
        session = engine.session
        self.put_images(self.position, tokens)
        if images is None:
            binding = self.pool.several(self)
        else:
            if engine.images is not None and engine.images.bidirectional:
                session = engine.image_decoder.session()
            binding, tokens = self.pool.with_images(self, session), images.tokens.tolist()
        image_block = None if images is None else bind_images(engine, binding, [images])
        self._inputs = image_block, self.pool.rotary.bind_prompt(binding, self.position, end, self._places)
        engine.memory.write(engine.tokens.address, np.array(tokens, np.int64))
        engine.memory.write(engine.mask.address, np.array([end], np.int64))
        binding.bind_input("input_ids", *engine.where, np.int64, (1, len(tokens)), engine.tokens.address)
        binding.bind_input("attention_mask", *engine.where, np.int64, (1, end), engine.mask.address)
        binding.bind_ortvalue_input("logits_from", logits_from)
        hidden = self._bind_hidden(binding, len(tokens)) if session is engine.session else None
        return _Prompt(session, binding, end, hidden)

    def _bind_hidden(self, binding: ort.IOBinding, count: int) -> _Hidden | None:
        """Binds room for the hidden states of the last tokens, if the graph gives any."""
        engine = self._engine
        if engine.hidden is None:
            return None
        rows = min(count, OF_PROMPT)
        binding.bind_ortvalue_input(HIDDEN_FROM, _FROM_LAST[rows])
        shape = (1, rows, self._decoder.hidden)
        binding.bind_output(LAST_HIDDEN_STATE, *engine.where, engine.dtype, shape, engine.hidden.address)
        return _Hidden(engine.hidden.address, rows)

    def _run(self, prompt: _Prompt, options: ort.RunOptions) -> None:
        """Appends what is bound. Raises Interrupted or DeviceError, and then has appended nothing."""
        self._options = options
        options.terminate = self._stopping
        if self._stopping:
            raise Interrupted
        with feed_errors(self.position, lambda: self._stopping):
            prompt.session.run_with_iobinding(prompt.binding, options)
        self.note_appended(prompt.end - self.position)
        if prompt.hidden is not None:
            self.put_hidden(*prompt.hidden)

    def _reserve(self, tokens: int) -> None:
        """A slot with room for that many tokens."""
        old = self.pool
        if tokens <= old.capacity:
            return
        new = self._engine.pool(tokens)
        new.take(self)
        new.copy(old, old.table.slot(self), new.table.slot(self), self)
        old.release(self)
        self._pool = new

    def _exported(self, start: int, stop: int) -> tuple[DeviceBlock, list[DeviceArray]]:
        """Copies of keys and values, layer by layer."""
        check_span(start, stop, self.position)
        self._copy_imported()
        pool, memory = self.pool, self._engine.memory
        shapes = [(heads, stop - start, size) for heads, _, size in pool.shapes.values()]
        block, arrays = new_arrays(memory, shapes, np.dtype(self._engine.dtype))
        slot = pool.table.slot(self)
        for name, array in zip(pool.shapes, arrays, strict=True):
            if array.nbytes:
                source = pool.address(name, slot, start)
                memory.copy(
                    array.address, source, width=array.width, rows=array.shape[0],
                    to_pitch=array.pitch, pitch=pool.pitch(name),
                )  # fmt: skip
        return block, arrays

    def _own_tokens(self, arrays: Sequence[object]) -> int | None:
        """How many tokens a state of this engine's arrays has; None: it is of others, or of another model."""
        pool, memory, dtype = self.pool, self._engine.memory, self._engine.dtype
        if len(arrays) != len(pool.shapes) or not arrays or not isinstance(arrays[0], DeviceArray):
            return None
        count = arrays[0].shape[1]
        is_own = all(
            isinstance(array, DeviceArray)
            and array.shape == (heads, count, size)
            and array.block.memory is memory
            and array.dtype == dtype
            for array, (heads, _, size) in zip(arrays, pool.shapes.values(), strict=True)
        )
        return count if is_own else None

    def _note_imported(self, start: int, arrays: list[DeviceArray]) -> None:
        """Notes what is to be copied, with what is noted already where it lies right behind that."""
        before = self._imported
        if before is not None and all(map(DeviceArray.is_before, before[1], arrays)):
            start, arrays = before[0], list(map(DeviceArray.with_next, before[1], arrays))
        else:
            self._copy_imported()
        self._imported = start, arrays

    def _copy_imported(self) -> None:
        if self._imported is None:
            return
        (start, arrays), self._imported = self._imported, None
        pool = self.pool
        slot = pool.table.slot(self)
        for name, array in zip(pool.shapes, arrays, strict=True):
            self._engine.memory.copy(
                pool.address(name, slot, start), array.address, width=array.width, rows=array.shape[0],
                to_pitch=pool.pitch(name), pitch=array.pitch,
            )  # fmt: skip
