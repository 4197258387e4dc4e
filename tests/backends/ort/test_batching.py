"""Several sessions in one run on ONNX Runtime's CPU: each gets what it would get alone, wherever its KV lies."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm.backends.base import BatchRow, Interrupted, RunsBatches, max_batch
from embedllm.backends.ort import batch as ort_batch
from embedllm.backends.ort.batch import MAX_BATCH
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.sessions import shared_kv
from embedllm.errors import ContextFull, DeviceError
from embedllm.export import Recipe
from embedllm.export.graphs import write_variant
from embedllm.package.graph_variants import INT4_KV, INT8_KV, GraphVariant
from embedllm.package.lora.adapter import Adapter
from embedllm.package.lora.peft import read_adapter
from embedllm.package.package import open_package
from tests.support.logits import values
from tests.support.openings import device, ort_engine
from tests.support.peft_folders import write_adapter
from tests.support.tiny import tiny_checkpoint

CONTEXT, VOCABULARY = 1200, 307
ATOL = 1e-4  # of logits up to 5: float32 sums of several rows have another order (docs/numerics.md)
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, CONTEXT).tolist()
STARTS = (3, 250, 17, 90, 400)


@pytest.fixture(scope="module")
def folder(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package("qwen3", Recipe(bits=16), max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[OrtEngine]:
    opened = ort_engine(folder, exact=False)
    yield opened
    opened.close()


def opened(engine: OrtEngine, starts: Sequence[int]) -> list[OrtSession]:
    sessions = [engine.open() for _ in starts]
    for session, start in zip(sessions, starts, strict=True):
        session.feed(TOKENS[:start])
    return sessions


def run(engine: OrtEngine, sessions: Sequence[OrtSession]) -> list[np.ndarray]:
    """A step of each, in one run."""
    rows = engine.run_batch([BatchRow(session, [TOKENS[session.position]]) for session in sessions])
    return [values(row) for row in rows]


def alone(engine: OrtEngine, start: int, end: int) -> list[np.ndarray]:
    """The logits of steps up to a position by a session that is never fed with others."""
    session = engine.open()
    session.feed(TOKENS[:start])
    found = [values(session.feed([token])) for token in TOKENS[start:end]]
    session.close()
    return found


def close(*sessions: OrtSession) -> None:
    for session in sessions:
        session.close()


def addresses(session: OrtSession) -> set[int]:
    return {array.ctypes.data for array in session.kv.values()}


@pytest.mark.allcores
def test_rows_of_a_run_are_what_each_session_gives_alone(engine: OrtEngine) -> None:
    """Over growths of the shared buffers: of slots, and of their capacity."""
    sessions = opened(engine, STARTS)
    found = [run(engine, sessions[:2]) for _ in range(3)]
    found = [[*rows, *more] for rows, more in zip(found, [run(engine, sessions[2:]) for _ in range(3)], strict=True)]
    found += [run(engine, sessions) for _ in range(120)]
    for start, rows in zip(STARTS, zip(*found, strict=True), strict=True):
        np.testing.assert_allclose(rows, alone(engine, start, start + 123), atol=ATOL)
    close(*sessions)


def test_an_engine_says_how_many_it_feeds_in_one_run(engine: OrtEngine, folder: Path) -> None:
    assert isinstance(engine, RunsBatches)
    assert max_batch(engine) == MAX_BATCH
    assert max_batch(ort_engine(folder, exact=True)) == 1  # products of several rows round otherwise


def test_as_many_as_it_says_are_fed_in_one_run_and_others_take_their_slots(engine: OrtEngine) -> None:
    starts = range(1, MAX_BATCH + 4)
    sessions = opened(engine, starts)
    first, last = sessions[:MAX_BATCH], sessions[-MAX_BATCH:]
    found = [run(engine, first), run(engine, last)]
    shared = last[0].shared
    assert shared is not None
    assert {session for session in sessions if session.shared is shared} == set(last)
    for place, start in enumerate(starts):
        steps = [rows[run_of.index(session)] for run_of, rows in zip((first, last), found, strict=True)
                 if (session := sessions[place]) in run_of]  # fmt: skip
        np.testing.assert_allclose(steps, alone(engine, start, start + len(steps)), atol=ATOL)
    close(*sessions)


def test_a_session_that_is_alone_keeps_buffers_of_its_own(engine: OrtEngine) -> None:
    session = engine.open()
    session.feed(TOKENS[:40])
    before = addresses(session)
    for _ in range(5):
        run(engine, [session])
    session.feed([1])
    assert (addresses(session), session.shared) == (before, None)
    session.close()


def test_what_a_member_is_fed_by_itself_is_written_in_its_slot(engine: OrtEngine) -> None:
    """A guess of what comes next, a rewind, a state that is exported and imported: nothing is moved."""
    one, other = opened(engine, (60, 30))
    run(engine, [one, other])
    before = addresses(one)
    state = one.export_state(0, 40)
    np.testing.assert_allclose(one.feed_all(TOKENS[61:66])[-1], alone(engine, 60, 66)[-1], atol=ATOL)
    one.rewind(40)
    values(one.feed(TOKENS[40:60]))
    one.rewind(0)
    one.import_state(state)
    assert addresses(one) == before
    for expected in (alone(engine, 40, 41)[0], alone(engine, 40, 42)[1]):
        np.testing.assert_allclose(run(engine, [one, other])[0], expected, atol=ATOL)
    close(one, other)


def test_a_member_that_outgrows_the_shared_buffers_by_itself_leaves_them_as_they_are(engine: OrtEngine) -> None:
    long, *others = opened(engine, (200, 30, 40))
    run(engine, [long, *others])
    shared = long.shared
    assert shared is not None
    capacity, before = shared.capacity, addresses(others[0])
    long.feed(TOKENS[201:900])
    assert (long.shared, shared.capacity) == (None, capacity)
    assert long.capacity >= 900
    assert before == addresses(others[0])
    np.testing.assert_allclose(run(engine, others)[0], alone(engine, 30, 32)[1], atol=ATOL)
    np.testing.assert_allclose(run(engine, [*others, long])[2], alone(engine, 900, 901)[0], atol=ATOL)
    close(long, *others)


def test_one_that_lies_between_others_and_stays_away_leaves_after_some_runs(engine: OrtEngine) -> None:
    sessions = opened(engine, (10, 20, 30, 40, 50))
    run(engine, sessions)
    stepping, away = [sessions[0], sessions[4]], sessions[1:4]
    gone = []
    for _ in range(shared_kv._MISSED + len(away)):
        run(engine, stepping)
        gone.append(sum(session.shared is None for session in away))
    assert gone == [0, 0, 0, 1, 2, 3]  # one a run: what it holds is copied
    assert all(session.shared is not None for session in stepping)
    for session, start in zip(away, (20, 30, 40), strict=True):
        assert session.capacity == 256
        np.testing.assert_allclose(
            values(session.feed([TOKENS[start + 1]])), alone(engine, start, start + 2)[1], atol=ATOL
        )
    close(*sessions)


def test_the_last_member_gets_buffers_of_its_own_and_the_shared_ones_go(engine: OrtEngine) -> None:
    one, other = opened(engine, (20, 30))
    run(engine, [one, other])
    shared = one.shared
    assert shared is not None
    other.close()
    found = [values(one.feed([token])) for token in TOKENS[21:30]]
    np.testing.assert_allclose(found, alone(engine, 20, 30)[1:], atol=ATOL)
    assert (one.shared, shared.kv, shared.capacity) == (None, {}, 0)
    one.close()


def test_a_full_session_between_others_is_left_out(engine: OrtEngine) -> None:
    sessions = opened(engine, (10, CONTEXT - 1, 20))
    run(engine, sessions)
    assert sessions[1].position == CONTEXT
    with pytest.raises(ContextFull):
        engine.run_batch([BatchRow(session, [1]) for session in sessions])
    assert [session.position for session in sessions] == [11, CONTEXT, 21]
    found = run(engine, [sessions[0], sessions[2]])
    np.testing.assert_allclose(found[0], alone(engine, 10, 12)[1], atol=ATOL)
    close(*sessions)


def test_logits_stay_until_their_own_session_is_fed_again(engine: OrtEngine) -> None:
    sessions = opened(engine, (10, 20, 30))
    first = engine.run_batch([BatchRow(session, [5]) for session in sessions])
    before = [values(row) for row in first]
    second = engine.run_batch([BatchRow(session, [6]) for session in sessions[1:]])
    sessions[2].feed([9])
    np.testing.assert_array_equal(values(first[0]), before[0])
    kept = values(second[0])
    sessions[0].feed([9])
    np.testing.assert_array_equal(values(second[0]), kept)
    close(*sessions)


def test_what_is_bound_stays_while_the_same_sessions_step(engine: OrtEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[range] = []
    bound = ort_batch._Bound

    def counted(*given: object) -> object:
        made.append(given[-1])  # type: ignore[arg-type]  # the slots
        return bound(*given)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(ort_batch, "_Bound", counted)
    sessions = opened(engine, (10, 20, 30))
    for _ in range(10):
        run(engine, sessions)
    assert made == [range(3)]
    close(*sessions)


def failing(monkeypatch: pytest.MonkeyPatch, engine: OrtEngine, at: int) -> None:
    """The run of that number fails, after it has written."""
    real, runs = engine.session, list[object]()

    class Failing:
        def io_binding(self) -> object:
            return real.io_binding()

        def run_with_iobinding(self, *given: object) -> None:
            runs.append(given)
            real.run_with_iobinding(*given)  # type: ignore[arg-type]  # passed through
            if len(runs) == at:
                raise RuntimeError("no memory\nat some place")

    monkeypatch.setattr(engine, "_session", Failing())


def test_a_run_that_fails_leaves_all_sessions_as_they_were(engine: OrtEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = opened(engine, STARTS)
    with monkeypatch.context() as patch:
        failing(patch, engine, 2)
        first = run(engine, sessions)
        with pytest.raises(DeviceError, match=r"ONNX Runtime failed at \[4, 251, 18, 91, 401\]: no memory$"):
            run(engine, sessions)
    assert [session.position for session in sessions] == [start + 1 for start in STARTS]
    again = run(engine, sessions)
    for index, start in enumerate(STARTS):
        np.testing.assert_allclose([first[index], again[index]], alone(engine, start, start + 2), atol=ATOL)
    close(*sessions)


@pytest.mark.parametrize("at", [1, 2])
def test_lack_of_memory_leaves_all_sessions_as_they_were(
    at: int, engine: OrtEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, taken, empty_rows = opened(engine, STARTS), list[object](), shared_kv.empty_rows

    def lacking(*given: object, **named: object) -> object:
        taken.append(given)
        if len(taken) == at:
            raise MemoryError
        return empty_rows(*given, **named)  # type: ignore[arg-type]  # passed through

    with monkeypatch.context() as patch:
        patch.setattr(shared_kv, "empty_rows", lacking)
        with pytest.raises(DeviceError, match="no memory for the KV of 5 sequences"):
            run(engine, sessions)
    assert [session.position for session in sessions] == list(STARTS)
    for start, row in zip(STARTS, run(engine, sessions), strict=True):
        np.testing.assert_allclose(row, alone(engine, start, start + 1)[0], atol=ATOL)
    close(*sessions)


@pytest.mark.parametrize("tokens", [[VOCABULARY], [-1]])
def test_a_wrong_token_feeds_nobody(tokens: list[int], engine: OrtEngine) -> None:
    sessions = opened(engine, (5, 6))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        engine.run_batch([BatchRow(sessions[0], [1]), BatchRow(sessions[1], tokens)])
    assert [session.position for session in sessions] == [5, 6]
    close(*sessions)


def test_an_interrupt_stops_what_a_session_is_fed_by_itself_and_no_run_of_several(engine: OrtEngine) -> None:
    one, other = opened(engine, (10, 20))
    one.interrupt()
    np.testing.assert_allclose(run(engine, [one, other])[0], alone(engine, 10, 11)[0], atol=ATOL)
    np.testing.assert_allclose(run(engine, [one])[0], alone(engine, 10, 12)[1], atol=ATOL)
    with pytest.raises(Interrupted):
        one.feed(TOKENS[12:20])
    assert one.position == 12
    one.interrupt(False)
    np.testing.assert_allclose(values(one.feed([TOKENS[12]])), alone(engine, 10, 13)[2], atol=ATOL)
    close(one, other)


def test_a_closed_session_is_fed_by_no_run(engine: OrtEngine) -> None:
    one, other = opened(engine, (10, 20))
    one.close()
    with pytest.raises(ValueError, match="this session was closed"):
        engine.run_batch([BatchRow(other, [1]), BatchRow(one, [1])])
    assert other.position == 20
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize("variant", [INT8_KV, INT4_KV], ids=lambda variant: variant.name)
def test_quantized_kv_is_shared_alike(variant: GraphVariant, tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_package("qwen3", Recipe()), tmp_path / "package"))
    write_variant(folder, variant.name, tokens=TOKENS[:100])
    package = open_package(folder)
    graph = package.graph(variant.name)
    assert graph is not None
    engine = OrtEngine(package, graph, device("cpu"))
    sessions = opened(engine, (90, 41, 7))
    found = [run(engine, sessions) for _ in range(10)]
    for start, rows in zip((90, 41, 7), zip(*found, strict=True), strict=True):
        # with AVX2 alone ONNX Runtime sums several rows in another order than one: 2e-6, or a step of the KV
        np.testing.assert_allclose(rows, alone(engine, start, start + 10), atol=1e-3)


# --- adapters


@pytest.fixture(scope="module")
def adapting(
    tmp_path_factory: pytest.TempPathFactory, tiny_package: Callable[..., Path]
) -> tuple[OrtEngine, list[Adapter]]:
    place = tmp_path_factory.mktemp("adapters")
    checkpoint = tiny_checkpoint(place / "checkpoint", "llama")
    package = open_package(tiny_package("llama", Recipe(bits=32)))
    graph = package.graph("generic-float32")
    assert graph is not None
    made = [
        read_adapter(str(seed), write_adapter(place / str(seed), checkpoint, rank=4, seed=seed), package.decoder)
        for seed in (1, 2)
    ]
    return OrtEngine(package, graph, device("cpu"), adapts=True), made


def test_rows_with_different_adapters_each_have_their_own(adapting: tuple[OrtEngine, list[Adapter]]) -> None:
    engine, (first, second) = adapting
    adapters = [first, None, second, first, None, first, second]

    def begun(adapter: Adapter | None, start: int) -> OrtSession:
        session = engine.open()
        session.adapt(adapter)
        session.feed(TOKENS[:start])
        return session

    sessions = [begun(adapter, 5 + 7 * place) for place, adapter in enumerate(adapters)]
    mirrors = [begun(adapter, 5 + 7 * place) for place, adapter in enumerate(adapters)]
    for _ in range(6):
        found = run(engine, sessions)
        for session, row, mirror in zip(sessions, found, mirrors, strict=True):
            np.testing.assert_allclose(row, values(mirror.feed([TOKENS[mirror.position]])), atol=ATOL)
            assert session.position == mirror.position
    assert len({id(session.shared) for session in sessions}) == 3
    sessions[0].rewind(0)
    sessions[0].adapt(second)
    mirrors[0].rewind(0)
    mirrors[0].adapt(second)
    for session in (sessions[0], mirrors[0]):
        session.feed(TOKENS[:9])
    np.testing.assert_allclose(run(engine, sessions)[0], values(mirrors[0].feed([TOKENS[9]])), atol=ATOL)
    assert sessions[0].shared is sessions[2].shared
    close(*sessions, *mirrors)


def test_a_failure_of_the_second_adapters_run_takes_back_the_first(
    adapting: tuple[OrtEngine, list[Adapter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, (first, second) = adapting
    sessions = [engine.open() for _ in range(4)]
    for session, adapter in zip(sessions, (first, first, second, second), strict=True):
        session.adapt(adapter)
        session.feed(TOKENS[:10])
    with monkeypatch.context() as patch:
        failing(patch, engine, 2)
        with pytest.raises(DeviceError):
            run(engine, sessions)
    assert [session.position for session in sessions] == [10] * 4
    found = run(engine, sessions)
    for session, row in zip(sessions, found, strict=True):
        mirror = engine.open()
        mirror.adapt(session.adapter)
        mirror.feed(TOKENS[:10])
        np.testing.assert_allclose(row, values(mirror.feed([TOKENS[10]])), atol=ATOL)
        mirror.close()
    close(*sessions)


# --- any order of calls

PLACES = st.integers(0, 5)
ACTS = st.one_of(
    st.tuples(st.just("run"), st.sets(PLACES, min_size=1), st.integers(1, 6)),
    st.tuples(st.just("feed"), PLACES, st.sampled_from([1, 1, 2, 5, 40, 300])),
    st.tuples(st.just("feed_all"), PLACES, st.integers(1, 5)),
    st.tuples(st.just("rewind"), PLACES, st.floats(0, 1)),
    st.tuples(st.just("move"), PLACES, PLACES),
    st.tuples(st.just("close"), PLACES, st.just(0)),
)


@pytest.mark.allcores
@settings(max_examples=25, deadline=None)
@given(acts=st.lists(ACTS, min_size=5, max_size=25))
def test_any_order_of_calls_gives_each_sequence_what_it_gets_alone(
    acts: list[tuple[str, object, object]], engine: OrtEngine
) -> None:
    random = np.random.default_rng(len(acts))
    sessions, pasts = [engine.open() for _ in range(6)], [list[int]() for _ in range(6)]
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
            sessions[first], pasts[first] = engine.open(), []
            last.pop(first, None)
        elif act == "rewind":
            del past[int(second * len(past)) :]  # type: ignore[operator]  # a share
            session.rewind(len(past))
            last.pop(first, None)
        elif act == "move":
            assert isinstance(second, int)
            if first == second:
                continue
            sessions[second].rewind(0)
            sessions[second].import_state(session.export_state(0, len(past)))
            pasts[second] = list(past)
            last.pop(second, None)
        elif len(past) + int(second) < CONTEXT - 200:  # type: ignore[call-overload]  # a number
            tokens = more(first, int(second))  # type: ignore[call-overload]  # a number
            last[first] = values(session.feed(tokens)) if act == "feed" else session.feed_all(tokens)[-1]
    for place, session in enumerate(sessions):
        assert session.position == len(pasts[place])
        fresh = engine.open()
        if place in last:
            np.testing.assert_allclose(last[place], values(fresh.feed(pasts[place])), atol=ATOL)
            np.testing.assert_allclose(values(session.feed([9])), values(fresh.feed([9])), atol=ATOL)
        fresh.close()
        session.close()


def test_shared_buffers_go_with_the_last_session(engine: OrtEngine) -> None:
    sessions = opened(engine, (10, 20, 30))
    run(engine, sessions)
    shared = sessions[0].shared
    assert shared is not None
    buffers = [weakref.ref(array) for array in shared.kv.values()]
    close(*sessions)
    assert (shared.members, shared.kv) == ([], {})
    assert not any(buffer() is not None for buffer in buffers)  # at once, not with the next run


def test_growths_keep_what_members_hold(engine: OrtEngine) -> None:
    """Those that step outgrow the buffers together, while another lies between them."""
    sessions = opened(engine, (250, 100, 254))
    run(engine, sessions)
    found: Mapping[int, list[np.ndarray]] = {0: [], 2: []}
    for _ in range(3):
        for place, row in zip((0, 2), run(engine, [sessions[0], sessions[2]]), strict=True):
            found[place].append(row)
    shared = sessions[0].shared
    assert shared is not None
    assert shared.capacity > 256
    np.testing.assert_allclose(found[0], alone(engine, 250, 254)[1:], atol=ATOL)
    np.testing.assert_allclose(found[2], alone(engine, 254, 258)[1:], atol=ATOL)
    np.testing.assert_allclose(values(sessions[1].feed([TOKENS[101]])), alone(engine, 100, 102)[1], atol=ATOL)
    close(*sessions)
