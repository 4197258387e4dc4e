"""Several sessions of a recurrent model in one run on ONNX Runtime's CPU: each gets what it would get alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm import load
from embedllm.backends.base import BatchRow, max_batch
from embedllm.backends.ort import recurrent_state, shared_states
from embedllm.backends.ort.batch import MAX_BATCH
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.recurrent_state import KeptStates, States
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from tests.support.logits import values
from tests.support.openings import ort_engine
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_lfm2, tiny_qwen3_5

VOCABULARY = 307
TOKENS = np.random.default_rng(3).integers(3, 300, 400).tolist()
STARTS = (3, 120, 17, 60, 41)
CLOSE = 1e-4  # of the spread of the logits: float32 sums of several rows have another order
Session = StatefulSession[KeptStates]


@pytest.fixture(scope="module", params=[tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recurrent")
    return convert(request.param(place / "checkpoint"), place / "package", Recipe(bits=16))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[OrtEngine]:
    opened = ort_engine(folder, exact=False)
    yield opened
    opened.close()


def open_session(engine: OrtEngine) -> Session:
    session = engine.open()
    assert isinstance(session, StatefulSession)
    return session


def opened(engine: OrtEngine, starts: Sequence[int] = STARTS) -> list[Session]:
    sessions = [open_session(engine) for _ in starts]
    for session, start in zip(sessions, starts, strict=True):
        session.feed(TOKENS[:start])
    return sessions


def run(engine: OrtEngine, sessions: Sequence[Session]) -> list[np.ndarray]:
    """A step of each, in one run."""
    rows = engine.run_batch([BatchRow(session, [TOKENS[session.position]]) for session in sessions])
    return [values(row) for row in rows]


def alone(engine: OrtEngine, start: int, end: int) -> list[np.ndarray]:
    """The logits of steps up to a position by a session that is never fed with others."""
    session = open_session(engine)
    session.feed(TOKENS[:start])
    found = [values(session.feed([token])) for token in TOKENS[start:end]]
    session.close()
    return found


def check(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE * np.ptp(expected))


def close(*sessions: Session) -> None:
    for session in sessions:
        session.close()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is copied to shared buffers, and back."""
    found: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        method = getattr(States, name)

        def call(states: States, *given: object) -> None:
            found.append(name)
            method(states, *given)

        return call

    for name in ("take", "copy_to"):
        monkeypatch.setattr(States, name, noted(name))
    return found


def test_rows_of_a_run_are_what_each_session_gives_alone(engine: OrtEngine, copies: list[str]) -> None:
    """Over growths of the shared buffers. Once all step together nothing is copied."""
    sessions = opened(engine)
    found = [run(engine, sessions[:2]) for _ in range(3)]
    found = [[*rows, *more] for rows, more in zip(found, [run(engine, sessions[2:]) for _ in range(3)], strict=True)]
    found += [run(engine, sessions)]
    copies.clear()
    found += [run(engine, sessions) for _ in range(40)]
    assert not copies
    for start, rows in zip(STARTS, zip(*found, strict=True), strict=True):
        check(rows, alone(engine, start, start + 44))
    close(*sessions)


def test_an_engine_says_how_many_it_feeds_in_one_run(engine: OrtEngine, folder: Path) -> None:
    assert max_batch(engine) == MAX_BATCH
    exact = ort_engine(folder, exact=True)
    assert max_batch(exact) == 1  # products of several rows round otherwise
    exact.close()


def test_those_between_others_keep_their_states(engine: OrtEngine) -> None:
    sessions = opened(engine)
    first, *_, last = sessions
    found = [run(engine, sessions)]
    for _ in range(3):
        check(run(engine, [first, last]), [alone(engine, one.position - 1, one.position)[0] for one in (first, last)])
    found += [run(engine, sessions[1:-1]) for _ in range(2)]
    for place, session in enumerate(sessions[1:-1]):
        start = STARTS[1 + place]
        check([found[0][1 + place], found[1][place], found[2][place]], alone(engine, start, start + 3))
        assert session.position == start + 3
    close(*sessions)


def test_a_member_that_is_fed_by_itself_goes_on_from_the_states_of_the_runs(engine: OrtEngine) -> None:
    """So do one that is rewound to where it was fed at once, and one that begins again."""
    one, other, third = sessions = opened(engine, (60, 30, 20))
    for _ in range(4):
        run(engine, sessions)
    check([values(one.feed([TOKENS[64]]))], alone(engine, 64, 65))
    check(list(other.feed_all(TOKENS[34:40])[-1:]), alone(engine, 39, 40))
    third.rewind(21)
    check(run(engine, sessions), [alone(engine, place, place + 1)[0] for place in (65, 40, 21)])
    other.rewind(0)
    other.feed(TOKENS[:9])
    check(run(engine, sessions), [alone(engine, place, place + 1)[0] for place in (66, 9, 22)])
    close(*sessions)


