"""The loop on fake sequences that note what they are fed, driven by both of its drivers: no runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.backends.base import Interrupted
from embedllm.cancel import Cancel
from embedllm.generation import generation
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.generation import Generation
from embedllm.generation.loop import DecodeStep, Feed, FeedGenerator, arun, run
from embedllm.sampling.options import Sampling
from embedllm.types import Logits
from tests.generation.test_generation import GREEDY, rule, texts
from tests.support.fakes import END, FakeLogits, peaked

PIECES = ([1, 2], [3])


class Said:
    """A sequence of a model that says a reply, whatever it is fed; notes what that is."""

    def __init__(self, reply: Sequence[int | Exception]) -> None:
        self.fed: list[list[int]] = []
        self.held: list[int] = []
        self.reply = reply

    def feed(self, tokens: Sequence[int]) -> FakeLogits:
        self.fed.append(list(tokens))
        self.held += tokens
        return self._row(len(self.held))

    def feed_all(self, tokens: Sequence[int]) -> list[FakeLogits]:
        self.fed.append(list(tokens))
        self.held += tokens
        return [self._row(len(self.held) - place) for place in reversed(range(len(tokens)))]

    def rewind_by(self, count: int) -> None:
        assert 0 < count < len(self.held)
        del self.held[-count:]

    def _row(self, held: int) -> FakeLogits:
        said = self.reply[held - 3] if 3 <= held < 3 + len(self.reply) else 0  # nobody asks in the middle of a prompt
        if isinstance(said, Exception):
            raise said
        return peaked(said)


async def awaited(asked: Feed) -> Sequence[Logits]:
    await asyncio.sleep(0)
    return asked()


def run_both(make: Callable[[], Generation], reply: Sequence[int | Exception], cancel: Cancel) -> list[Chunk]:
    """The chunks of run(), after a check that arun() gives and feeds the same."""

    async def collected(said: Said) -> list[Chunk]:
        return [chunk async for chunk in arun(make(), said, PIECES, cancel, feed=awaited)]

    one, two = Said(reply), Said(reply)
    chunks = list(run(make(), one, PIECES, cancel))
    others = asyncio.run(collected(two))
    assert one.fed == two.fed
    assert [(c.text, c.token, c.finish_reason) for c in chunks] == [(c.text, c.token, c.finish_reason) for c in others]
    return chunks


def test_both_loops_feed_the_prompt_in_pieces_then_every_token_but_the_last() -> None:
    said = Said([*b"abc", END])
    chunks = list(run(rule(), said, PIECES, Cancel()))
    assert said.fed == [*PIECES, [ord("a")], [ord("b")], [ord("c")]]
    assert texts(chunks) == ["a", "b", "c", ""]
    assert texts(run_both(rule, [*b"abc", END], Cancel())) == texts(chunks)
    assert texts(run_both(lambda: rule(limit=1), b"abc", Cancel())) == ["a"]


def test_a_switch_that_is_off_before_the_start_feeds_nothing() -> None:
    cancel = Cancel()
    cancel.cancel()
    said = Said(b"abc")
    (only,) = run(rule(), said, PIECES, cancel)
    assert said.fed == []
    assert (only.text, only.token, only.finish_reason, only.statistics.tokens) == ("", None, "cancelled", 0)
    assert len(run_both(rule, b"abc", cancel)) == 1


def test_cancelling_between_two_chunks_ends_after_the_first() -> None:
    cancel, said = Cancel(), Said(b"abc")
    chunks = run(rule(), said, PIECES, cancel)
    assert next(chunks).text == "a"
    cancel.cancel()
    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [("", "cancelled")]
    assert said.fed == list(PIECES)


def test_cancelling_after_the_last_chunk_changes_nothing() -> None:
    cancel = Cancel()
    chunks = run(rule(limit=1), Said(b"abc"), PIECES, cancel)
    assert next(chunks).finish_reason == "length"
    cancel.cancel()
    assert list(chunks) == []


def test_an_interrupted_feed_ends_the_stream_with_the_text_so_far() -> None:
    chunks = run_both(rule, [ord("a"), 0xE6, Interrupted()], Cancel())
    assert texts(chunks) == ["a", "", "\ufffd"]
    assert chunks[-1].finish_reason == "cancelled"
    assert [chunk.finish_reason for chunk in run_both(rule, [Interrupted()], Cancel())] == ["cancelled"]


def test_another_error_of_a_feed_comes_through() -> None:
    chunks = run(rule(), Said([ord("a"), OSError("gone")]), PIECES, Cancel())
    assert next(chunks).text == "a"
    with pytest.raises(OSError, match="gone"):
        next(chunks)


def test_statistics_of_every_chunk_count_and_clock_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=lambda: now))

    class Slow(Said):
        def feed(self, tokens: Sequence[int]) -> FakeLogits:
            passes(1.0 if tokens in PIECES else 0.5 * len(tokens))
            return super().feed(tokens)

    chunks: list[Chunk] = []
    for chunk in run(rule(limit=3), Slow(b"abc"), PIECES, Cancel()):
        chunks.append(chunk)
        passes(60.0)  # a consumer who takes his time
    known = {"prompt_tokens": 3, "cached_tokens": 1, "prefill_s": 2.0}
    assert [chunk.statistics for chunk in chunks] == [
        Statistics(tokens=1, decode_s=0.0, **known),
        Statistics(tokens=2, decode_s=0.5, **known),
        Statistics(tokens=3, decode_s=1.0, **known),
    ]
    assert chunks[-1].statistics.prefill_tokens_s == 1.0  # (3 - 1) / 2.0
    assert chunks[-1].statistics.decode_tokens_s == pytest.approx(2 / 1.0)
    assert chunks[0].statistics.decode_tokens_s == 0.0
    assert Statistics(prompt_tokens=3, cached_tokens=1).prefill_tokens_s == 0.0


# --- proposals


class Guesses:
    """Proposes what a test has listed, one list a step; notes what it is told."""

    def __init__(self, proposals: Sequence[Sequence[int]]) -> None:
        self.noted: list[int] = []
        self.steps: list[DecodeStep] = []
        self._proposals = iter(proposals)

    def note(self, token: int) -> None:
        self.noted.append(token)

    def propose(self, most: int) -> FeedGenerator:
        assert most > 0
        return next(self._proposals, ())[:most]
        yield  # a generator

    def measure(self, step: DecodeStep) -> None:
        self.steps.append(step)


class Drawn(Said):
    """A sequence whose rows depend on all that it holds."""

    def _row(self, held: int) -> FakeLogits:
        history = hash(tuple(self.held[:held]))
        return FakeLogits([(history >> place % 60 & 7) / 2 for place in range(END + 1)])


def facts(chunks: Sequence[Chunk]) -> list[tuple[object, ...]]:
    return [(c.text, c.token, c.logprob, c.finish_reason, c.stopped_by, c.statistics.tokens) for c in chunks]


@given(
    st.lists(st.lists(st.integers(0, END), max_size=5), max_size=12),
    st.lists(st.booleans(), max_size=12),
    st.integers(1, 12),
    st.sampled_from((GREEDY, Sampling(seed=3), Sampling(seed=4, top_k=5), Sampling(seed=5, frequency_penalty=1.0))),
    st.sampled_from(((), (END,), tuple(range(40)))),
)
def test_any_proposals_give_the_plain_reply(
    guesses: list[list[int]], are_right: list[bool], limit: int, sampling: Sampling, stop_tokens: tuple[int, ...]
) -> None:
    def make() -> Generation:
        return rule(sampling=sampling, limit=limit, stop_tokens=stop_tokens)

    plain = Drawn(())
    chunks = list(run(make(), plain, PIECES, Cancel()))
    reply = [chunk.token or 0 for chunk in chunks]
    place = 1
    for index, is_right in enumerate(are_right[: len(guesses)]):  # begins with what will be chosen, were all refused
        if is_right:
            guesses[index] = [*reply[place : place + 3], *guesses[index]]
            place += 2

    async def collected() -> list[Chunk]:
        return [c async for c in arun(make(), Drawn(()), PIECES, Cancel(), Guesses(guesses), feed=awaited)]

    sequence, proposer = Drawn(()), Guesses(guesses)
    found = list(run(make(), sequence, PIECES, Cancel(), proposer))
    assert facts(found) == facts(chunks) == facts(asyncio.run(collected()))
    assert sequence.held == plain.held  # what was fed in vain is forgotten
    assert proposer.noted == reply
    last = found[-1].statistics
    assert last.drafted_tokens == sum(map(len, sequence.fed[2:])) - len(sequence.fed[2:])
    assert last.accepted_tokens <= last.drafted_tokens


def test_what_was_proposed_rightly_is_fed_once_and_counted() -> None:
    said, guesses = Said([*b"abcdef", END]), Guesses([b"bcX", b"", b"f"])
    chunks = list(run(rule(), said, PIECES, Cancel(), guesses))
    assert "".join(texts(chunks)) == "abcdef"
    assert said.fed == [*PIECES, [*b"abcX"], [*b"d"], [*b"ef"]]  # after "abc" came "d", and not "X"
    assert [(step.fed, step.chosen) for step in guesses.steps] == [(4, 3), (1, 1)]  # the last one leads nowhere
    counts = [(c.statistics.drafted_tokens, c.statistics.accepted_tokens) for c in chunks]
    assert counts == [(0, 0), (3, 1), (3, 2), (3, 2), (3, 2), (4, 3), (4, 3)]
    assert chunks[-1].statistics.acceptance == 3 / 4


def test_near_the_limit_fewer_are_proposed() -> None:
    said = Said(b"abcdef")
    list(run(rule(limit=4), said, PIECES, Cancel(), Guesses([b"bcdef"])))
    assert said.fed == [*PIECES, [*b"abc"]]
    assert said.held == [1, 2, 3, *b"abc"]


def test_a_stop_inside_of_what_was_accepted_ends_the_reply_and_its_sequence_there() -> None:
    said = Said([*b"ab", END, *b"cd"])
    chunks = list(run(rule(), said, PIECES, Cancel(), Guesses([[ord("b"), END, ord("c")]])))
    assert chunks[-1].stopped_by == END
    assert said.held == [1, 2, 3, *b"ab"]


def test_cancelling_between_two_accepted_tokens_ends_after_the_first() -> None:
    cancel, said = Cancel(), Said(b"abcdef")
    chunks = run(rule(), said, PIECES, cancel, Guesses([b"bcd"]))
    assert [next(chunks).text for _ in range(2)] == ["a", "b"]
    cancel.cancel()
    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [("", "cancelled")]
    assert said.held == [1, 2, 3, *b"a"]


def test_leaving_between_two_accepted_tokens_leaves_the_sequence_with_what_it_was_fed() -> None:
    said = Said(b"abcdef")
    chunks = run(rule(), said, PIECES, Cancel(), Guesses([b"bcd"]))
    assert [next(chunks).text for _ in range(2)] == ["a", "b"]
    del chunks
    assert said.held == [1, 2, 3, *b"abcd"]


def test_an_interrupted_feed_of_several_tokens_ends_the_stream_with_the_text_so_far() -> None:
    chunks = list(run(rule(), Said([*b"ab", Interrupted()]), PIECES, Cancel(), Guesses([b"bc"])))
    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [("a", None), ("", "cancelled")]
