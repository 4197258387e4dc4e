"""Logits, tokenizer, session and engine without a runtime: what they give is decided by the test."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import Event

from embedllm.backends.base import Device, Interrupted
from embedllm.types import Candidates, TokenBits

END = 256  # the special token of `Bytes`
VOCABULARY = 257


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


class FakeSession:
    """A sequence on a FakeEngine; `fed` is what it was fed, call by call."""

    def __init__(self, engine: FakeEngine) -> None:
        self.position = 0
        self.capacity = engine.context
        self.tokens: list[int] = []
        self.fed: list[list[int]] = []
        self.stopping = Event()
        self.closed = False
        self._engine = engine

    def feed(self, tokens: Sequence[int]) -> FakeLogits:
        assert not self.closed
        self.fed.append(list(tokens))
        self._engine.during_feed(self)
        if self.stopping.is_set():
            raise Interrupted
        self.tokens += tokens
        self.position = len(self.tokens)
        return peaked(self._engine.next_token(self.tokens))

    def rewind(self, position: int) -> None:
        assert 0 <= position <= self.position
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
    """

    def __init__(
        self,
        next_token: Callable[[Sequence[int]], int] = lambda tokens: len(tokens) % 26 + ord("a"),
        *,
        context: int = 64,
        chunk: int = 16,
        during_feed: Callable[[FakeSession], None] = lambda session: None,
    ) -> None:
        self.device = Device(name="fake", backend="fake 1", description="", available=True)
        self.context = context
        self.remedy = "export with a larger --context"
        self.chunk = chunk
        self.next_token = next_token
        self.during_feed = during_feed
        self.sessions: list[FakeSession] = []
        self.closed = False

    def open(self, capacity: int = 0) -> FakeSession:
        self.sessions.append(FakeSession(self))
        return self.sessions[-1]

    def close(self) -> None:
        self.closed = True
