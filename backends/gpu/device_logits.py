"""The few numbers of rows of logits on a device that most sampling needs, reduced there.

Bringing 150,000 logits to the host and summing their exponentials there takes a quarter of a millisecond, a fifth of a
step of a small model on a fast GPU. So small graphs of their own (backends/gpu/heads, made by tools/make_heads.py)
run on the device over the logits where they are: the best token with the sum, or the best few hundred. The first row
of a run that asks has them computed for all rows of it. What cannot be answered from these brings the row over and asks
`NumpyLogits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.gpu.kv_slots import padded_width
from embedllm.backends.gpu.on_device import not_waiting
from embedllm.backends.ort.runtime import ort
from embedllm.backends.sessions.topk_logits import Best, ListedRow
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.backends.gpu.device_memory import DeviceMemory
    from embedllm.types import F32, Logits

HEADS = Path(__file__).parent / "heads"
# tokens that the list of the best has, one more than the sampler's first look, to see a tie at its end: CUDA's TopK
# takes 50 us for 256 of 150,000 and 870 for 257
LISTED = 256
LARGEST_VOCABULARY = 1 << 24  # token ids come as float32, exact up to here
ROW, BEST, LIST = "row", "best", "list"


class LogitsEngine(Protocol):
    """What the rows need of an engine."""

    memory: DeviceMemory
    where: tuple[str, int]  # the device in ONNX Runtime's words: its type and index
    dtype: type[np.floating]  # of logits
    graph_ids: count[int]
    heads: dict[str, ort.InferenceSession]
    head_sizes: dict[str, int]

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        """Options to run what is captured under that number, or is captured so now; None: nothing is."""
        ...


class Owner(Protocol):
    """The session that a row of logits is of."""

    fed: int  # changes whenever the row is not the one that it was fed for any more

    def note_asked(self, head: str) -> None:
        """Its row was reduced by that head, or brought over."""
        ...

    def note_best(self, token: int) -> None:
        """The best token of its row."""
        ...


class _Head:
    """One small graph over the first rows at a place on the device; its result comes to the host."""

    def __init__(self, engine: LogitsEngine, name: str, *, logits: int, rows: int, vocabulary: int) -> None:
        size = engine.head_sizes[name]
        self._session, self._memory = engine.heads[name], engine.memory
        self._shape = rows, size
        self._out = DeviceBlock(engine.memory, rows * size * 4)
        self.tokens = DeviceBlock(engine.memory, rows * 8) if name == BEST else None  # int64, on the device
        graph_id = next(engine.graph_ids)
        self._options, self._options_async = engine.replaying(graph_id), not_waiting(engine.replaying(graph_id))
        self._has_run = False
        binding = self._binding = self._session.io_binding()
        binding.bind_input("logits", *engine.where, engine.dtype, (rows, 1, vocabulary), logits)
        binding.bind_output("out", *engine.where, np.float32, (rows, 1, size), self._out.address)
        if self.tokens is not None:
            binding.bind_output("token", *engine.where, np.int64, (rows, 1, 1), self.tokens.address)

    def start(self) -> Callable[[], F32]:
        """What it gives waits for the numbers [rows, size]."""
        self._session.run_with_iobinding(self._binding, self._options_async if self._has_run else self._options)
        self._has_run = True
        result = np.empty(self._shape, np.float32)
        if self.tokens is None:
            self._memory.read(self._out.address, result)
            return lambda: result
        finish = self._memory.begin_read(self._out.address, result)

        def numbers() -> F32:
            finish()
            return result

        return numbers


class LogitsBoard:
    """Where the logits of the latest run lie, until the next one's take their place."""

    def __init__(self, engine: LogitsEngine, rows: int, vocabulary: int) -> None:
        """rows: most that a run has."""
        self.vocabulary = vocabulary
        self.row_bytes = vocabulary * np.dtype(engine.dtype).itemsize
        self.block = DeviceBlock(engine.memory, rows * self.row_bytes)
        self.address = self.block.address
        self.engine = engine
        self._limit = rows
        self._heads: dict[tuple[str, int], _Head] = {}
        self._latest: RunLogits | None = None

    def replace(self, latest: RunLogits | None) -> None:
        """Saves rows of the latest run that may still be asked for; the next one's may be written then."""
        if self._latest is not None:
            self._latest.save()
        self._latest = latest

    def head(self, name: str, rows: int) -> _Head:
        """What reduces the first rows."""
        width = padded_width(rows, self._limit)
        if (name, width) not in self._heads:
            self._heads[name, width] = _Head(
                self.engine, name, logits=self.address, rows=width, vocabulary=self.vocabulary
            )
        return self._heads[name, width]


