"""Which settings are measured, in what order, and which win: pure, from times that something else takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.errors import DeviceError
from embedllm.files.native_calls import check_not_ending

PROMPT, TOKENS = 256, 64  # tokens of the prompt and of the reply that are timed
LEAST_ROUNDS = 3  # below which nothing is chosen against the default
MOST_ROUNDS = 7
_GAIN = 0.05  # of the time that a choice against the default has to save
_SPINNING_GAIN = 0.10  # beside another busy program it is slower, which a measurement in a quiet minute does not show
_DEVICE_GAIN = 0.10  # another device needs other memory, rounds otherwise, and cannot go on from a KV that was saved
_HOPELESS = {1: 1.4, 2: 1.25}  # by the rounds so far: times the default's time from which a setting is given up
_HOPELESS_LATER = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A device with one way to run it."""

    device: str
    runtime: RuntimeOptions = DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one trial measured, in seconds."""

    token_s: float  # of a prompt, a token
    step_s: float  # of a reply, a token

    @property
    def seconds(self) -> float:
        """Of PROMPT and TOKENS, which is what is compared."""
        return PROMPT * self.token_s + TOKENS * self.step_s


@dataclass(frozen=True, slots=True)
class Trials:
    """What was measured: by candidate the rounds that it took part in, and why candidates have none."""

    rounds: dict[Candidate, dict[int, Timing]] = field(default_factory=dict)
    failures: dict[Candidate, str] = field(default_factory=dict)

    def ratios(self, one: Candidate, base: Candidate) -> list[float]:
        """Times of one over those of another, within each round that both have."""
        mine, others = self.rounds.get(one, {}), self.rounds.get(base, {})
        return [mine[at].seconds / others[at].seconds for at in sorted(mine.keys() & others.keys())]

    def typical(self, one: Candidate) -> Timing:
        """The medians of a candidate that was measured."""
        timings = self.rounds[one].values()
        return Timing(token_s=median(t.token_s for t in timings), step_s=median(t.step_s for t in timings))


def measure(
    candidates: Sequence[Candidate],
    trial: Callable[[Candidate], Timing],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Trials:
    """Tries the candidates in turn, round after round, as long as there is time.

    candidates: the most promising first, and the default of each device before its others.
    trial: opens, measures and closes one; DeviceError gives it up, and ends all when the process is ending.
    seconds: no trial begins that is expected, by those before it, to end later; and no candidate that with those before
    it could not have LEAST_ROUNDS. The first one always begins.
    """
    trials = Trials({candidate: {} for candidate in candidates})
    took: dict[Candidate, float] = {}
    end = clock() + seconds
    for at in range(MOST_ROUNDS):
        left = _left(trials, [one for one in candidates if one in took or not at])
        if len(left) < 2 and at >= LEAST_ROUNDS:
            break  # nothing to compare any more
        for candidate in left if at % 2 == 0 else reversed(left):  # so that a drift of the machine hits all alike
            start = clock()
            expected = took.get(candidate, max(took.values(), default=0.0))
            rounds_of_all = 0.0 if at else (LEAST_ROUNDS - 1) * (sum(took.values()) + expected)
            if took and start + expected + rounds_of_all > end:
                if at:
                    return trials
                continue
            try:
                trials.rounds[candidate][at] = trial(candidate)
            except (DeviceError, MemoryError) as error:
                check_not_ending()  # then it is no failure of the candidate's
                trials.failures[candidate] = str(error) or type(error).__name__
            took[candidate] = clock() - start
    return trials


def _left(trials: Trials, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that are still worth a round."""

    def is_left(one: Candidate) -> bool:
        default = Candidate(device=one.device)
        return not {one, default} & trials.failures.keys() and not _is_hopeless(trials.ratios(one, default))

    return [one for one in candidates if is_left(one)]


def _is_hopeless(ratios: Sequence[float]) -> bool:
    return bool(ratios) and median(ratios) > _HOPELESS.get(len(ratios), _HOPELESS_LATER)


@dataclass(frozen=True, slots=True)
class Choice:
    """What won."""

    device: str  # that "auto" should take; empty: the one that it takes anyway was not measured
    runtime: Mapping[str, RuntimeOptions]  # of each device that was measured


def choose(trials: Trials, *, automatic: str) -> Choice:
    """The best runtime options of each device, and the best device.

    What is not the default wins only where it was faster by more than the noise: by 5 % in the median of the rounds'
    ratios (spinning, and another device, by 10 %), in three of four rounds at least, and in three rounds.
    automatic: the device that "auto" takes without a measurement, which is the default among devices.
    """
    measured = [one for one, rounds in trials.rounds.items() if rounds and one not in trials.failures]
    best: dict[str, Candidate] = {}
    for device in dict.fromkeys(one.device for one in trials.rounds):
        default = Candidate(device=device)
        if default in measured:
            best[device] = _fastest(trials, default, (one for one in measured if one.device == device))
    device = "" if automatic not in best else _fastest(trials, best[automatic], best.values()).device
    return Choice(device, {device: one.runtime for device, one in best.items()})


def _fastest(trials: Trials, base: Candidate, others: Iterable[Candidate]) -> Candidate:
    """The candidate with the least ratio to the base of those that are clearly faster; or the base."""
    ratios = {one: trials.ratios(one, base) for one in others if one != base}
    winners = [one for one, values in ratios.items() if _is_faster(values, _gain(one, base))]
    return min(winners, key=lambda one: median(ratios[one]), default=base)


def _gain(one: Candidate, base: Candidate) -> float:
    if one.device != base.device:
        return _DEVICE_GAIN
    return _SPINNING_GAIN if one.runtime.spinning and not base.runtime.spinning else _GAIN


def _is_faster(ratios: Sequence[float], gain: float) -> bool:
    enough = len(ratios) >= LEAST_ROUNDS and sum(ratio < 1 for ratio in ratios) >= len(ratios) - len(ratios) // 4
    return enough and median(ratios) < 1 - gain
