"""The rule on fake logits: no runtime. The loop that feeds it: tests/generation/test_loop.py."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.cancel import Cancel
from embedllm.errors import DeviceError
from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.completion import Completion, collect
from embedllm.generation.generation import Generation
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Picked, Sampler
from embedllm.text.stream import StopStrings, TextStream
from tests.support.fakes import END, Bytes, FakeLogits, peaked

GREEDY = Sampling(temperature=0)
PIECES = ([1, 2], [3])


def rule(
    *,
    stop: Sequence[str] = (),
    stop_tokens: Sequence[int] = (END,),
    limit: int = 100,
    limit_reason: str = "length",
    top_count: int = 0,
    sampling: Sampling = GREEDY,
    as_byte_tokens: bool = False,
) -> Generation:
    return Generation(
        sampler=Sampler(sampling),
        text=TextStream(Bytes(as_byte_tokens=as_byte_tokens)),
        stops=StopStrings(stop),
        stop_tokens=stop_tokens,
        limit=limit,
        limit_reason=limit_reason,
        top_count=top_count,
        device="fake",
        statistics=Statistics(prompt_tokens=3, cached_tokens=1),
    )


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=1)])
@pytest.mark.parametrize("logit", [0.0, -3.5])
def test_logits_that_are_all_equal_are_an_error(sampling: Sampling, logit: float) -> None:
    generation = rule(sampling=sampling)
    with pytest.raises(DeviceError, match=f"on 'fake', all 300 logits of the model are {logit:g}"):
        generation.accept(FakeLogits([logit] * 300))


def test_a_token_as_likely_as_in_a_uniform_distribution_may_be_chosen() -> None:
    row = [0.0, math.log(2), math.log(0.5), -math.log(2)]  # of 4 tokens, in all 4
    assert sum(map(math.exp, row)) == pytest.approx(4)
    assert rule(sampling=Sampling(temperature=0, logit_bias={0: 9})).accept(FakeLogits(row)).token == 0


def accept_all(generation: Generation, reply: bytes | Sequence[int]) -> list[Chunk]:
    """The chunks of a model that says these tokens, up to the last one that the rule wants."""
    chunks: list[Chunk] = []
    for token in reply:
        chunks.append(generation.accept(peaked(token)))
        if chunks[-1].finish_reason is not None:
            break
    return chunks


def texts(chunks: Sequence[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


# --- the end


def test_a_stop_token_ends_the_reply_and_is_no_part_of_its_text() -> None:
    chunks = accept_all(rule(stop_tokens=[END, ord("!")]), b"hi! there")
    assert texts(chunks) == ["h", "i", ""]
    assert (chunks[-1].token, chunks[-1].finish_reason, chunks[-1].stopped_by) == (ord("!"), "stop", ord("!"))
    assert chunks[-1].statistics.tokens == 3


def test_without_stop_tokens_nothing_but_the_limit_ends_the_reply() -> None:
    chunks = accept_all(rule(stop_tokens=(), limit=4), [END, END, ord("a"), END, END])
    assert texts(chunks) == ["", "", "a", ""]
    assert (chunks[-1].finish_reason, chunks[-1].stopped_by) == ("length", None)


def test_a_stop_string_across_chunks_ends_the_reply_before_it() -> None:
    chunks = accept_all(rule(stop=["END", "never"]), b"say END now")
    assert texts(chunks) == ["s", "a", "y", " ", "", "", ""]
    assert (chunks[-1].token, chunks[-1].finish_reason, chunks[-1].stopped_by) == (ord("D"), "stop", "END")


def test_text_held_for_a_stop_string_that_never_came_is_released_at_the_end() -> None:
    assert texts(accept_all(rule(stop=["END"], limit=4), b"a ENxx")) == ["a", " ", "", "EN"]
    assert texts(accept_all(rule(stop=["END"]), [*b"a EN", END])) == ["a", " ", "", "", "EN"]
    assert texts(accept_all(rule(stop=["END"]), b"EaENDx")) == ["", "Ea", "", "", ""]


@pytest.mark.parametrize("ended_by", ["limit", "stop token"])
@pytest.mark.parametrize(
    ("stop", "as_byte_tokens", "text"),
    [("\ufffd", False, "a"), ("a\ufffd", False, ""), ("a", True, "")],
    ids=["a broken character", "begun before it", "a run of byte tokens"],
)
def test_a_stop_string_in_what_was_held_back_counts(ended_by: str, stop: str, as_byte_tokens: bool, text: str) -> None:
    generation = rule(stop=[stop], as_byte_tokens=as_byte_tokens, limit=2 if ended_by == "limit" else 9)
    chunks = accept_all(generation, [ord("a"), 0xE6, END])
    assert "".join(texts(chunks)) == text
    assert (chunks[-1].finish_reason, chunks[-1].stopped_by) == ("stop", stop)


def test_a_stop_token_after_a_stop_string_is_never_asked_for() -> None:
    chunks = accept_all(rule(stop=["b"]), [*b"ab", END])
    assert len(chunks) == 2


@pytest.mark.parametrize("reason", ["length", "context"])
def test_the_limit_ends_the_reply_with_its_reason(reason: str) -> None:
    chunks = accept_all(rule(limit=3, limit_reason=reason), b"abcdef")
    assert texts(chunks) == ["a", "b", "c"]
    assert (chunks[-1].finish_reason, chunks[-1].stopped_by) == (reason, None)


def test_at_the_limit_a_stop_goes_before_the_limit() -> None:
    assert accept_all(rule(limit=2), [ord("a"), END])[-1].finish_reason == "stop"
    assert accept_all(rule(limit=2, stop=["ab"]), b"ab")[-1].stopped_by == "ab"


def test_bytes_of_an_unfinished_character_are_released_at_the_end() -> None:
    assert texts(accept_all(rule(limit=4), "aé".encode() + b"\xe6")) == ["a", "", "é", "\ufffd"]
    assert texts(accept_all(rule(), [ord("a"), 0xC3, END])) == ["a", "", "\ufffd"]


def naive(text: str, strings: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first match, and the match."""
    starts = ((text.find(string), len(string), string) for string in strings if string in text)
    found = min(starts, default=None)
    return (text, None) if found is None else (text[: found[0]], found[2])


