"""What sessions have in common whose KV stays on a device: all but how tokens are fed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from embedllm.backends.base import Interrupted
from embedllm.backends.checks import check_rewind, check_room, check_span, check_state, check_tokens
from embedllm.backends.ort.runtime import feed_errors, ort
from embedllm.package.package import Package

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.backends.images import ImageFeatures

_GROWTH = 2  # a growth copies the KV through the host


class KvBuffers(Protocol):
    """Memory of a session on the device."""

    capacity: int  # tokens
    kv: dict[str, ort.OrtValue]  # by "LAYER.key" and "LAYER.value": [1, kv heads, capacity, D]


B = TypeVar("B", bound=KvBuffers)


class DeviceEngine(Protocol[B]):
    """What a session needs of its engine."""

    package: Package
    context: int
    remedy: str  # where a sequence is longer than that
    lock: threading.RLock  # held while anything is bound or run
    dtype: type[np.floating]  # of KV and logits

    @property
    def session(self) -> ort.InferenceSession: ...

    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array on the device."""
        ...

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        """Puts an array where another of its shape and type is."""
        ...

    def read(self, value: ort.OrtValue) -> np.ndarray:
        """A copy of what is on the device."""
        ...

    def take(self, capacity: int) -> B:
        """Buffers for `capacity` tokens."""
        ...

    def give_back(self, buffers: B) -> None: ...


def empty_kv(engine: DeviceEngine[B], capacity: int, rows: int = 1) -> dict[str, ort.OrtValue]:
    """Buffers for the keys and values of that many tokens, as KvBuffers has them, of that many sequences.

    Zeros, because attention multiplies what it does not see by nothing, and NaN times nothing is NaN.
    """
    attentions = engine.package.decoder.kv_attentions
    return {
        f"{at}.{part}": engine.place(np.zeros((rows, attention.kv_heads, capacity, attention.head_dim), engine.dtype))
        for at, attention in enumerate(attentions)
        for part in ("key", "value")
    }


def bound_to(kv: Mapping[str, ort.OrtValue], session: ort.InferenceSession) -> ort.IOBinding:
    """A binding whose past and present are the same buffers."""
    binding = session.io_binding()
    for name, value in kv.items():
        binding.bind_ortvalue_input(f"past_key_values.{name}", value)
        binding.bind_ortvalue_output(f"present.{name}", value)
    return binding


class DeviceSession(Generic[B]):
    """One sequence. A rewind is a number; a growth takes new buffers and copies the KV."""

    def __init__(self, engine: DeviceEngine[B], capacity: int) -> None:
        self.position = 0
        self._engine = engine
        self._context = engine.context
        self._decoder = engine.package.decoder
        self._stopping = False
        self._interrupting = threading.Lock()
        self._is_interrupted, self._is_beside = False, False  # by its caller; in a run of several
        self._images: ImageFeatures | None = None  # None: it takes text only
        self._running = ort.RunOptions()  # of the run that is under way, or was the last
        self._buffers: B | None = engine.take(min(capacity, engine.context))

    @property
    def capacity(self) -> int:
        return self._buffers.capacity if self._buffers else 0

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        with self._interrupting:
            self._is_interrupted = stop
            self._stop(stop and not self._is_beside)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Within the block, interrupt() waits: a run of several sequences would fail for all of them."""
        with self._interrupting:
            self._is_beside = True
            self._stop(False)
        try:
            yield
        finally:
            with self._interrupting:
                self._is_beside = False
                self._stop(self._is_interrupted)

    def _stop(self, stop: bool) -> None:
        self._stopping = stop
        self._running.terminate = stop

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        return self._exported(start, stop)

    def _exported(self, start: int, stop: int) -> KeyValues:
        """The KV of a span through the host."""
        kv, read, attentions = self._require_buffers().kv, self._engine.read, self._decoder.kv_attentions
        if start == stop:
            none = [np.empty((each.kv_heads, 0, each.head_dim), self._engine.dtype) for each in attentions]
            return list(zip(none, none, strict=True))
        self._settle()
        return [
            (read(kv[f"{at}.key"])[0, :, start:stop].copy(), read(kv[f"{at}.value"])[0, :, start:stop].copy())
            for at in range(len(attentions))
        ]

    def import_state(self, state: KeyValues) -> None:
        self._require_buffers()
        attentions = self._decoder.kv_attentions
        end = self.position + check_state(state, [(a.kv_heads, a.head_dim) for a in attentions])
        check_room(self.position, end - self.position, limit=self._context, remedy=self._engine.remedy)
        self._settle()
        buffers = self._reserve(end)
        for at, pair in enumerate(state):
            for part, new in zip(("key", "value"), pair, strict=True):
                values = self._engine.read(buffers.kv[f"{at}.{part}"])
                values[0, :, self.position : end] = new
                self._engine.write(buffers.kv[f"{at}.{part}"], values)
        self.position = end

    def close(self) -> None:
        if self._buffers is not None:
            with suppress(Exception):  # closing is all that is left to do with a device that fails
                self._settle()
            self._engine.give_back(self._buffers)
        self._buffers = None
        self.position = 0

    def _settle(self) -> None:
        """Waits for what still runs on the device."""

    def _require_buffers(self) -> B:
        if self._buffers is None:
            raise ValueError("this session was closed")
        return self._buffers

    def _prepare(self, tokens: Sequence[int]) -> B:
        """Checks the tokens and makes room for them."""
        self._require_buffers()
        self._check_tokens(tokens)
        if self._stopping:
            raise Interrupted
        return self._reserve(self.position + len(tokens))

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        vocabulary = self._decoder.vocabulary
        check_tokens(tokens, self.position, vocabulary=vocabulary, limit=self._context, remedy=self._engine.remedy,
                     images=self._images)  # fmt: skip

    def _run(
        self, binding: ort.IOBinding, options: ort.RunOptions, end: int, session: ort.InferenceSession | None = None
    ) -> None:
        """Appends what is bound, up to that position. Raises Interrupted or DeviceError, and then has appended nothing.

        session: of another graph than the engine's. Called with the engine's lock held.
        """
        self._running = options
        options.terminate = self._stopping
        with feed_errors(self.position, lambda: self._stopping):
            (session or self._engine.session).run_with_iobinding(binding, options)
        self.position = end

    def _reserve(self, tokens: int) -> B:
        """Buffers with room for that many tokens, with what was held."""
        old = self._require_buffers()
        if tokens <= old.capacity:
            return old
        self._settle()
        new = self._engine.take(min(max(tokens, old.capacity * _GROWTH), self._context))
        self._copy_kv(old, new)
        self._engine.give_back(old)
        self._buffers = new
        return new

    def _copy_kv(self, old: B, new: B) -> None:
        """Copies what is held into larger buffers, through the host."""
        for name, value in old.kv.items():
            array = self._engine.read(value)
            grown = np.zeros((*array.shape[:2], new.capacity, array.shape[3]), array.dtype)
            grown[:, :, : self.position] = array[:, :, : self.position]
            self._engine.write(new.kv[name], grown)
