"""Under a constraint every reply keeps to it, whatever the model, the biases and the options of sampling say."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.generation import Generation
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.sampling.options import Sampling
from embedllm.sampling.sampler import Sampler
from embedllm.text.stream import StopStrings, TextStream
from embedllm.types import Logits
from tests.support.fakes import END, VOCABULARY, Bytes, FakeLogits, peaked

GREEDY = Sampling(temperature=0)
DIGITS = dict.fromkeys(range(ord("0"), ord("9") + 1))
LIST = re.compile(r"-?[0-9](,[0-9])*")  # what the states below spell
DATE = re.compile(r"[0-9]{2}\.[0-9]{2}")

# state -> byte -> state; a state in _WHOLE may end, one without a byte must
_LIST_STATES: dict[int, dict[int, int]] = {
    0: {ord("-"): 1, **dict.fromkeys(DIGITS, 2)},
    1: dict.fromkeys(DIGITS, 2),
    2: {ord(","): 1},
}
_DATE_STATES: dict[int, dict[int, int]] = {
    0: dict.fromkeys(DIGITS, 1),
    1: dict.fromkeys(DIGITS, 3),
    3: {ord("."): 4},
    4: dict.fromkeys(DIGITS, 5),
    5: dict.fromkeys(DIGITS, 6),
    6: {},
}


class Automaton:
    """A constraint written as a table; whole: states in which the reply may end."""

    def __init__(self, states: dict[int, dict[int, int]], *, whole: int) -> None:
        self.states = states
        self.whole = whole
        self.state = 0
        self.asked = 0

    @property
    def is_done(self) -> bool:
        return self.is_stop_allowed and not self.states[self.state]

    @property
    def is_stop_allowed(self) -> bool:
        return self.state == self.whole

    def prepare(self) -> None: ...

    def allowed(self, logits: Logits) -> Logits:
        self.asked += 1
        tokens = [*self.states[self.state], *([END] if self.is_stop_allowed else [])]
        bits = sum(1 << token for token in tokens)
        return logits.masked(bits.to_bytes(-(-VOCABULARY // 32) * 4, "little"))

    def note(self, token: int) -> None:
        if token != END:
            self.state = self.states[self.state][token]


def date() -> Automaton:
    return Automaton(_DATE_STATES, whole=6)


def numbers() -> Automaton:
    return Automaton(_LIST_STATES, whole=2)


def rule(constraint: Automaton | None, sampling: Sampling = GREEDY, *, limit: int = 40) -> Generation:
    return Generation(
        sampler=Sampler(sampling, constraint=constraint),
        text=TextStream(Bytes()),
        stops=StopStrings(()),
        stop_tokens=(END,),
        limit=limit,
        limit_reason="length",
        top_count=0,
        statistics=Statistics(prompt_tokens=1, cached_tokens=0),
    )


def reply(generation: Generation, rows: list[Logits]) -> tuple[str, Chunk]:
    text = ""
    for row in rows:
        chunk = generation.accept(row)
        text += chunk.text
        if chunk.finish_reason is not None:
            return text, chunk
    raise AssertionError(f"the reply did not end: {text!r}")


def random_rows(seed: int, count: int = 40) -> list[Logits]:
    rng = np.random.default_rng(seed)
    return [NumpyLogits((rng.standard_normal(VOCABULARY) * 8).astype(np.float32)) for _ in range(count)]


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from((0.0, 0.3, 1.0, 5.0)),
    top_k=st.sampled_from((0, 1, 40)),
    top_p=st.sampled_from((0.0, 0.5, 1.0)),
    min_p=st.sampled_from((0.0, 0.2)),
    typical_p=st.sampled_from((0.3, 1.0)),
    repetition_penalty=st.sampled_from((0.5, 1.0, 1.3)),
    presence_penalty=st.sampled_from((-2.0, 0.0, 2.0)),
    logit_bias=st.sampled_from(((), ((ord("x"), 100.0), (END, -50.0)))),
    seed=st.integers(0, 1000),
)


@given(st.integers(0, 2**32), samplings)
def test_a_reply_keeps_to_the_constraint_under_every_sampling(seed: int, sampling: Sampling) -> None:
    text, last = reply(rule(date(), sampling), random_rows(seed))
    assert DATE.fullmatch(text)
    assert last.finish_reason == "stop"
    assert last.stopped_by is None

    text, last = reply(rule(numbers(), sampling), random_rows(seed))
    assert last.finish_reason in ("stop", "length")
    if last.finish_reason == "stop":
        assert LIST.fullmatch(text)


def test_a_bias_does_not_bring_a_forbidden_token_back() -> None:
    wants_x = Sampling(temperature=0, logit_bias={ord("x"): 100.0})
    text, _ = reply(rule(date(), wants_x), [peaked(ord("x"))] * 5)
    assert text == "00.00"


def test_a_bias_chooses_among_what_is_allowed() -> None:
    text, _ = reply(rule(date(), Sampling(temperature=0, logit_bias={ord("7"): 1.0})), [peaked(ord("x"))] * 5)
    assert text == "77.77"


def test_log_probabilities_are_the_models_own() -> None:
    row = FakeLogits([math.log(2.0) if token == ord("4") else 0.0 for token in range(VOCABULARY)])
    assert rule(date()).accept(row).logprob == pytest.approx(math.log(2 / (VOCABULARY + 1)))


def test_the_reply_ends_with_the_token_that_leaves_only_the_stop() -> None:
    generation = rule(date())
    chunks = [generation.accept(peaked(token)) for token in b"31.12"]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, None, "stop"]
    assert generation.statistics.tokens == 5


def test_a_stop_token_ends_a_reply_that_could_go_on() -> None:
    text, last = reply(rule(numbers()), [peaked(ord("7")), peaked(END)])
    assert (text, last.stopped_by) == ("7", END)


def test_a_stop_token_is_refused_before_the_reply_is_whole() -> None:
    text, _ = reply(rule(date()), [peaked(END)] * 5)
    assert text == "00.00"


def test_the_limit_ends_the_reply_as_length_when_it_is_not_whole() -> None:
    text, last = reply(rule(date(), limit=3), random_rows(1))
    assert (len(text), last.finish_reason) == (3, "length")


def test_a_whole_reply_at_the_limit_has_stopped() -> None:
    assert reply(rule(date(), limit=5), random_rows(1))[1].finish_reason == "stop"


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=1), Sampling(top_p=0.5), Sampling(typical_p=0.5)])
def test_a_constraint_that_allows_nothing_is_an_error(sampling: Sampling) -> None:
    dead = Automaton({0: {}}, whole=1)
    with pytest.raises(ValueError, match="no token is allowed"):
        rule(dead, sampling).accept(random_rows(3)[0])


def test_the_constraint_is_asked_once_a_step_and_never_without_one() -> None:
    constraint = date()
    reply(rule(constraint), random_rows(2))
    assert constraint.asked == 5
    assert rule(None).accept(peaked(ord("x"))).text == "x"
