"""Sessions whose KV and logits stay in a device's own memory: CUDA, and other providers that bind buffers there.

Greedy decoding runs one step ahead: while the caller still has to do with a token, the device already computes what
follows it. A step that was not wanted is forgotten, as a rewind forgets.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import LARGER_EXPORT, Device
from embedllm.backends.checks import cannot_run
from embedllm.backends.gpu.buffers import Buffers
from embedllm.backends.gpu.device_logits import BEST, HEADS, LARGEST_VOCABULARY, device_row, sizes
from embedllm.backends.gpu.session import DeviceSession
from embedllm.backends.ort.runtime import device_errors, first_line, left_to_the_cpu, ort
from embedllm.errors import DeviceError
from embedllm.package.entries import Graph
from embedllm.package.package import Package
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.types import F32, Logits

CHUNK = 2048  # tokens of a prompt fed at once
_STEP = 1024  # tokens; capacities are multiples of it
_CERTAIN = 2  # greedy steps in a row, after which the next one runs ahead
_SPARE = 2  # buffers of closed sessions that wait for the next one
# operators that do the work: none of them may be left to the CPU
HEAVY = {"MatMul", "MatMulNBits", "GroupQueryAttention", "SimplifiedLayerNormalization",
         "SkipSimplifiedLayerNormalization"}  # fmt: skip
_QUIET = 4  # log severity "fatal": errors are raised here, and a library does not print


class ResidentEngine:
    """A folder's graph on one device. What differs between providers is in the methods of its subclasses."""

    chunk = CHUNK
    reduces = False  # whether logits are reduced on the device
    where: tuple[str, int] = ("cpu", 0)  # the device in ONNX Runtime's words: its type and index

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
        if left := left_to_the_cpu(self._session, HEAVY):
            raise cannot_run(device, f"ONNX Runtime gave {', '.join(left)} to the CPU", "please report it")

    def _load(self, path: Path) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = _QUIET
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        try:
            with self.lock:
                return self.start(os.fspath(path), options)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load '{path}': {first_line(error)}") from error

    def start(self, path: str, options: ort.SessionOptions) -> ort.InferenceSession:
        """A session on this device, without falling back to another."""
        raise NotImplementedError

    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array on the device."""
        with self.lock, device_errors(self.device):
            return ort.OrtValue.ortvalue_from_numpy(array, *self.where)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        """Puts an array where another of its shape and type is."""
        with self.lock, device_errors(self.device):
            value.update_inplace(array)

    def read(self, value: ort.OrtValue) -> np.ndarray:
        """A copy of what is on the device."""
        with self.lock, device_errors(self.device):
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
        """Buffers for `capacity` tokens: large enough ones of a closed session first, whose graph still holds."""
        with self.lock:
            for spare in self._spare:
                if spare.capacity >= capacity:
                    self._spare.remove(spare)
                    return spare
            return Buffers(self, min(-(-max(capacity, 1) // _STEP) * _STEP, self.context))

    def give_back(self, buffers: Buffers) -> None:
        with self.lock:
            if self._session is None:
                return
            if len(self._spare) < _SPARE:
                self._spare.append(buffers)
            else:
                buffers.release()


class ResidentSession(DeviceSession[Buffers]):
    """One sequence. A step appends in place, and is replayed where that can be."""

    def __init__(self, engine: ResidentEngine, capacity: int) -> None:
        super().__init__(engine, capacity)
        self._resident = engine
        self._launched = engine.replaying(None)  # kernel by kernel
        self._given: dict[str, ort.OrtValue] = {}  # kept, as not every version's binding keeps what it was given
        self._fed = 0  # how often
        self._end = 0  # the position after that
        self._last = 0  # the token that was fed last, if it was alone
        self._best: int | None = None  # of the latest logits, once it was asked for
        self._greedy = 0  # steps in a row that took the best token and asked for nothing else
        self._is_overwritten = False  # the latest logits, by a step that ran ahead
        self._ahead: tuple[int, int] | None = None  # token and position of a step that runs, and was not asked for yet

    def feed(self, tokens: Sequence[int]) -> Logits:
        buffers = self._prepare(tokens)
        self._fed += 1
        self._end = end = self.position + len(tokens)
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
        self._best, self._is_overwritten = None, False
        if not buffers.heads:
            return NumpyLogits(self._engine.read(buffers.logits)[0, 0].astype(np.float32, copy=False))
        fed = self._fed
        return device_row(self._decoder.vocabulary, lambda name: self._answer(name, buffers, fed))

    def feed_all(self, tokens: Sequence[int]) -> F32:
        buffers = self._prepare(tokens)
        self._settle()
        self._best = None
        with self._engine.lock:
            self._bind_several(buffers, tokens, logits_from=0)
            buffers.several.bind_output("logits")
            self._run(buffers.several, self._launched, self.position + len(tokens))
        return buffers.several.get_outputs()[-1].numpy()[0].astype(np.float32)  # bound last

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
        with self._engine.lock, device_errors(self._resident.device):
            if head == BEST:
                numbers = buffers.heads[BEST]()
                self._best = int(numbers[0])
                self._run_ahead(buffers, self._best)
                return numbers
            self._greedy = 0
            if self._is_overwritten:
                self._settle()
                position = self.position  # which a rewind may have changed
                self._step(buffers, self._end)
                self.position, self._is_overwritten = position, False
            return buffers.heads[head]()

    def _run_ahead(self, buffers: Buffers, token: int) -> None:
        """Starts the step that greedy decoding asks for next, once it has been seen to be that."""
        end = self.position + 1
        if self._greedy < _CERTAIN or self._stopping or end > buffers.capacity:
            return
        if buffers.step(end).has_run:  # the first one plans and captures
            step = buffers.give(token, end)
            self._engine.session.run_with_iobinding(step.binding, step.options_ahead)
            self._ahead, self._is_overwritten = (token, self.position), True

    def _settle(self) -> None:
        """Waits for a step that runs ahead, and forgets it."""
        if self._ahead is not None:
            self._ahead = None
            with self._engine.lock, device_errors(self._resident.device):
                self._held().heads[BEST]()

    def _bind_several(self, buffers: Buffers, tokens: Sequence[int], *, logits_from: int) -> None:
        self._given = {
            "input_ids": self._resident.place(np.array([tokens], np.int64)),
            "attention_mask": self._resident.place(np.ones((1, self.position + len(tokens)), np.int64)),
            "logits_from": ort.OrtValue.ortvalue_from_numpy(np.array([logits_from], np.int64)),
        }
        for name, value in self._given.items():
            buffers.several.bind_ortvalue_input(name, value)
