"""Which steps run together, where their KV lies, and how each ends; a number tells the whole past of a sequence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from embedllm.adapters.adapter import Adapter
from embedllm.backends.base import Interrupted
from embedllm.backends.sessions import step_batcher
from embedllm.backends.sessions.step_batcher import MOST, Batch, _Step
from embedllm.backends.sessions.window_retention import WindowedKvRetention
from embedllm.errors import DeviceError

if TYPE_CHECKING:
    from embedllm.backends.base import Cached

CONTEXT = 2048
WAIT_S = 120  # a test that waits this long has failed


def told(past: np.ndarray) -> float:
    """A number that depends on every token of the past and its place."""
    return float(past @ np.sin(np.arange(1, past.size + 1)))


class Told:
    """One sequence; its KV is the tokens themselves."""

    def __init__(self, batch: Batch) -> None:
        self.position = self.capacity = 0
        self.kv: dict[str, NDArray[Cached]] = {name: np.zeros((1, 1, 0, 1)) for name in ("key", "value")}
        self.logits: NDArray[np.floating] = np.zeros((1, 1, 1))
        self.is_stopping = False
        self.priority = 0
        self.adapter: Adapter | None = None
        self.retention = WindowedKvRetention({})
        self.batch = batch
        self.before: Callable[[], None] = lambda: None  # of a run by itself

    def hold(self, kv: dict[str, NDArray[Cached]], capacity: int) -> None:
        self.kv.update(kv)
        self.capacity = capacity

    def run_alone(self, token: int) -> None:
        self.before()
        if self.position == self.capacity:
            capacity = self.capacity + 256
            for name, old in list(self.kv.items()):
                self.hold({name: np.concatenate([old, np.zeros((1, 1, 256, 1))], axis=2)}, capacity)
        for array in self.kv.values():
            array[0, 0, self.position, 0] = token
        self.position += 1
        self.logits[...] = told(self.kv["value"][0, 0, : self.position, 0])

    def step(self, token: int) -> float:
        self.batch.step(self, token)
        return float(self.logits[0, 0, 0])

    def close(self) -> None:
        self.batch.forget(self)


class Runs:
    """What runs several, and how many they were each time."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.adapters: list[Adapter | None] = []
        self.stepping: list[list[object]] = []
        self.before: Callable[[], None] = lambda: None

    def __call__(
        self,
        kv: dict[str, np.ndarray],
        tokens: np.ndarray,
        positions: Sequence[int],
        adapter: Adapter | None,
        stepping: Sequence[object],
    ) -> np.ndarray:
        self.before()
        self.counts.append(len(positions))
        self.adapters.append(adapter)
        self.stepping.append([session for session in stepping if session is not None])
        for row, position in enumerate(positions):
            for array in kv.values():
                array[row, 0, position, 0] = tokens[row, 0]
        return np.array([[[told(kv["key"][row, 0, : at + 1, 0])]] for row, at in enumerate(positions)])

    def release(self) -> None:
        pass


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def batch(runs: Runs) -> Batch:
    return Batch(runs, context=CONTEXT)


def expected(tokens: Sequence[int]) -> list[float]:
    return [told(np.array(tokens[: end + 1], float)) for end in range(len(tokens))]


def together(batch: Batch, sequences: Sequence[Told], token: int) -> list[float | Exception]:
    """A step of each, all of which come while another sequence's run is under way."""
    first, begun, go = Told(batch), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(WAIT_S)

    first.before = hold

    def outcome(sequence: Told) -> float | Exception:
        try:
            return sequence.step(token)
        except (DeviceError, Interrupted) as error:
            return error

    with ThreadPoolExecutor(len(sequences) + 1) as threads:
        alone = threads.submit(first.step, 1)
        assert begun.wait(WAIT_S)
        outcomes = [threads.submit(outcome, sequence) for sequence in sequences]
        while len(batch._waiting) < len(sequences):
            pass
        go.set()
        alone.result(WAIT_S)
        found = [one.result(WAIT_S) for one in outcomes]
    first.close()
    return found


