"""One sequence on WebGPU: its KV stays on the GPU, past and present at once.

Not backends/resident.py's: prompts are fed in pieces where attention takes only so many tokens at once, and no step is
captured, for which attention would have to be told the capacity as the length (docs/webgpu.md#capture).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.base import (
    LARGER_EXPORT,
    Interrupted,
    check_rewind,
    check_room,
    check_span,
    check_state,
    check_tokens,
)
from embedllm.backends.ort import first_line, ort
from embedllm.errors import DeviceError
from embedllm.package import Package
from embedllm.rows import Row

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.types import F32

_STEP = 1024  # tokens; capacities are multiples of it
_GROWTH = 2  # a growth copies the KV through the host


class Gpu(Protocol):
    """What sessions need of an engine."""

    package: Package
    context: int
    chunk: int  # most tokens that attention takes at once
    dtype: type[np.floating]
    lock: AbstractContextManager[object]  # to be held while anything is asked of the GPU; binding an input copies it

    @property
    def session(self) -> ort.InferenceSession: ...
    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array on the GPU."""
        ...

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        """Puts an array where another of its shape and type is."""
        ...

    def read(self, value: ort.OrtValue) -> np.ndarray:
        """A copy of what is on the GPU."""
        ...

    def take(self, capacity: int) -> Buffers: ...
    def give_back(self, buffers: Buffers) -> None: ...


class Buffers:
    """What a step reads and writes, at fixed places on the GPU."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        """capacity: tokens; it is rounded up."""
        self.capacity = min(-(-max(capacity, 1) // _STEP) * _STEP, gpu.context)
        decoder = gpu.package.decoder
        # zeros, because attention multiplies what it does not see by nothing, and NaN times nothing is NaN
        self.kv = {
            f"{at}.{part}": gpu.place(
                np.zeros((1, layer.attention.kv_heads, self.capacity, layer.attention.head_dim), gpu.dtype)
            )
            for at, layer in enumerate(decoder.layers)
            for part in ("key", "value")
        }
        self.logits = gpu.place(np.zeros((1, 1, decoder.vocabulary), gpu.dtype))
        self.binding = gpu.session.io_binding()
        for name, value in self.kv.items():
            self.binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            self.binding.bind_ortvalue_output(f"present.{name}", value)


class WebGpuSession:
    """One sequence. A step appends in place, a rewind is a number."""

    def __init__(self, gpu: Gpu, capacity: int) -> None:
        self.position = 0
        self._gpu = gpu
        self._context = gpu.context
        self._decoder = gpu.package.decoder
        self._stopping = False
        self._options = ort.RunOptions()
        self._buffers: Buffers | None = gpu.take(min(capacity, gpu.context))

    @property
    def capacity(self) -> int:
        return self._buffers.capacity if self._buffers else 0

    def feed(self, tokens: Sequence[int]) -> Row:
        buffers = self._prepare(tokens)
        with self._whole():
            for piece in self._pieces(tokens):
                with self._gpu.lock:
                    self._bind(buffers, piece, logits_from=-1)
                    buffers.binding.bind_ortvalue_output("logits", buffers.logits)
                    self._run(buffers.binding, len(piece))
        return Row(self._gpu.read(buffers.logits)[0, 0].astype(np.float32, copy=False))

    def feed_all(self, tokens: Sequence[int]) -> F32:
        buffers = self._prepare(tokens)
        rows: list[np.ndarray] = []
        with self._whole():
            for piece in self._pieces(tokens):
                with self._gpu.lock:
                    self._bind(buffers, piece, logits_from=0)
                    buffers.binding.bind_output("logits")
                    self._run(buffers.binding, len(piece))
                    found = buffers.binding.get_outputs()[-1].numpy()  # bound last
                rows.append(found[0].astype(np.float32, copy=False))
        return np.concatenate(rows)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop
        self._options.terminate = stop

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        kv, read = self._held().kv, self._gpu.read
        return [
            (read(kv[f"{at}.key"])[0, :, start:stop].copy(), read(kv[f"{at}.value"])[0, :, start:stop].copy())
            for at in range(len(self._decoder.layers))
        ]

    def import_state(self, state: KeyValues) -> None:
        attentions = [layer.attention for layer in self._decoder.layers]
        end = self.position + check_state(state, [(a.kv_heads, a.head_dim) for a in attentions])
        check_room(self.position, end - self.position, limit=self._context, remedy=LARGER_EXPORT)
        buffers = self._reserve(end)
        for at, pair in enumerate(state):
            for part, new in zip(("key", "value"), pair, strict=True):
                values = self._gpu.read(buffers.kv[f"{at}.{part}"])
                values[0, :, self.position : end] = new
                self._gpu.write(buffers.kv[f"{at}.{part}"], values)
        self.position = end

    def close(self) -> None:
        if self._buffers is not None:
            self._gpu.give_back(self._buffers)
        self._buffers = None
        self.position = 0

    def _held(self) -> Buffers:
        if self._buffers is None:
            raise ValueError("this session was closed")
        return self._buffers

    def _prepare(self, tokens: Sequence[int]) -> Buffers:
        """Checks the tokens and makes room for them."""
        self._held()
        vocabulary = self._decoder.vocabulary
        check_tokens(tokens, self.position, vocabulary=vocabulary, limit=self._context, remedy=LARGER_EXPORT)
        if self._stopping:
            raise Interrupted
        return self._reserve(self.position + len(tokens))

    def _pieces(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """What attention takes at once, one after the other."""
        return [tokens[at : at + self._gpu.chunk] for at in range(0, len(tokens), self._gpu.chunk)]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """All pieces of a feed, or none of them."""
        start = self.position
        try:
            yield
        except BaseException:
            self.position = start
            raise

    def _bind(self, buffers: Buffers, tokens: Sequence[int], *, logits_from: int) -> None:
        given = {
            "input_ids": [tokens],
            "attention_mask": np.ones((1, self.position + len(tokens))),
            "logits_from": [logits_from],
        }
        for name, values in given.items():
            value = ort.OrtValue.ortvalue_from_numpy(
                np.array(values, np.int64)
            )  # on the host, which makes lengths of it
            buffers.binding.bind_ortvalue_input(name, value)

    def _run(self, binding: ort.IOBinding, count: int) -> None:
        """Raises Interrupted or DeviceError, and then has appended nothing."""
        try:
            self._gpu.session.run_with_iobinding(binding, self._options)
        except Exception as error:
            if self._stopping:
                raise Interrupted from error
            raise DeviceError(f"ONNX Runtime failed at position {self.position}: {first_line(error)}") from error
        self.position += count

    def _reserve(self, tokens: int) -> Buffers:
        """Buffers with room for that many tokens; the KV goes over through the host."""
        old = self._held()
        if tokens <= old.capacity:
            return old
        new = self._gpu.take(min(max(tokens, old.capacity * _GROWTH), self._context))
        for name, value in old.kv.items():
            held = self._gpu.read(value)
            grown = np.zeros((*held.shape[:2], new.capacity, held.shape[3]), held.dtype)
            grown[:, :, : self.position] = held[:, :, : self.position]
            self._gpu.write(new.kv[name], grown)
        self._gpu.give_back(old)
        self._buffers = new
        return new
