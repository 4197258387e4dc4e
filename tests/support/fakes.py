"""Logits, tokenizer, session and engine without a runtime: what they give is decided by the test."""

from __future__ import annotations

import math
import statistics
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, count
from threading import Event

from embedllm.backends.base import BatchRow, Device, Interrupted
from embedllm.generation.chunk import Chunk
from embedllm.types import Candidates, TokenBits

END = 256  # the special token of `Bytes`
VOCABULARY = 257
_NUMBERS = count()


@contextmanager
def taking_turns() -> Iterator[None]:
    """Within the block, threads take turns within every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class FakeLogits:
    """Logits in a list: the protocol, literally."""

    def __init__(self, row: Sequence[float]) -> None:
        self.row = list(row)

    @property
    def size(self) -> int:
        return len(self.row)

    def values(self, tokens: Sequence[int]) -> list[float]:
        return [self.row[token] for token in tokens]

    def penalized(
        self,
        tokens: Sequence[int],
        *,
        biases: Sequence[float],
        divisors: Sequence[float],
        subtracted: Sequence[float],
    ) -> FakeLogits:
        row = list(self.row)
        for token, bias, divisor, less in zip(tokens, biases, divisors, subtracted, strict=True):
            biased = row[token] + bias
            row[token] = (biased / divisor if biased > 0 else biased * divisor) - less
        return FakeLogits(row)

    def masked(self, bits: TokenBits) -> FakeLogits:
        assert isinstance(bits, bytes)
        allowed = int.from_bytes(bits, "little")
        return FakeLogits([logit if allowed >> token & 1 else -math.inf for token, logit in enumerate(self.row)])

    def top(self, count: int) -> Candidates:
        tokens = sorted(range(self.size), key=lambda token: -self.row[token])[:count]
        return Candidates(tokens, self.values(tokens))

    def logsumexp(self, temperature: float = 1.0) -> float:
        return math.log(sum(math.exp(logit / temperature) for logit in self.row))

    def draw(self, temperature: float, uniform: float) -> int:
        sums = list(accumulate(math.exp(logit / temperature) for logit in self.row))
        return next(token for token, mass in enumerate(sums) if mass > uniform * sums[-1])

    def mean(self, temperature: float) -> float:
        raise NotImplementedError

    def deviation(self) -> float:
        return statistics.pstdev(logit for logit in self.row if logit > -math.inf)

    def mass_nearer(self, token: int, centre: float, *, temperature: float) -> float:
        raise NotImplementedError


def peaked(token: int) -> FakeLogits:
    """Logits of which this token is the best."""
    return FakeLogits([8.0 if other == token else 0.0 for other in range(VOCABULARY)])


class Bytes:
    """A tokenizer whose tokens are the 256 bytes, and END.

    as_byte_tokens: spells them "<0x41>", as byte-fallback vocabularies do.
    """

    special_tokens = frozenset({END})

    def __init__(self, *, as_byte_tokens: bool = False) -> None:
        self._as_byte_tokens = as_byte_tokens

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [*text.encode(), *([END] if special else [])]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        end = b"<end>" if special else b""
        return b"".join(end if token == END else bytes([token]) for token in tokens).decode(errors="replace")

    def token_text(self, token: int) -> str | None:
        if not 0 <= token < END:
            return "<end>" if token == END else None
        return f"<0x{token:02X}>" if self._as_byte_tokens else f"byte {token}"

    def appended_text(self, token: int) -> str | None:
        return None


def whole_history(held: Sequence[int]) -> int:
    """A next token that depends on every token before it, so that a wrong one anywhere shows."""
    return hash(tuple(held)) % END


def alone(*prompt: int, count: int = 3) -> list[int]:
    """The tokens after a prompt where each is that of the whole history."""
    held = list(prompt)
    for _ in range(count):
        held.append(whole_history(held))
    return held[len(prompt) :]


def tokens(chunks: Iterable[Chunk]) -> list[int | None]:
    return [chunk.token for chunk in chunks]


class FakeSession:
    """A sequence on a FakeEngine; `fed` is what it was fed, call by call."""

    def __init__(self, engine: FakeEngine) -> None:
        self.position = 0
        self.tokens: list[int] = []
        self.fed: list[list[int]] = []
        self.stopping = Event()
        self.closed = False
        self._engine = engine

    @property
    def capacity(self) -> int:
        step = self._engine.capacity_step
        return min(self._engine.context, -(-self.position // step) * step) if step else self._engine.context

    def feed(self, tokens: Sequence[int]) -> FakeLogits:
        assert not self.closed
        self._engine.note_thread()
        self.fed.append(list(tokens))
        self._engine.during_feed(self)
        if self.stopping.is_set():
            raise Interrupted
        self.tokens += tokens
        self.position = len(self.tokens)
        return peaked(self._engine.next_token(self.tokens))

    def rewind(self, position: int) -> None:
        assert 0 <= position <= self.position
        self._engine.note_thread()
        del self.tokens[position:]
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        if stop:
            self.stopping.set()
        else:
            self.stopping.clear()

    def close(self) -> None:
        self.closed = True
        self.rewind(0)


class FakeEngine:
    """Opens FakeSessions.

    next_token: the most probable token after the given ones. during_feed: called in the middle of each feed.
    name: of its device; None: one of its own, and so an engine loop of its own. capacity_step: tokens in which a
    session's memory grows; 0: it has all of it from the beginning. threads: those that have used it.
    """

    def __init__(
        self,
        next_token: Callable[[Sequence[int]], int] = lambda tokens: len(tokens) % 26 + ord("a"),
        *,
        context: int = 64,
        chunk: int = 16,
        during_feed: Callable[[FakeSession], None] = lambda session: None,
        name: str | None = None,
        capacity_step: int = 0,
    ) -> None:
        self.device = Device(name=name or own_name(), backend="fake 1", description="", available=True)
        self.capacity_step = capacity_step
        self.threads: set[int] = set()
        self.context = context
        self.remedy = "export with a larger --context"
        self.chunk = chunk
        self.next_token = next_token
        self.during_feed = during_feed
        self.sessions: list[FakeSession] = []
        self.closed = False

    def open(self, capacity: int = 0) -> FakeSession:
        assert not self.closed
        self.note_thread()
        self.sessions.append(FakeSession(self))
        return self.sessions[-1]

    def close(self) -> None:
        self.note_thread()
        assert all(session.closed for session in self.sessions)
        self.closed = True

    def note_thread(self) -> None:
        self.threads.add(threading.get_ident())


class FakeBatchEngine(FakeEngine):
    """Feeds several of its sessions in one run; `runs` is how many rows each run had.

    during_run: called in the middle of each run with its sessions.
    """

    def __init__(
        self,
        next_token: Callable[[Sequence[int]], int] = lambda tokens: len(tokens) % 26 + ord("a"),
        *,
        max_batch: int = 4,
        mixes_lengths: bool = False,
        prompt_budget: int = 8,
        during_run: Callable[[Sequence[FakeSession]], None] = lambda sessions: None,
        context: int = 64,
        chunk: int = 16,
        during_feed: Callable[[FakeSession], None] = lambda session: None,
        name: str | None = None,
        capacity_step: int = 0,
    ) -> None:
        super().__init__(next_token, context=context, chunk=chunk, during_feed=during_feed, name=name,
                         capacity_step=capacity_step)  # fmt: skip
        self.max_batch = max_batch
        self.mixes_lengths = mixes_lengths
        self.prompt_budget = prompt_budget
        self.during_run = during_run
        self.runs: list[int] = []

    def run_batch(self, rows: Sequence[BatchRow]) -> list[FakeLogits]:
        self.note_thread()
        sessions: list[FakeSession] = []
        for session, tokens in rows:
            assert isinstance(session, FakeSession)
            assert session in self.sessions
            assert not session.closed
            assert len(tokens) == 1 or (self.mixes_lengths and len(tokens) > 1)
            assert session.position + len(tokens) <= self.context
            sessions.append(session)
        assert len({id(session) for session in sessions}) == len(rows)
        assert 1 <= len(rows) <= self.max_batch
        self.runs.append(len(rows))
        self.during_run(sessions)
        for session, (_, tokens) in zip(sessions, rows, strict=True):
            session.fed.append(list(tokens))
            session.tokens += tokens
            session.position = len(session.tokens)
        return [peaked(self.next_token(session.tokens)) for session in sessions]


class FakePromptEngine(FakeBatchEngine):
    """Reads several prompts in one run, too; `reads` is how long those of each were."""

    @property
    def reads(self) -> list[list[int]]:
        if not hasattr(self, "_reads"):
            self._reads: list[list[int]] = []
        return self._reads

    def read_prompts(self, rows: Sequence[BatchRow]) -> list[FakeLogits]:
        for session, tokens in rows:
            assert session.position == 0
            assert len(tokens) > 1
        self.reads.append([len(tokens) for _, tokens in rows])
        for session, tokens in rows:
            assert isinstance(session, FakeSession)
            session.fed.append(list(tokens[:-1]))
            session.tokens += tokens[:-1]
            session.position = len(session.tokens)
        return self.run_batch([BatchRow(session, tokens[-1:]) for session, tokens in rows])


def own_name() -> str:
    """The name of a device that no other engine is on."""
    return f"fake{next(_NUMBERS)}"