def run_and_fail(engine: OrtEngine, sessions: Sequence[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """As run, where the device fails after it has computed."""
    real = engine.session

    class Failing:
        def io_binding(self) -> object:
            return real.io_binding()

        def run_with_iobinding(self, *given: object) -> None:
            real.run_with_iobinding(*given)  # type: ignore[arg-type]  # passed through
            raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_session", Failing())
        with pytest.raises(DeviceError, match="no memory"):
            run(engine, sessions)


def test_a_run_that_fails_leaves_all_sessions_as_they_were(engine: OrtEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = opened(engine)
    run(engine, sessions)
    run_and_fail(engine, sessions, monkeypatch)
    assert [session.position for session in sessions] == [start + 1 for start in STARTS]
    check(run(engine, sessions), [alone(engine, start + 1, start + 2)[0] for start in STARTS])
    close(*sessions)


def test_a_prefix_takes_the_place_of_states_that_lie_in_shared_buffers(
    engine: OrtEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a run that failed: a copy of them is kept already."""
    other, *sessions = opened(engine, (80, 20, 30))
    run_and_fail(engine, sessions, monkeypatch)
    assert other.kv is not None
    assert sessions[0].import_prefix(TOKENS[20:80], [other.kv.export_state(20, 80)], other.export_states(80))
    check([values(sessions[0].feed(TOKENS[80:82]))], alone(engine, 81, 82))
    close(other, *sessions)


def test_lack_of_memory_for_shared_buffers_leaves_all_sessions_as_they_were(
    engine: OrtEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = opened(engine)
    run(engine, sessions[:2])

    def lacking(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(shared_states.np, "empty", lacking)
        with pytest.raises(DeviceError, match="no memory for the KV of 5 sequences"):
            run(engine, sessions)
    starts = [start + (place < 2) for place, start in enumerate(STARTS)]
    assert [session.position for session in sessions] == starts
    check(run(engine, sessions), [alone(engine, start, start + 1)[0] for start in starts])
    close(*sessions)


def test_shared_buffers_go_with_the_last_session(engine: OrtEngine) -> None:
    sessions = opened(engine)
    run(engine, sessions)
    (batch,) = engine._batches
    buffers = [weakref.ref(array) for side in batch._states._sides for array in side.values()]
    assert buffers
    close(*sessions)
    assert not any(buffer() is not None for buffer in buffers)  # at once, not with the next run


PLACES = st.integers(0, 4)
ACTS = st.one_of(
    st.tuples(st.just("run"), st.sets(PLACES, min_size=1), st.integers(1, 5)),
    st.tuples(st.just("run"), st.sets(PLACES, min_size=1), st.integers(1, 5)),
    st.tuples(st.just("feed"), PLACES, st.sampled_from([1, 1, 2, 5, 20])),
    st.tuples(st.just("feed_all"), PLACES, st.integers(1, 5)),
    st.tuples(st.just("rewind"), PLACES, st.floats(0, 1)),
    st.tuples(st.just("close"), PLACES, st.just(0)),
)


@settings(max_examples=20, deadline=None)
@given(acts=st.lists(ACTS, min_size=5, max_size=25))
def test_any_order_of_calls_gives_each_sequence_what_it_gets_alone(
    acts: list[tuple[str, object, object]], engine: OrtEngine
) -> None:
    random = np.random.default_rng(len(acts))
    sessions, pasts = [open_session(engine) for _ in range(5)], [list[int]() for _ in range(5)]
    last: dict[int, np.ndarray] = {}

    def more(place: int, count: int) -> list[int]:
        tokens = random.integers(0, VOCABULARY, count).tolist()
        pasts[place] += tokens
        return tokens

    for act, first, second in acts:
        if act == "run":
            assert isinstance(first, set)
            for _ in range(int(second)):  # type: ignore[call-overload]  # a number
                rows = engine.run_batch([BatchRow(sessions[place], more(place, 1)) for place in first])
                last |= {place: values(row) for place, row in zip(first, rows, strict=True)}
            continue
        assert isinstance(first, int)
        session, past = sessions[first], pasts[first]
        if act == "close":
            session.close()
            sessions[first], pasts[first] = open_session(engine), []
            last.pop(first, None)
        elif act == "rewind":
            del past[int(second * len(past)) :]  # type: ignore[operator]  # a share
            session.rewind(len(past))
            last.pop(first, None)
        else:
            tokens = more(first, int(second))  # type: ignore[call-overload]  # a number
            last[first] = values(session.feed(tokens)) if act == "feed" else session.feed_all(tokens)[-1]
    for place, session in enumerate(sessions):
        assert session.position == len(pasts[place])
        fresh = open_session(engine)
        if place in last:
            check([last[place], values(session.feed([9]))], [values(fresh.feed(pasts[place])), values(fresh.feed([9]))])
        close(fresh, session)


def test_replies_at_once_are_those_one_by_one(folder: Path, copies: list[str]) -> None:
    """More than are fed in one run, so that some wait and others take their slots."""
    prompts = [TOKENS[place : place + 5 + 3 * place] for place in range(MAX_BATCH + 3)]
    with load(folder, device="cpu") as llm:
        each = [llm.generate(prompt, temperature=0, max_tokens=12).tokens for prompt in prompts]
        assert not copies
        together = llm.generate_batch(prompts, temperature=0, max_tokens=12)
        assert copies
    assert [reply.tokens for reply in together] == each


def test_buffers_of_a_closed_session_are_free(engine: OrtEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stepped with others, too."""
    placed: list[weakref.ref[object]] = []
    place = recurrent_state.HostStateMemory.place

    def noted(memory: recurrent_state.HostStateMemory, array: np.ndarray) -> object:
        placed.append(weakref.ref(array))
        return place(memory, array)

    monkeypatch.setattr(recurrent_state.HostStateMemory, "place", noted)
    sessions = opened(engine, (5, 6))
    run(engine, sessions)
    close(*sessions)
    gc.collect()
    assert placed
    assert [array for array in placed if array() is not None] == []
