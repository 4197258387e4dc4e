"""The loop of a generation: what to feed next and when, as one generator without I/O; and the two that feed for it.

`decode_steps` asks for feeds and gives chunks. `run` and `arun` feed for it, from a thread or awaited, so that both are
the same loop. Standard library only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from embedllm.backends.base import Interrupted
from embedllm.cancel import Cancel
from embedllm.files.native_calls import native_call
from embedllm.generation.chunk import Chunk
from embedllm.generation.generation import Generation
from embedllm.types import Logits


class Feedable(Protocol):
    """A sequence that the loop has fed."""

    def feed(self, tokens: Sequence[int]) -> Logits:
        """Appends tokens; the logits after the last of them."""
        ...

    def feed_all(self, tokens: Sequence[int]) -> Sequence[Logits]:
        """As feed; the logits after each of them."""
        ...

    def rewind_by(self, count: int) -> None:
        """Forgets the last tokens."""
        ...


class Feed(NamedTuple):
    """What the loop wants to be fed; no dataclass, because one is made for each token."""

    sequence: Feedable
    tokens: Sequence[int]
    is_all: bool = False  # the logits after each token are wanted; else those after the last
    is_prompt: bool = False  # may be fed in pieces, beside the steps of others
    meanwhile: Callable[[], None] | None = None  # what may be done while the device computes: a grammar's mask

    def __call__(self) -> Sequence[Logits]:
        return self.sequence.feed_all(self.tokens) if self.is_all else (self.sequence.feed(self.tokens),)


FeedGenerator: TypeAlias = "Generator[Feed, Sequence[Logits], Sequence[int]]"  # asks for feeds, at its end gives tokens


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step: a feed, and the tokens chosen from its logits."""

    fed: int  # tokens: the chosen one and the proposed ones behind it
    chosen: int  # tokens, 1 to `fed`; from 2 on draft tokens were accepted
    feed_s: float  # seconds of the feed and the first choice
    total_s: float  # and of proposing before and choosing the others


class Proposer(Protocol):
    """Proposes draft tokens, so that several tokens are verified in one step."""

    def note(self, token: int) -> None:
        """Receives each chosen token."""
        ...

    def propose(self, most: int) -> FeedGenerator:
        """At most `most` draft tokens after the last chosen one; none when speculation would not pay."""
        ...

    def measure(self, step: DecodeStep) -> None:
        """Receives the cost of the step with the last draft, an empty one too."""
        ...


def decode_steps(
    generation: Generation,
    sequence: Feedable,
    pieces: Sequence[Sequence[int]],
    cancel: Cancel,
    proposer: Proposer | None = None,
) -> Generator[Feed | Chunk, Sequence[Logits], None]:
    """Asks for feeds and takes their logits; gives chunks, and then takes nothing.

    Draft tokens are fed after the chosen token and verified: the sampler chooses from each row of logits as long as it
    chooses the draft token, so the reply is the same as without speculation. Raises Interrupted.
    """
    rows: Sequence[Logits] | None = None
    meanwhile = generation.sampler.prepare
    for piece in pieces:
        _check(cancel)
        with generation.clocked():
            rows = yield Feed(sequence, piece, is_prompt=True, meanwhile=meanwhile)
    assert rows, "a prompt has at least one token, and each feed gives a row"
    if proposer is None:
        yield from _decode_singly(generation, sequence, rows[-1], cancel)
        return
    proposed: Sequence[int] = ()
    began_s = fed_s = generation.spent_s
    while True:
        chunks = _verify(generation, sequence, rows, proposed, cancel)
        token, chosen, feed_s = 0, 0, 0.0
        for chunk in chunks:
            assert chunk.token is not None
            token, chosen = chunk.token, chosen + 1
            feed_s = feed_s or generation.spent_s - fed_s
            proposer.note(token)
            yield chunk
            if chunk.finish_reason is not None:
                return
        _check(cancel)
        if generation.statistics.tokens > chosen:  # the first token came of the prompt's feed
            proposer.measure(DecodeStep(len(rows), chosen, feed_s, generation.spent_s - began_s))
        began_s = generation.spent_s
        room = generation.limit - generation.statistics.tokens - 1  # one more is chosen than proposed
        proposed = ()
        if room > 0:
            with generation.clocked():
                proposed = yield from proposer.propose(room)
        generation.drafted_tokens += len(proposed)
        fed_s = generation.spent_s
        with generation.clocked():
            rows = yield Feed(sequence, [token, *proposed], is_all=bool(proposed), meanwhile=meanwhile)


def _decode_singly(
    generation: Generation, sequence: Feedable, logits: Logits, cancel: Cancel
) -> Generator[Feed | Chunk, Sequence[Logits], None]:
    """Without draft tokens: asks for one token after the other, from these logits on."""
    clock, meanwhile = generation.clocked(), generation.sampler.prepare
    while True:
        chunk = generation.accept(logits)
        yield chunk
        if chunk.finish_reason is not None:
            return
        _check(cancel)
        assert chunk.token is not None
        with clock:
            (logits,) = yield Feed(sequence, [chunk.token], meanwhile=meanwhile)


def _verify(
    generation: Generation, sequence: Feedable, rows: Sequence[Logits], proposed: Sequence[int], cancel: Cancel
) -> Iterator[Chunk]:
    """Chooses from each row of logits while draft tokens are accepted; rewinds the rejected ones."""
    for place, logits in enumerate(rows):
        if place and cancel.cancelled:
            sequence.rewind_by(len(rows) - place)  # of the tokens from here on nobody has heard
            raise Interrupted
        draft_token = proposed[place] if place < len(proposed) else None
        chunk = generation.accept(logits, draft_token)
        is_over = chunk.finish_reason is not None or chunk.token != draft_token
        if is_over and place + 1 < len(rows):
            sequence.rewind_by(len(rows) - place - 1)
        yield chunk
        if is_over:
            return


def run(
    generation: Generation,
    sequence: Feedable,
    pieces: Sequence[Sequence[int]],
    cancel: Cancel,
    proposer: Proposer | None = None,
) -> Iterator[Chunk]:
    """Drives a generation over a sequence.

    pieces: the prompt in chunks (chunked prefill).
    """
    steps = decode_steps(generation, sequence, pieces, cancel, proposer)
    try:
        step = next(steps, None)
        while step is not None:
            if isinstance(step, Chunk):
                yield step
                step = next(steps, None)
                continue
            try:
                with native_call():
                    rows = step()
            except BaseException as error:
                steps.throw(error)  # raises it again, with the time counted that it took
                raise
            step = steps.send(rows)
    except Interrupted:
        yield generation.cancelled()


async def arun(
    generation: Generation,
    sequence: Feedable,
    pieces: Sequence[Sequence[int]],
    cancel: Cancel,
    proposer: Proposer | None = None,
    *,
    feed: Callable[[Feed], Awaitable[Sequence[Logits]]],
) -> AsyncGenerator[Chunk, None]:
    """As `run`, over a `feed` that is awaited."""
    steps = decode_steps(generation, sequence, pieces, cancel, proposer)
    try:
        step = next(steps, None)
        while step is not None:
            if isinstance(step, Chunk):
                yield step
                step = next(steps, None)
                continue
            try:
                rows = await feed(step)
            except BaseException as error:
                steps.throw(error)
                raise
            step = steps.send(rows)
    except Interrupted:
        yield generation.cancelled()


def _check(cancel: Cancel) -> None:
    if cancel.cancelled:
        raise Interrupted
