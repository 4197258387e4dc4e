"""What is proposed, by the clock and the guesses of a test: no runtime, and no time that passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from embedllm.generation.loop import DecodeStep, Feed
from embedllm.generation.speculation.cost_model import Acceptance, SpeculationStatistics, StepCosts
from embedllm.generation.speculation.speculator import Draft, Speculator
from tests.support.fakes import FakeLogits

STEP_S = 0.01


def costs(of_several: float | None = None) -> StepCosts:
    """Of an engine; of_several: what each token more than one takes, in steps."""
    known = StepCosts()
    for _ in range(3):
        known.note(1, STEP_S, is_rewound=False)
    if of_several is not None:
        for fed in (2, 4, 8, 16) * 10:
            known.note(fed, STEP_S * (1 + of_several * (fed - 1)), is_rewound=False)
        known.note(1, STEP_S, is_rewound=False)  # else it would be due
    return known


def known(of_several: float | None = None) -> SpeculationStatistics:
    experience = SpeculationStatistics()
    experience.costs = costs(of_several)
    return experience


def proposed(speculation: Speculator, most: int = 100) -> Sequence[int]:
    """What it proposes without a draft model."""
    asking = speculation.propose(most)
    with pytest.raises(StopIteration) as end:
        next(asking)
    return end.value.value


def decode(speculation: Speculator, reply: Sequence[int], each: float) -> list[int]:
    """How many tokens were fed in each step of a reply, on an engine where each further token costs `each` steps."""
    fed: list[int] = []
    speculation.note(reply[0])
    place = 1
    while place < len(reply):
        guess = proposed(speculation, len(reply) - place - 1) if len(reply) - place > 1 else []
        right = 0
        while right < len(guess) and guess[right] == reply[place + right]:
            right += 1
        chosen = reply[place : place + right + 1]
        for token in chosen:
            speculation.note(token)
        fed.append(1 + len(guess))
        seconds = STEP_S * (1 + each * len(guess))
        speculation.measure(DecodeStep(fed[-1], len(chosen), seconds, seconds))
        place += len(chosen)
    return fed


def cost(fed: Sequence[int], each: float) -> float:
    return sum(1 + each * (count - 1) for count in fed)


def test_a_copy_is_fed_in_ever_longer_steps() -> None:
    text = list(range(100, 400))
    fed = decode(Speculator(text, known()), text, each=0.1)
    assert fed[:2] == [1, 2]  # a match has two tokens; little is staked at first
    assert max(fed) > 16
    assert len(text) / cost(fed, 0.1) > 3


def test_steps_with_other_requests_are_not_clocked() -> None:
    experience, together = SpeculationStatistics(), 4
    speculation = Speculator([1, 2, 3], experience, together=lambda: together)
    for _ in range(5):
        speculation.measure(DecodeStep(1, 1, STEP_S, STEP_S))
    assert not experience.costs.is_known
    together = 1
    for _ in range(5):
        speculation.measure(DecodeStep(1, 1, STEP_S, STEP_S))
    assert experience.costs.step_s == STEP_S


def test_nothing_is_proposed_before_the_engine_was_clocked() -> None:
    speculation = Speculator([1, 2, 3, 1, 2], SpeculationStatistics())
    speculation.note(3)
    assert proposed(speculation) == ()


@pytest.mark.parametrize(("together", "each", "is_worth_it"), [
    (1, 0.2, True), (1, 0.02, True), (2, 0.02, True), (2, 0.2, False), (8, 0.02, False), (99, 0.02, False),
])  # fmt: skip
def test_drafts_give_more_than_a_run_with_other_requests_or_are_not_made(
    together: int, each: float, is_worth_it: bool
) -> None:
    text, experience = list(range(100, 160)), known(each)
    experience.balance = 2.0
    speculation = Speculator([*text, *text[:39]], experience, together=lambda: together)
    speculation.note(text[39])
    assert bool(proposed(speculation)) == is_worth_it


@pytest.mark.parametrize("each", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("is_known", [True, False])
def test_guesses_that_are_always_wrong_cost_less_than_3_percent(each: float, is_known: bool) -> None:
    # each pair of the reply was there before, and then came something else
    pairs = [(2 * place, 2 * place + 1) for place in range(200)]
    prompt = [token for pair in pairs for token in (*pair, 1000)]
    reply = [token for pair in pairs for token in pair]
    fed = decode(Speculator(prompt, known(each if is_known else None)), reply, each=each)
    assert cost(fed, each) <= 1.03 * (len(reply) - 1)


def test_replies_with_wrong_guesses_lose_less_than_3_percent_together() -> None:
    pairs = [(2 * place, 2 * place + 1) for place in range(20)]
    prompt = [token for pair in pairs for token in (*pair, 1000)]
    reply = [token for pair in pairs for token in pair]
    experience = known(0.3)
    steps = [decode(Speculator(prompt, experience), reply, each=0.3) for _ in range(20)]
    assert sum(cost(fed, 0.3) for fed in steps) <= 1.03 * 20 * (len(reply) - 1)


def test_what_a_copy_has_won_is_not_lost_again_by_much() -> None:
    text = list(range(1000, 1200))
    pairs = [(2 * place, 2 * place + 1) for place in range(200)]
    prompt = [*text, *(token for pair in pairs for token in (*pair, 5000))]
    reply = [*text, *(token for pair in pairs for token in pair)]
    fed = decode(Speculator(prompt, known(0.2)), reply, each=0.2)
    assert cost(fed, 0.2) < 100 + 1.03 * 400


def test_costs_of_several_follow_the_clock_and_not_its_hiccups() -> None:
    learned = costs(0.5)
    assert learned.of(1) == 1.0
    assert learned.of(9) == pytest.approx(5.0, abs=0.5)
    learned.note(9, STEP_S * 1000, is_rewound=False)
    assert learned.of(9) < 6
    for _ in range(40):
        learned.note(1, STEP_S / 2, is_rewound=False)
        learned.note(2, STEP_S / 2 * 7, is_rewound=True)
    assert learned.step_s == STEP_S / 2
    assert learned.rewound == pytest.approx(7 - learned.of(2), abs=1)
    for _ in range(99):
        learned.note(1, STEP_S / 2, is_rewound=True)
    assert learned.rewound < 0.1


def test_noise_below_the_least_cost_does_not_add_up() -> None:
    clock = costs()
    for _ in range(400):
        clock.note(3, 0.8 * STEP_S, is_rewound=False)
    for _ in range(60):
        clock.note(3, 3 * STEP_S, is_rewound=False)
    assert clock.of(3) == pytest.approx(3, rel=0.05)
    assert 1 <= clock.of(2) <= clock.of(3) <= clock.of(4) <= clock.of(32) < 100


def test_the_plain_step_is_clocked_again_where_drafts_always_pay() -> None:
    clock, fed = costs(of_several=0.1), []
    for _ in range(300):  # the machine is twice as fast by now, and a rewind lies before each step
        fed.append(1 if clock.is_stale else 2)
        clock.note(fed[-1], STEP_S / 2, is_rewound=True)
    assert clock.step_s == pytest.approx(STEP_S / 2, rel=0.01)
    assert fed.count(1) < 15


def test_nothing_is_proposed_where_the_plain_step_is_due() -> None:
    text = [1, 2, 3] * 20
    experience = known()
    speculation = Speculator(text, experience)
    assert proposed(speculation)
    for _ in range(30):
        experience.costs.note(2, STEP_S, is_rewound=False)
    assert not proposed(speculation)


def test_acceptance_follows_what_was_seen_last() -> None:
    share = Acceptance((0.2, 0.9))
    assert (share.of(0), share.of(1)) == (0.2, 0.9)
    for _ in range(60):
        share.note(0, is_right=True)
    assert share.of(0) > 0.95
    for _ in range(20):
        share.note(0, is_right=False)
    assert share.of(0) < 0.4
    assert share.of(1) == 0.9


class DraftModel:
    """A draft model that knows the text by heart, and is as sure as a test wants."""

    def __init__(self, text: Sequence[int], share: float) -> None:
        self.tokens: list[int] = []
        self.fed: list[list[int]] = []
        self._text = text
        self._share = share

    def feed(self, tokens: Sequence[int]) -> FakeLogits:
        self.fed.append(list(tokens))
        self.tokens += tokens
        best = self._text[len(self.tokens)]
        return FakeLogits([math.log(self._share if t == best else (1 - self._share) / 9) for t in range(10)])

    def feed_all(self, tokens: Sequence[int]) -> Sequence[FakeLogits]:
        raise AssertionError("a draft model is asked for the last row only")

    def rewind_by(self, count: int) -> None:
        del self.tokens[-count:]


def drafted(speculation: Speculator, most: int = 100) -> Sequence[int]:
    asking = speculation.propose(most)
    try:
        asked = next(asking)
        while True:
            assert isinstance(asked, Feed)
            asked = asking.send(asked())
    except StopIteration as end:
        return end.value


def test_a_draft_model_reads_the_prompt_once_and_is_kept_up() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    model = DraftModel(text, 0.9)
    speculation = Speculator(
        text[:5], known(0.05), draft=Draft(model, text[:5], context=100, chunk=2), uses_lookup=False
    )
    speculation._balance = 50.0  # pyright: ignore[reportPrivateUsage]  # as after a good beginning
    speculation.note(text[5])
    assert drafted(speculation, 2) == text[6:8]
    assert model.fed == [text[0:2], text[2:4], text[4:6], [text[6]]]
    for token in (7, 0):  # the second guess was wrong
        speculation.note(token)
    speculation.measure(DecodeStep(3, 2, STEP_S, STEP_S))
    assert drafted(speculation, 1) == [text[8]]
    assert model.tokens == [*text[:6], 7, 0]
    assert model.fed[4:] == [[0]]


def test_a_draft_model_with_a_smaller_context_guesses_up_to_its_end() -> None:
    text = [1] * 40
    model = DraftModel(text, 0.9)
    speculation = Speculator([1] * 5, known(0.0), draft=Draft(model, [1] * 5, context=8, chunk=9), uses_lookup=False)
    speculation._balance = 50.0  # pyright: ignore[reportPrivateUsage]
    speculation.note(1)
    assert drafted(speculation) == [1, 1]
    for _ in range(3):
        speculation.note(1)
    assert list(drafted(speculation)) == []