@given(
    reply=st.lists(st.sampled_from([*b"aab", *"é".encode(), 0xE6, END]), min_size=1, max_size=20),
    stop=st.lists(st.text("ab\ufffdé", min_size=1, max_size=3), max_size=3),
    limit=st.integers(1, 20),
    as_byte_tokens=st.booleans(),
)
def test_any_reply_gives_its_text_up_to_the_first_stop(
    reply: list[int], stop: list[str], limit: int, as_byte_tokens: bool
) -> None:
    reply = [*reply, *[END] * limit]  # ends for sure
    chunks = accept_all(rule(stop=stop, limit=limit, as_byte_tokens=as_byte_tokens), reply)
    tokens = [chunk.token for chunk in chunks]
    assert tokens == reply[: len(chunks)]
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert [chunk.statistics.tokens for chunk in chunks] == list(range(1, len(chunks) + 1))
    last = chunks[-1]
    said = [token for token in reply[: len(chunks)] if token != END]
    assert ("".join(texts(chunks)), last.stopped_by if last.stopped_by != END else None) == naive(
        Bytes().decode(said), stop
    )
    if last.stopped_by is None:
        assert (last.finish_reason, len(chunks)) == ("length", limit)
    else:
        assert last.finish_reason == "stop"
    assert collect(chunks).text == "".join(texts(chunks))


# --- what a chunk tells


def test_logprobs_are_those_of_the_model_whatever_the_sampler_did() -> None:
    halves = FakeLogits([math.log(p) for p in (0.5, 0.25, 0.125, 0.125)])
    chunk = rule(top_count=3, sampling=Sampling(temperature=0, logit_bias={2: 5})).accept(halves)
    assert chunk.token == 2
    assert chunk.logprob == pytest.approx(math.log(0.125))
    assert [picked.token for picked in chunk.top_logprobs] == [0, 1, 2]
    assert [picked.logprob for picked in chunk.top_logprobs] == pytest.approx([math.log(p) for p in (0.5, 0.25, 0.125)])
    assert rule().accept(halves).top_logprobs == ()
    assert len(rule(top_count=9).accept(halves).top_logprobs) == 4


def test_the_sampler_is_told_of_each_token() -> None:
    generation = rule(sampling=Sampling(temperature=0, frequency_penalty=1.0))
    row = FakeLogits([0.0] * 97 + [2.5, 2.0] + [0.0] * (END - 98))
    assert "".join(texts([generation.accept(row) for _ in range(4)])) == "abab"


def test_cancelled_gives_what_was_held_back_and_counts_no_token() -> None:
    generation = rule(stop=["bc"])
    accept_all(generation, b"ab")
    assert generation.cancelled() == Chunk(
        text="b", token=None, logprob=None, finish_reason="cancelled", statistics=generation.statistics
    )
    assert generation.statistics.tokens == 2
    generation = rule()
    accept_all(generation, [ord("a"), 0xE6])
    assert generation.cancelled().text == "\ufffd"


def test_collect_joins_chunks_to_a_completion() -> None:
    statistics = Statistics(prompt_tokens=1, cached_tokens=0)
    picked = (Picked(7, -0.5),)
    first = Chunk(text="a", token=7, logprob=-0.5, top_logprobs=picked, statistics=statistics)
    last = Chunk(text="b", token=None, logprob=None, finish_reason="cancelled", statistics=statistics)
    assert collect([first, last]) == Completion(
        text="ab", tokens=(7,), logprobs=(-0.5,), top_logprobs=(picked,), finish_reason="cancelled", stopped_by=None,
        statistics=statistics,
    )  # fmt: skip
    assert collect([first, last]).message == {"role": "assistant", "content": "ab"}


# --- Cancel


def test_a_switch_interrupts_all_that_watch_it_and_releases_them_at_the_end() -> None:
    cancel = Cancel()
    calls: list[tuple[str, bool]] = []
    with cancel.watching(lambda stop: calls.append(("one", stop))):
        with cancel.watching(lambda stop: calls.append(("two", stop))):
            assert not cancel.cancelled
            assert calls == []
            cancel.cancel()
            assert cancel.cancelled
            assert calls == [("one", True), ("two", True)]
        assert calls[2:] == [("two", False)]
    assert calls[3:] == [("one", False)]
    cancel.cancel()
    assert len(calls) == 4


def test_who_watches_a_switch_that_is_off_is_interrupted_at_once() -> None:
    cancel = Cancel()
    cancel.cancel()
    calls: list[bool] = []
    with cancel.watching(calls.append):
        assert calls == [True]
    assert calls == [True, False]


def test_a_watcher_is_released_when_its_block_fails() -> None:
    cancel = Cancel()
    calls: list[bool] = []
    with pytest.raises(OSError, match="left"), cancel.watching(calls.append):
        raise OSError("left")
    assert calls == [False]


def test_a_signal_handler_may_cancel_at_any_moment() -> None:
    # Python runs it in the main thread between any two steps, inside of watching() too.
    cancel = Cancel()
    calls: list[bool] = []

    def interrupt(stop: bool) -> None:
        calls.append(stop)
        if not stop:
            cancel.cancel()  # as the handler would

    def watch() -> None:
        with cancel.watching(interrupt):
            pass

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    assert cancel.cancelled
    assert calls == [False]