def test_one_sequence_keeps_buffers_of_its_own(batch: Batch, runs: Runs) -> None:
    sequence = Told(batch)
    tokens = list(range(1, 400))
    assert [sequence.step(token) for token in tokens] == expected(tokens)
    assert runs.counts == []


@pytest.mark.allcores
def test_steps_that_wait_for_the_same_run_are_made_in_one(batch: Batch, runs: Runs) -> None:
    sequences = [Told(batch) for _ in range(5)]
    for at, sequence in enumerate(sequences):
        for token in range(at * 60):
            sequence.step(token)
    found = together(batch, sequences, 9)
    assert found == [told(np.array([*range(at * 60), 9], float)) for at in range(5)]
    assert runs.counts == [5]
    assert [sequence.position for sequence in sequences] == [1, 61, 121, 181, 241]


def test_no_more_than_the_limit_run_together(batch: Batch, runs: Runs) -> None:
    found = together(batch, [Told(batch) for _ in range(MOST + 3)], 4)
    assert found == [told(np.array([4.0]))] * (MOST + 3)
    assert max(runs.counts) <= MOST
    assert sum(runs.counts) >= MOST + 3 - 1  # one may have run alone


@pytest.mark.allcores
@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_threads_get_what_one_would(seed: int, batch: Batch, runs: Runs) -> None:
    """Sequences of different lengths that begin, rest, go back, feed several at once and close as they like."""

    def talk(random: Random) -> bool:
        sequence, past = Told(batch), list[int]()
        right = True
        for _ in range(random.randrange(20, 120)):
            act = random.random()
            if act < 0.05 and past:
                keep = random.randrange(len(past))
                sequence.position = keep
                del past[keep:]
            elif act < 0.12:
                more = [random.randrange(1, 50) for _ in range(random.choice([2, 5, 300]))][: CONTEXT - 1 - len(past)]
                with batch.apart(sequence, len(more)):
                    for size in batch.pieces(sequence, len(more)):
                        for token in more[:size]:
                            sequence.run_alone(token)
                        past += more[:size]
                        more = more[size:]
            elif act < 0.15:
                threading.Event().wait(0.005)
            elif len(past) < CONTEXT - 1:
                past.append(random.randrange(1, 50))
                right = right and sequence.step(past[-1]) == told(np.array(past, float))
        sequence.close()
        return right

    random = Random(seed)
    seeds = [random.random() for _ in range(24)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda one: talk(Random(one)), seeds))
    assert max(runs.counts) > 1


def test_a_sequence_that_stays_away_gets_its_buffers_back(batch: Batch) -> None:
    pair = [Told(batch) for _ in range(2)]
    together(batch, pair, 3)
    assert pair[0].kv["key"].base is pair[1].kv["key"].base is not None
    for token in range(6):
        pair[0].step(token)
    assert pair[0].kv["key"].base is None
    assert pair[1].kv["key"].base is None
    assert pair[1].step(5) == told(np.array([3.0, 5.0]))


def test_an_error_of_a_run_is_raised_by_each_of_its_steps(batch: Batch, runs: Runs) -> None:
    sequences = [Told(batch) for _ in range(3)]

    def fail() -> None:
        raise DeviceError("out of memory")

    runs.before = fail
    found = together(batch, sequences, 3)
    assert [str(error) for error in found] == ["out of memory"] * 3
    runs.before = lambda: None
    assert together(batch, sequences, 3) == [told(np.array([3.0]))] * 3


@pytest.mark.allcores
def test_a_sequence_that_is_stopped_in_a_run_stands_where_it_stood(batch: Batch, runs: Runs) -> None:
    stopped, other = Told(batch), Told(batch)
    runs.before = lambda: setattr(stopped, "is_stopping", True)
    found = together(batch, [stopped, other], 3)
    assert isinstance(found[0], Interrupted)
    assert found[1] == told(np.array([3.0]))
    assert (stopped.position, other.position) == (0, 1)


