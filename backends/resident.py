"""Sessions whose KV and logits stay in a device's own memory: CUDA, and other providers that bind buffers there.

Greedy decoding runs one step ahead: while the caller still has to do with a token, the device already computes what
follows it. A step that was not wanted is forgotten, as a rewind forgets.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import (
    LARGER_EXPORT,
    Device,
    Interrupted,
    check_rewind,
    check_room,
    check_span,
    check_state,
    check_tokens,
)
from embedllm.backends.device_row import BEST, HEADS, LARGEST_VOCABULARY, DeviceRow, sizes
from embedllm.backends.ort import first_line, ort
from embedllm.backends.ort import left_to_the_cpu as given_to_the_cpu
from embedllm.backends.resident_buffers import Buffers
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.package import Graph, Package
from embedllm.rows import Row

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues
    from embedllm.types import F32, Logits

CHUNK = 2048  # tokens of a prompt fed at once
_STEP = 1024  # tokens; capacities are multiples of it
_GROWTH = 2  # a growth copies the KV through the host and captures the step anew
_CERTAIN = 2  # greedy steps in a row, after which the next one runs ahead
_SPARE = 2  # buffers of closed sessions that wait for the next one
# operators that do the work: none of them may be left to the CPU
_HEAVY = {"MatMul", "MatMulNBits", "GroupQueryAttention", "SimplifiedLayerNormalization",
         "SkipSimplifiedLayerNormalization"}  # fmt: skip
_QUIET = 4  # log severity "fatal": errors are raised here, and a library does not print


class ResidentEngine:
    """A folder's graph on one device. What differs between providers is in the methods of its subclasses."""

    chunk = CHUNK
    reduces = False  # whether logits are reduced on the device
    where = ("cpu", 0)  # the device in ONNX Runtime's words: its type and index

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        *,
        capture: bool = True,
        lock: threading.RLock | None = None,
    ) -> None:
        """capture: replay decoding steps as they were captured; without it they are launched kernel by kernel.

        lock: of engines that share a device's stream.
        Raises DeviceUnavailable when part of the work would run on the CPU.
        """
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = LARGER_EXPORT
        self.captures = capture
        self.dtype = np.float16 if graph.activations == "float16" else np.float32
        self.graph_ids = itertools.count(1)
        self._spare: list[Buffers] = []
        # of the spare buffers, and one step at a time: what one captures must not have the work of another in it
        self.lock = lock or threading.RLock()
        self._session: ort.InferenceSession | None = self._load(package.folder / graph.file)
        vocabulary = package.decoder.vocabulary
        has_heads = self.reduces and vocabulary < LARGEST_VOCABULARY
        kind = np.dtype(self.dtype).name
        self.head_sizes = sizes(vocabulary) if has_heads else {}
        self.heads = {name: self._load(HEADS / f"{name}.{kind}.onnx") for name in self.head_sizes}
        if left := left_to_the_cpu(self._session):
            lack, remedy = f"ONNX Runtime gave {', '.join(left)} to the CPU", "please report it"
            raise DeviceUnavailable(f"'{device.name}' cannot run this model: {lack}.", [(device.name, lack, remedy)])

    def _load(self, path: Path) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = _QUIET
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        try:
            return self.start(os.fspath(path), options)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load '{path}': {first_line(error)}") from error

    def start(self, path: str, options: ort.SessionOptions) -> ort.InferenceSession:
        """A session on this device, without falling back to another."""
        raise NotImplementedError

    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array on the device."""
        return ort.OrtValue.ortvalue_from_numpy(array, *self.where)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        """Puts an array where another of its shape and type is."""
        value.update_inplace(array)

    def read(self, value: ort.OrtValue) -> np.ndarray:
        """A copy of what is on the device."""
        return value.numpy()

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> ResidentSession:
        return ResidentSession(self, capacity)

    def close(self) -> None:
        self._spare.clear()
        self.heads.clear()
        self._session = None

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        """Options to run what is captured under that number, or is captured so now; None: nothing is."""
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph_id if self.captures and graph_id is not None else -1))
        return options

    def take(self, capacity: int) -> Buffers:
        """Buffers for so many tokens: those of a closed session when they are large enough, whose graph still holds."""
        with self.lock:
            for spare in self._spare:
                if spare.capacity >= capacity:
                    self._spare.remove(spare)
                    return spare
        capacity = min(-(-max(capacity, 1) // _STEP) * _STEP, self.context)
        return Buffers(self, capacity)

    def give_back(self, buffers: Buffers) -> None:
        with self.lock:
            if self._session is None:
                return
            if len(self._spare) < _SPARE:
                self._spare.append(buffers)
            else:
                buffers.release()


class ResidentSession:
    """One sequence. A step appends in place, a rewind is a number."""

    def __init__(self, engine: ResidentEngine, capacity: int) -> None:
        self.position = 0
        self._engine = engine
        self._context = engine.context
        self._decoder = engine.package.decoder
        self._session: ort.InferenceSession | None = engine.session
        self._fed = 0  # how often
        self._last = 0  # the token that was fed last, if it was alone
        self._best: int | None = None  # of the latest logits, once it was asked for
        self._greedy = 0  # steps in a row that took the best token and asked for nothing else
        self._ahead: tuple[int, int] | None = None  # token and position of a step that runs, and was not asked for yet
        self._stopping = False
        self._launched = engine.replaying(None)  # kernel by kernel
        self._running = self._launched
        self._buffers: Buffers | None = engine.take(min(capacity, engine.context))

    @property
    def capacity(self) -> int:
        return self._buffers.capacity if self._buffers else 0

    def feed(self, tokens: Sequence[int]) -> Logits:
        buffers = self._prepare(tokens)
        self._fed += 1
        end = self.position + len(tokens)
        if len(tokens) == 1 and self.position:
            self._greedy = self._greedy + 1 if tokens[0] == self._best else 0
            self._last = tokens[0]
            if self._ahead == (tokens[0], self.position):
                self.position, self._ahead = end, None
            else:
                self._settle()
                self._step(buffers, end)
        else:
            self._greedy = 0
            self._settle()
            with self._engine.lock:
                self._bind_several(buffers, tokens, logits_from=-1)
                buffers.several.bind_ortvalue_output("logits", buffers.logits)
                self._run(buffers.several, self._launched, end)
        self._best = None
        if not buffers.heads:
            return Row(self._engine.read(buffers.logits)[0, 0].astype(np.float32, copy=False))
        fed = self._fed
        return DeviceRow(self._decoder.vocabulary, lambda name: self._answer(name, buffers, fed))

    def feed_all(self, tokens: Sequence[int]) -> F32:
        buffers = self._prepare(tokens)
        self._settle()
        self._best = None
        with self._engine.lock:
            self._bind_several(buffers, tokens, logits_from=0)
            buffers.several.bind_output("logits")
            self._run(buffers.several, self._launched, self.position + len(tokens))
        return buffers.several.get_outputs()[-1].numpy()[0].astype(np.float32)  # bound last

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop
        self._running.terminate = stop

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        self._settle()
        kv, read = self._held().kv, self._engine.read
        return [
            (read(kv[f"{at}.key"])[0, :, start:stop].copy(), read(kv[f"{at}.value"])[0, :, start:stop].copy())
            for at in range(len(self._decoder.layers))
        ]

    def import_state(self, state: KeyValues) -> None:
        attentions = [layer.attention for layer in self._decoder.layers]
        end = self.position + check_state(state, [(a.kv_heads, a.head_dim) for a in attentions])
        check_room(self.position, end - self.position, limit=self._context, remedy=LARGER_EXPORT)
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
        self._session = None
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

    def _step(self, buffers: Buffers, end: int) -> None:
        """Appends the last token."""
        with self._engine.lock:
            step = buffers.give(self._last, end)
            self._run(step.binding, step.options, end)
            step.has_run = True

    def _answer(self, head: str, buffers: Buffers, fed: int) -> F32:
        """What a head says of the logits of that feed."""
        if self._buffers is not buffers or self._fed != fed:
            raise ValueError("these logits are gone: their session was fed again, or closed.")
        with self._engine.lock:
            if head == BEST:
                numbers = buffers.heads[BEST]()
                self._best = int(numbers[0])
                self._run_ahead(buffers, self._best)
                return numbers
            self._greedy = 0
            if self._ahead is not None:  # and has written over the logits
                self._settle()
                self._step(buffers, self.position)
            return buffers.heads[head]()

    def _run_ahead(self, buffers: Buffers, token: int) -> None:
        """Starts the step that greedy decoding asks for next, once it has been seen to be that."""
        end = self.position + 1
        if self._greedy < _CERTAIN or self._stopping or self._session is None or end > buffers.capacity:
            return
        if buffers.step(end).has_run:  # the first one plans and captures
            step = buffers.give(token, end)
            self._session.run_with_iobinding(step.binding, step.options_ahead)
            self._ahead = token, self.position

    def _settle(self) -> None:
        """Waits for a step that runs ahead, and forgets it."""
        if self._ahead is not None:
            self._ahead = None
            with self._engine.lock:
                self._held().heads[BEST]()

    def _bind_several(self, buffers: Buffers, tokens: Sequence[int], *, logits_from: int) -> None:
        binding, end = buffers.several, self.position + len(tokens)
        binding.bind_ortvalue_input("input_ids", self._engine.place(np.array([tokens], np.int64)))
        binding.bind_ortvalue_input("attention_mask", self._engine.place(np.ones((1, end), np.int64)))
        start = ort.OrtValue.ortvalue_from_numpy(np.array([logits_from], np.int64))
        binding.bind_ortvalue_input("logits_from", start)

    def _run(self, binding: ort.IOBinding, options: ort.RunOptions, end: int) -> None:
        assert self._session is not None  # as long as there are buffers
        self._running = options
        options.terminate = self._stopping
        try:
            with self._engine.lock:
                self._session.run_with_iobinding(binding, options)
        except Exception as error:
            if self._stopping:
                raise Interrupted from error
            raise DeviceError(f"ONNX Runtime failed at position {self.position}: {first_line(error)}") from error
        self.position = end

    def _reserve(self, tokens: int) -> Buffers:
        """Buffers with room for that many tokens; the KV goes over through the host."""
        old = self._held()
        if tokens <= old.capacity:
            return old
        self._settle()
        new = self._engine.take(min(max(tokens, old.capacity * _GROWTH), self._context))
        for name, value in old.kv.items():
            held = self._engine.read(value)
            grown = np.zeros((*held.shape[:2], new.capacity, held.shape[3]), held.dtype)
            grown[:, :, : self.position] = held[:, :, : self.position]
            self._engine.write(new.kv[name], grown)
        self._engine.give_back(old)
        self._buffers = new
        return new


def left_to_the_cpu(session: ort.InferenceSession) -> list[str]:
    """Heavy operators that are not on the device."""
    return given_to_the_cpu(session, _HEAVY)
