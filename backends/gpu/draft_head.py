"""A head (MTP, EAGLE-3) on a device: it guesses several tokens in a row without the host.

Each run of it writes what the next one reads, a token, its hidden state and how many are held, to where that reads them
(export/onnx/guess.py). So guesses are runs that are started one behind the other; the host reads the tokens once, at
the end. All inputs stay where they are, so that a run can be captured.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import Device, Interrupted
from embedllm.backends.checks import check_rewind
from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.hidden_rows import HiddenSpan
from embedllm.backends.gpu.on_device import OnDevice, not_waiting
from embedllm.backends.ort.runtime import (
    device_errors,
    ort,
)
from embedllm.backends.sessions.hidden_rows import OF_PROMPT
from embedllm.backends.sessions.topk_logits import Best, ListedRow
from embedllm.package.graph_variants import GUESS, GUESSED_TOKEN, HIDDEN_STATES, LAST_HIDDEN_STATE, NEXT_LENGTH

if TYPE_CHECKING:
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package
    from embedllm.types import F32, Logits

_LONGEST = 1024  # tokens of a head's KV; then it begins again, with the latest ones
_MOST_GUESSES = 31  # in a row
_CAPTURED = 6  # tokens of a run; longer ones are rare but at the beginning
_NUMBERS = 2  # of a guess: token and probability
_ID = 8  # bytes of a token id, and of a number in the mask


class DeviceHeadEngine(OnDevice):
    """A head's graph on one device."""

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        *,
        capture: bool = True,
        lock: threading.RLock | None = None,
    ) -> None:
        """package: of the head, in the folder of its target model. capture, lock: as OnDevice has them.

        Raises DeviceUnavailable when part of the work would run on the CPU.
        """
        super().__init__(package, graph, device, capture=capture, lock=lock)
        self.longest = min(_LONGEST, self.context)
        path = package.folder / graph.file
        self._session = self.start_over_weights(path, path.read_bytes(), package.folder.parent)
        self.memory = self.open_memory()
        self._free: list[_Place] = []
        self.give_back(self.take())  # captured before anybody waits

    def open_head(self) -> DeviceHead:
        return DeviceHead(self)

    def take(self) -> _Place:
        """Memory of a sequence: with what was captured there, if another one has had it."""
        if self._free:
            return self._free.pop()
        with self.lock, device_errors(self.device):
            return _Place(self)

    def give_back(self, place: _Place) -> None:
        self._free.append(place)

    def run(self, run: _Run) -> None:
        """Replays what was captured; the first time it is captured."""
        options = run.options_async if run.has_run else run.options
        self.session.run_with_iobinding(run.binding, options)
        run.has_run = True

    def close(self) -> None:
        if self._session is None:
            return
        with self.lock, device_errors(self.device):
            self.memory.synchronize()
            self._free.clear()
            self._session = None
            self.memory.trim()


@dataclass(slots=True)
class _Run:
    binding: ort.IOBinding
    options: ort.RunOptions
    options_async: ort.RunOptions  # the same, without waiting for the device
    has_run: bool = False