def test_a_sequence_that_waits_can_be_stopped(batch: Batch) -> None:
    first, begun, go = Told(batch), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(WAIT_S)

    first.before = hold
    waiting = Told(batch)
    with ThreadPoolExecutor(2) as threads:
        alone = threads.submit(first.step, 1)
        assert begun.wait(WAIT_S)
        step = threads.submit(waiting.step, 2)
        waiting.is_stopping = True
        batch.wake()
        with pytest.raises(Interrupted):
            step.result(WAIT_S)
        go.set()
        assert alone.result(WAIT_S) == told(np.array([1.0]))
    assert waiting.position == 0


def test_a_full_sequence_does_not_take_part_without_a_token(batch: Batch, runs: Runs) -> None:
    full, *others = (Told(batch) for _ in range(3))
    for token in range(CONTEXT - 1):
        full.step(token % 7)
    together(batch, [full, *others], 5)
    assert full.position == CONTEXT
    found = together(batch, others, 6)
    assert found == [told(np.array([5.0, 6.0]))] * 2
    assert runs.counts == [3, 2]


def test_long_prompts_take_turns_and_leave_the_shared_buffers(batch: Batch) -> None:
    pair = [Told(batch) for _ in range(2)]
    together(batch, pair, 3)
    with batch.apart(pair[0], 500):
        assert pair[0].kv["key"].base is None
        assert pair[0].capacity >= 501
        pair[1].is_stopping = True
        with pytest.raises(Interrupted), batch.apart(pair[1], 500):
            pass


def test_prompts_take_their_turns_by_priority_and_then_as_they_came(batch: Batch) -> None:
    names = ["a", "b", "c", "d", "e"]
    priorities = dict(zip(names, [0, 2, -1, 2, 0], strict=True))
    fed: list[str] = []

    def feed(name: str) -> None:
        sequence = Told(batch)
        sequence.priority = priorities[name]
        with batch.apart(sequence, 500):
            fed.append(name)

    first = Told(batch)
    with ThreadPoolExecutor(len(names)) as threads:
        with batch.apart(first, 500):
            feeds = []
            for name in names:
                feeds.append(threads.submit(feed, name))
                while len(batch._asking["prompt"]) < len(feeds):
                    pass
        for one in feeds:
            one.result(WAIT_S)
    assert fed == ["c", "a", "e", "b", "d"]


def test_a_prompt_that_is_stopped_while_it_waits_keeps_nobody_waiting(batch: Batch) -> None:
    first, stopped, last = (Told(batch) for _ in range(3))
    stopped.priority = -5

    def feed(sequence: Told) -> bool:
        with batch.apart(sequence, 500):
            return True

    with ThreadPoolExecutor(2) as threads:
        with batch.apart(first, 500):
            waiting = threads.submit(feed, stopped)
            while not batch._asking["prompt"]:
                pass
            other = threads.submit(feed, last)
            stopped.is_stopping = True
            batch.wake()
            with pytest.raises(Interrupted):
                waiting.result(WAIT_S)
        assert other.result(WAIT_S)