class RunLogits:
    """The rows of one run. They lie on its board, or where they were saved when the next run took their place."""

    def __init__(self, board: LogitsBoard, owners: Sequence[Owner]) -> None:
        self.owners = owners
        self._board = board
        self._fed = [owner.fed for owner in owners]
        self._bests: list[list[float]] | None = None  # of each row: what BEST gives
        self._lists: F32 | None = None  # what LIST gives, [B, size]
        self._best: Callable[[], F32] | None = None  # waits for the numbers of BEST
        self._saved: dict[int, LogitsBoard] = {}

    def row(self, index: int) -> Logits:
        if not self._board.engine.heads:
            return NumpyLogits(self._values(index))
        return ListedRow(self._board.vocabulary, self, index, listed=LISTED)

    def start_best(self) -> int:
        """Has the best tokens found without waiting for them: where they will be, int64 by row, on the device."""
        head = self._board.head(BEST, len(self.owners))
        self._best = head.start()
        assert head.tokens is not None  # it is BEST
        return head.tokens.address

    def best_token(self, index: int) -> int:
        """The best one of a row, after start_best()."""
        return int(self._all_bests()[index][0])

    def best(self, index: int, count: int) -> Best:
        """The best tokens of a row: one, or LISTED ones."""
        self._check(index)
        is_one = count == 1
        is_known = (self._bests or self._best) if is_one else self._lists is not None
        if index in self._saved and not is_known:
            numbers = self._saved[index].head(BEST if is_one else LIST, 1).start()()
            return _one(numbers[0].tolist()) if is_one else _several(_in_order(numbers)[0])
        best = _one(self._all_bests()[index]) if is_one else _several(self._all_lists()[index])
        self.owners[index].note_asked(BEST if is_one else LIST)
        return best

    def whole(self, index: int) -> Logits:
        """The row itself."""
        return NumpyLogits(self._values(index))

    def save(self) -> None:
        """Copies what may still be asked for."""
        board = self._board
        for index in range(len(self.owners)):
            if self._is_valid(index):
                saved = LogitsBoard(board.engine, 1, board.vocabulary)
                board.engine.memory.copy(saved.address, self._address(index), width=board.row_bytes)
                self._saved[index] = saved

    def _is_valid(self, index: int) -> bool:
        return self.owners[index].fed == self._fed[index]

    def _address(self, index: int) -> int:
        if index in self._saved:
            return self._saved[index].address
        return self._board.address + index * self._board.row_bytes

    def _all_bests(self) -> list[list[float]]:
        """What BEST says of all rows, which are on the board yet."""
        if self._bests is None:
            finish = self._best or self._board.head(BEST, len(self.owners)).start()
            bests: list[list[float]] = finish().tolist()  # padded
            for index, (owner, (token, _, _)) in enumerate(zip(self.owners, bests, strict=False)):
                if self._is_valid(index):
                    owner.note_best(int(token))
            self._bests = bests
        return self._bests

    def _all_lists(self) -> F32:
        """What LIST says of all rows, which are on the board yet."""
        if self._lists is None:
            self._lists = _in_order(self._board.head(LIST, len(self.owners)).start()())
        return self._lists

    def _values(self, index: int) -> F32:
        """The row itself."""
        self._check(index)
        engine, board = self._board.engine, self._board
        values = np.empty(board.vocabulary, engine.dtype)
        if ROW in engine.heads:  # as float32, which takes the host longer
            values = np.empty(board.vocabulary, np.float32)
            out, binding = DeviceBlock(engine.memory, values.nbytes), engine.heads[ROW].io_binding()
            shape = (1, 1, board.vocabulary)
            binding.bind_input("logits", *engine.where, engine.dtype, shape, self._address(index))
            binding.bind_output("out", *engine.where, np.float32, shape, out.address)
            engine.heads[ROW].run_with_iobinding(binding, engine.replaying(None))
            engine.memory.read(out.address, values[None])
        else:
            engine.memory.read(self._address(index), values[None])
        self.owners[index].note_asked(ROW)
        return values.astype(np.float32, copy=False)

    def _check(self, index: int) -> None:
        if not self._is_valid(index):
            raise ValueError("these logits are gone: their session was fed again, or closed.")


def sizes(vocabulary: int) -> dict[str, int]:
    """How many numbers each head gives, by its name. A list longer than the vocabulary is none."""
    counts = {ROW: vocabulary, BEST: 3}
    return counts | ({LIST: 2 * LISTED + 1} if vocabulary >= LISTED else {})


def _one(numbers: Sequence[float]) -> Best:
    token, logit, logsumexp = numbers
    return Best([int(token)], [logit], logsumexp)


def _several(numbers: F32) -> Best:
    tokens, logits, logsumexp = numbers[:LISTED], numbers[LISTED:-1], float(numbers[-1])
    return Best(tokens.astype(np.int64).tolist(), logits.tolist(), logsumexp)


def _in_order(lists: F32) -> F32:
    """Lists [B, 2 LISTED + 1] whose equal logits are in the order of their tokens, as not every TopK has them."""
    tokens, logits = lists[:, :LISTED], lists[:, LISTED:-1]
    falls, is_equal = logits[:, :-1] > logits[:, 1:], logits[:, :-1] == logits[:, 1:]
    is_right = (falls | (is_equal & (tokens[:, :-1] < tokens[:, 1:]))).all(axis=1)
    if is_right.all():
        return lists
    ordered = lists.copy()
    for row in np.flatnonzero(~is_right):
        order = np.lexsort((tokens[row], -logits[row]))
        ordered[row, :LISTED], ordered[row, LISTED:-1] = tokens[row, order], logits[row, order]
    return ordered