class _Place:
    """Memory of one sequence, and the runs over it. Zeros at first: what attention does not see may be no NaN."""

    def __init__(self, engine: DeviceHeadEngine) -> None:
        self._engine = engine
        self._memory = memory = engine.memory
        decoder, item = engine.package.decoder, np.dtype(engine.dtype).itemsize
        self._hidden_size = decoder.hidden
        self._kv = {
            f"{at}.{part}": (1, attention.kv_heads, engine.longest, attention.head_dim)
            for at, attention in enumerate(decoder.kv_attentions)
            for part in ("key", "value")
        }
        self._blocks = {name: self._zeros(int(np.prod(shape)) * item) for name, shape in self._kv.items()}
        self._mask = self._zeros(engine.longest * _ID)  # the first number is the sum
        self._tokens = self._zeros(OF_PROMPT * _ID)
        self.hidden = self._zeros(OF_PROMPT * decoder.hidden * item)
        self._next_token, self._next_hidden = self._zeros(_ID), self._zeros(decoder.hidden * item)
        self._guess = self._zeros(_NUMBERS * 4)
        self._guesses = self._zeros(_MOST_GUESSES * _NUMBERS * 4)
        captured = _CAPTURED if engine.captures else 0
        self._following = self._make_run(1, self._next_token, self._next_hidden)
        self._runs = {count: self._make_run(count, self._tokens, self.hidden) for count in range(1, captured + 1)}
        for count, run in ((1, self._following), *self._runs.items()):
            # to capture, ONNX Runtime runs twice, the second time over the length that the first one wrote
            memory.write(self._mask.address, np.array([count], np.int64))
            engine.run(run)

    def read(self, tokens: Sequence[int], end: int, guesses: int) -> Callable[[], F32]:
        """Appends tokens whose hidden states are there, up to that position, and guesses on.

        What it gives waits for the numbers of the guesses, [guesses, 2].
        """
        memory, count = self._memory, len(tokens)
        memory.write(self._mask.address, np.array([end], np.int64))
        memory.write(self._tokens.address, np.array(tokens, np.int64))
        if count not in self._runs:
            self._runs[count] = self._make_run(count, self._tokens, self.hidden, is_captured=False)
        run = self._runs[count]
        for at in range(guesses):
            self._engine.run(run)
            memory.copy(self._guesses.address + at * self._guess.size, self._guess.address, width=self._guess.size)
            run = self._following
        numbers = np.empty((guesses, _NUMBERS), np.float32)
        finish = memory.begin_read(self._guesses.address, numbers)

        def wait_for_guesses() -> F32:
            finish()
            return numbers

        return wait_for_guesses

    def _zeros(self, size: int) -> DeviceBlock:
        block = DeviceBlock(self._memory, size)
        self._memory.zero(block.address, size)
        return block

    def _make_run(self, count: int, tokens: DeviceBlock, hidden: DeviceBlock, *, is_captured: bool = True) -> _Run:
        """A run of that many tokens, behind which the following one goes on."""
        engine = self._engine
        where, dtype, size = engine.where, engine.dtype, self._hidden_size
        binding = engine.session.io_binding()
        for name, shape in self._kv.items():
            place = (*where, dtype, shape, self._blocks[name].address)
            binding.bind_input(f"past_key_values.{name}", *place)
            binding.bind_output(f"present.{name}", *place)
        binding.bind_input("attention_mask", *where, np.int64, (1, engine.longest), self._mask.address)
        binding.bind_input("input_ids", *where, np.int64, (1, count), tokens.address)
        binding.bind_input(HIDDEN_STATES, *where, dtype, (1, count, size), hidden.address)
        binding.bind_output(GUESS, *where, np.float32, (1, 1, _NUMBERS), self._guess.address)
        binding.bind_output(GUESSED_TOKEN, *where, np.int64, (1, 1), self._next_token.address)
        binding.bind_output(NEXT_LENGTH, *where, np.int64, (1,), self._mask.address)
        binding.bind_output(LAST_HIDDEN_STATE, *where, dtype, (1, 1, size), self._next_hidden.address)
        graph_id = next(engine.graph_ids) if is_captured else None
        options, asynchronous = engine.replaying(graph_id), not_waiting(engine.replaying(graph_id))
        return _Run(binding, options, asynchronous)


class DeviceHead:
    """As ReadingHead (backends/sessions/draft_head.py): one sequence."""

    hidden = None  # guesses are not read again

    def __init__(self, engine: DeviceHeadEngine) -> None:
        self.position = 0
        self.longest = engine.longest
        self.most = min(OF_PROMPT, engine.longest // 2)
        self._engine = engine
        self._stopping = self._is_closed = False
        self._place: _Place | None = None  # taken with the first read: many requests never draft

    def read(self, tokens: Sequence[int], hidden: HiddenSpan, guesses: int) -> Logits:
        if self._is_closed:
            raise ValueError("this session was closed")
        if self._stopping:
            raise Interrupted
        engine, end = self._engine, self.position + len(tokens)
        place = self._place = self._place or engine.take()
        with engine.lock, device_errors(engine.device):
            hidden.copy(place.hidden.address)
            wait = place.read(tokens, end, max(1, min(guesses, self.longest - end, _MOST_GUESSES)))
        self.position = end
        return GuessedRow(engine.package.decoder.vocabulary, wait)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        self._stopping = stop

    def close(self) -> None:
        if self._place is not None:
            self._engine.give_back(self._place)
        self._place, self._is_closed = None, True
        self.position = 0


class GuessedRow(ListedRow):
    """The logits of the first guess, of which the best one is known; and those that were made behind it."""

    __slots__ = ("_guesses",)

    def __init__(self, size: int, wait: Callable[[], F32]) -> None:
        self._guesses = _Guesses(wait)
        super().__init__(size, self._guesses, listed=0)

    def guesses(self) -> list[tuple[int, float]]:
        # not a number where activations exceed float16: nothing that anybody would bet on
        return [(int(token), share if share > 0 else 0.0) for token, share in self._guesses.numbers().tolist()]


class _Guesses:
    """As RowSource."""

    def __init__(self, wait: Callable[[], F32]) -> None:
        self._wait = wait
        self._numbers: F32 | None = None

    def numbers(self) -> F32:
        if self._numbers is None:
            self._numbers = self._wait()
        return self._numbers

    def best(self, index: int, count: int) -> Best:
        token, share = self.numbers()[0].tolist()
        return Best([int(token)], [math.log(share) if share > 0 else -math.inf], 0.0)

    def whole(self, index: int) -> Logits:
        raise ValueError("of a guess the best token alone is known.")