def test_a_step_that_waited_for_the_end_of_a_piece_is_made_up_for(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where runs take turns, it ends after the piece that slowed it."""
    monkeypatch.setattr(step_batcher, "_LEAST_IDLE_S", WAIT_S)  # on a busy machine a thread may not run for a while
    turn, is_over, prompt, steady = threading.Lock(), threading.Event(), Told(batch), Told(batch)

    def wait_for_turn() -> None:
        threading.Event().wait(0.002)  # what a usual step takes
        with turn:
            pass

    def talk() -> None:
        while not is_over.is_set() and steady.position < CONTEXT - 1:
            steady.step(1)

    steady.before = wait_for_turn
    with ThreadPoolExecutor(1) as threads:
        talking = threads.submit(talk)
        while steady.position < 20:
            pass
        between, ended = [], 0
        with batch.apart(prompt, 192):
            for _ in batch.pieces(prompt, 192):
                between.append(steady.position - ended)
                with turn:
                    while not batch._taken:
                        pass
                    threading.Event().wait(50 * batch._usual_s)  # what a piece takes
                    ended = steady.position
        is_over.set()
        talking.result(WAIT_S)
    assert len(between) == 3
    assert min(between[1:]) > 1


def test_a_prompt_behind_a_reply_of_its_own_is_fed_whole(batch: Batch) -> None:
    mine, other = Told(batch), Told(batch)
    mine.step(1)
    assert list(batch.pieces(mine, 192)) == [192]
    other.step(1)
    mine.step(2)  # the last one; the other reply may go on nevertheless
    assert next(batch.pieces(mine, 192)) == 64
    other.close()
    assert list(batch.pieces(mine, 192)) == [192]


def test_when_more_step_than_one_run_takes_the_urgent_go_first_and_all_go(batch: Batch, runs: Runs) -> None:
    sequences = [Told(batch) for _ in range(MOST + 6)]
    for sequence in sequences[:-6]:
        sequence.priority = 3
    assert together(batch, sequences, 4) == [told(np.array([4.0]))] * (MOST + 6)
    assert set(sequences[-6:]) <= set(runs.stepping[0])  # which came last
    assert len(runs.stepping[0]) == MOST


def test_a_step_that_was_passed_over_often_enough_goes_before_urgent_ones(batch: Batch) -> None:
    waits = _Step(Told(batch), 0, rank=batch._runs + 3)
    for _ in range(5):
        batch._waiting = [waits]
        urgent = _Step(Told(batch), 0, rank=batch._runs)
        if min([waits, urgent], key=lambda step: step.rank) is waits:
            return
        batch._waiting = [urgent]
        batch._gathered(urgent)
        batch._taken.clear()
    raise AssertionError("it waits for ever")


def adapter(name: str) -> Adapter:
    return Adapter(name=name, sha256=name, factors={})


def test_a_run_has_sequences_of_one_adapter_only(batch: Batch, runs: Runs) -> None:
    adapters = [adapter("one"), adapter("two"), None]
    sequences = [Told(batch) for _ in range(9)]
    for at, sequence in enumerate(sequences):
        sequence.adapter = adapters[at % 3]
    assert together(batch, sequences, 4) == [told(np.array([4.0]))] * 9
    assert runs.counts == [3, 3, 3]
    assert set(runs.adapters) == set(adapters)
    assert [sequence.position for sequence in sequences] == [1] * 9


def test_who_waits_longest_is_next_whatever_its_adapter_is(batch: Batch, runs: Runs) -> None:
    """Two that always come back at once do not keep a third one waiting that has another adapter."""
    steady, other = [Told(batch), Told(batch)], Told(batch)
    other.adapter = adapter("other")
    go_on = threading.Event()
    go_on.set()

    def talk(sequence: Told) -> None:
        while go_on.is_set() and sequence.position < CONTEXT - 1:
            sequence.step(1)

    passed_over = [0]

    def count() -> None:
        passed_over[-1] += any(step.session is other for step in batch._waiting)

    runs.before = count
    for sequence in steady:
        sequence.before = count
    with ThreadPoolExecutor(2) as threads:
        talking = [threads.submit(talk, sequence) for sequence in steady]
        try:
            for token in range(1, 21):
                passed_over.append(0)
                assert other.step(token) == told(np.arange(1, token + 1, dtype=float))
        finally:
            go_on.clear()
        for one in talking:
            one.result(WAIT_S)
    assert max(passed_over) <= 2  # those of both that came before it


@pytest.mark.parametrize("seed", range(3))
def test_any_number_of_threads_with_any_adapters_get_what_one_would(seed: int, batch: Batch, runs: Runs) -> None:
    adapters = [None, adapter("one"), adapter("two")]

    def talk(random: Random) -> bool:
        sequence, past = Told(batch), list[int]()
        right = True
        for _ in range(random.randrange(20, 80)):
            if random.random() < 0.1:
                past.clear()
                sequence.position = 0
                sequence.adapter = random.choice(adapters)
            past.append(random.randrange(1, 50))
            right = right and sequence.step(past[-1]) == told(np.array(past, float))
        sequence.close()
        return right

    random = Random(seed)
    with ThreadPoolExecutor(6) as threads:
        talks = [threads.submit(talk, Random(random.random())) for _ in range(12)]
        assert all(one.result(WAIT_S) for one in talks)
    assert len(batch._members) == 0
