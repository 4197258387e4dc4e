"""Sessions whose buffers stay on a device, with the CPU provider as the device; and rows that are reduced there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedllm.backends.base import BatchRow, Device, Interrupted, MovesStored, RunsBatches, WarmsUp, max_batch
from embedllm.backends.gpu import io_binding_engine, kv_pool, kv_steps, on_device
from embedllm.backends.gpu.device_logits import HEADS, LISTED, LogitsBoard, RunLogits, sizes
from embedllm.backends.gpu.device_memory import DeviceArray, DeviceMemory
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.runtime import ort
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.topk_logits import ListedRow
from embedllm.errors import ContextFull, DeviceError
from embedllm.export import Recipe
from embedllm.package.package import Package, open_package
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.types import Logits
from tests.support.host_engine import HOST, HostEngine, open_host
from tests.support.host_memory import HostMemory
from tests.support.logits import values

ATOL = 1e-4  # measured 7e-6
VOCABULARY = 307  # of the tiny models, above LISTED


@pytest.fixture
def package(tiny_package: Callable[..., Path]) -> Package:
    return open_package(tiny_package("llama", Recipe(exact=True)))


@pytest.fixture
def engine(package: Package, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostEngine]:
    monkeypatch.setattr(on_device, "check_assignments", lambda *_: None)  # the CPU is the device here
    for module in (io_binding_engine, kv_steps):
        monkeypatch.setattr(module, "SHORTEST", 16)
    opened = open_host(package, "generic-float32")
    yield opened
    opened.close()


TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 60).tolist()


def test_logits_follow_the_reference_however_they_are_fed(engine: HostEngine, package: Package) -> None:
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    session = engine.open()
    np.testing.assert_allclose(session.feed_all(TOKENS), expected, atol=ATOL, rtol=0)
    session.rewind(0)
    np.testing.assert_allclose([values(session.feed([token])) for token in TOKENS], expected, atol=ATOL, rtol=0)
    session.rewind(20)
    np.testing.assert_allclose(values(session.feed(TOKENS[20:])), expected[-1], atol=ATOL, rtol=0)


def test_a_session_grows_in_steps_and_keeps_what_it_holds(engine: HostEngine) -> None:
    expected = values(engine.open(64).feed(TOKENS))
    session = engine.open(10)
    capacities = []
    for token in TOKENS[:-1]:
        session.feed([token])
        capacities.append(session.capacity)
    assert sorted(set(capacities)) == [16, 32, 64]
    np.testing.assert_allclose(values(session.feed(TOKENS[-1:])), expected, atol=ATOL, rtol=0)


def test_a_step_sees_little_more_than_what_is_held(engine: HostEngine) -> None:
    """And there are few of them, as each is captured."""
    pool = engine.pool(engine.context)
    assert [pool.steps.length(end) for end in (1, 16, 17, 33, 100, 127, 128)] == [16, 16, 24, 48, 128, 128, 128]


def test_the_slot_of_a_closed_session_goes_to_the_next(engine: HostEngine) -> None:
    first = engine.open(40)
    expected = values(first.feed(TOKENS[:30]))
    slot = first.pool.table.slot(first)
    first.close()
    second = engine.open(40)
    assert second.pool.table.slot(second) == slot
    np.testing.assert_array_equal(values(second.feed(TOKENS[:30])), expected)
    third = engine.open(40)
    assert third.pool.table.slot(third) == slot + 1


def test_the_kv_goes_from_one_session_to_another(engine: HostEngine) -> None:
    first, second = engine.open(), engine.open()
    first.feed(TOKENS[:30])
    second.import_state(first.export_state(0, 30))
    assert second.position == 30
    np.testing.assert_array_equal(values(second.feed(TOKENS[30:])), values(first.feed(TOKENS[30:])))


def test_a_stopped_session_goes_on_where_it_stood(engine: HostEngine) -> None:
    session = engine.open()
    session.feed(TOKENS[:5])
    session.interrupt()
    with pytest.raises(Interrupted):
        session.feed(TOKENS[5:])
    session.interrupt(stop=False)
    assert session.position == 5
    np.testing.assert_array_equal(values(session.feed(TOKENS[5:])), values(engine.open().feed(TOKENS)))


def test_what_does_not_fit_is_refused_whole(engine: HostEngine, package: Package) -> None:
    session = engine.open()
    session.feed([5] * (package.context - 1))
    with pytest.raises(ContextFull):
        session.feed([5, 5])
    session.feed([5])


def test_logits_are_gone_with_the_next_step_or_the_end(engine: HostEngine) -> None:
    session = engine.open()
    first = session.feed(TOKENS[:3])
    second = session.feed(TOKENS[3:4])
    with pytest.raises(ValueError, match="these logits are gone: their session was fed again, or closed"):
        first.top(1)
    kept = second.top(1)
    session.close()
    assert second.top(1) == kept
    with pytest.raises(ValueError, match="these logits are gone"):
        second.draw(1.0, 0.5)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(
        st.sampled_from(
            ["greedy", "greedy", "greedy", "greedy", "other", "list", "row", "rewind", "prompt", "state", "drafts"]
        ),
        min_size=5,
        max_size=40,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_steps_that_run_ahead_change_nothing(
    engine: HostEngine, package: Package, actions: list[str], seed: int
) -> None:
    """Against a session of the CPU that is fed the same tokens; nor do runs that verify drafts."""
    engine.captures = True
    graph = package.graph("generic-float32")
    assert graph is not None
    random = np.random.default_rng(seed)
    device = Device(name="cpu", backend="test", description="", available=True)
    plain, session = OrtEngine(package, graph, device).open(), engine.open(16)

    def fed(tokens: list[int]) -> tuple[Logits, Logits]:
        return session.feed(tokens), plain.feed(tokens)

    found, expected = fed([5, 6])
    for action in actions:
        if plain.position > package.context - 8:
            break
        if action == "greedy":
            best = found.top(1)
            assert best.tokens == expected.top(1).tokens
            assert found.logsumexp() == pytest.approx(expected.logsumexp(), abs=ATOL)
            found, expected = fed(list(best.tokens))
        elif action == "other":
            found.top(1)
            found, expected = fed([int(random.integers(VOCABULARY))])
        elif action == "prompt":
            found, expected = fed(random.integers(0, VOCABULARY, 4).tolist())
        elif action == "drafts":
            drafts = random.integers(0, VOCABULARY, int(random.integers(2, 6))).tolist()
            rows, right = session.feed_rows(drafts), plain.feed_all(drafts)
            place = int(random.integers(len(drafts)))
            for one in (session, plain):
                one.rewind(one.position - len(drafts) + place + 1)
            found, expected = rows[place], NumpyLogits(right[place])
        elif action == "list":
            found.top(1)
            assert found.top(9).tokens == expected.top(9).tokens
        elif action == "row":
            found.top(1)
            np.testing.assert_allclose(values(found), values(expected), atol=ATOL, rtol=0)
        elif action == "rewind":
            found.top(1)
            for one in (session, plain):
                one.rewind(plain.position // 2 + 1 if one is plain else session.position // 2 + 1)
            found, expected = fed([7])
        else:
            for pair, right in zip(session.export_state(0, 2), plain.export_state(0, 2), strict=True):
                np.testing.assert_allclose(pair, right, atol=ATOL, rtol=0)
        assert session.position == plain.position
    session.close()


def test_a_step_runs_ahead_once_decoding_is_seen_to_be_greedy(engine: HostEngine) -> None:
    session = engine.open()
    logits, ahead = session.feed(TOKENS[:33]), []
    for _ in range(6):
        logits = session.feed(logits.top(1).tokens)
        logits.top(1)
        ahead.append(engine._ahead is not None)
    assert ahead == [False, True, True, True, True, True]
    logits.draw(1.0, 0.5)
    engine.run_batch([BatchRow(session, [5])])[0].top(1)
    assert engine._ahead is None


def test_logits_are_the_same_after_a_rewind_and_the_kv_stays(engine: HostEngine) -> None:
    """Also when the step that ran ahead has written over them."""
    session = engine.open()
    logits = session.feed(TOKENS[:33])
    for _ in range(4):
        logits = session.feed(logits.top(1).tokens)
    best = logits.top(1)
    assert engine._ahead is not None
    session.rewind(30)
    kept = session.export_state(0, 30)
    row = values(logits)
    assert session.position == 30
    assert int(row.argmax()) == best.tokens[0]
    for pair, right in zip(session.export_state(0, 30), kept, strict=True):
        np.testing.assert_array_equal(pair, right)
    np.testing.assert_array_equal(values(session.feed([5])), values(fed_anew(engine, [*TOKENS[:30], 5])))


def fed_anew(engine: HostEngine, tokens: list[int]) -> Logits:
    session = engine.open()
    session.feed(tokens[:-1])
    return session.feed(tokens[-1:])


def test_what_the_runtime_raises_is_a_device_error(engine: HostEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = engine.open()

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory\nat line 7")

    monkeypatch.setattr(engine.memory, "allocate", fail)
    monkeypatch.setattr(engine.memory, "write", fail)
    for attempt in (lambda: engine.open(40), lambda: session.feed([1, 2])):
        with pytest.raises(DeviceError, match=r"'host' failed: out of memory$"):
            attempt()
    assert session.position == 0


def test_work_left_to_the_cpu_is_refused(package: Package) -> None:
    graph = package.graph("generic-float32")
    assert graph is not None
    lack = "'host' cannot run this model: ONNX Runtime gave GroupQueryAttention, MatMulNBits"
    with pytest.raises(DeviceError, match=re.escape(lack)):
        HostEngine(package, graph, HOST)


# --- batches


def test_an_engine_runs_batches_and_warms_up(engine: HostEngine) -> None:
    assert isinstance(engine, RunsBatches)
    assert isinstance(engine, WarmsUp)
    assert max_batch(engine) == 64
    session = engine.open()
    assert isinstance(session, MovesStored)
    session.close()
    engine.warm_up()
    assert not len(engine.pool(1).table)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 17, 33, 64])
def test_rows_of_different_lengths_are_each_as_alone(engine: HostEngine, count: int) -> None:
    random = np.random.default_rng(count)
    prompts = [random.integers(0, VOCABULARY, 1 + at * 7 % 23).tolist() for at in range(count)]
    steps = random.integers(0, VOCABULARY, (6, count)).tolist()
    sessions = [engine.open() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        session.feed(prompt)
    found = [
        [
            values(row)
            for row in engine.run_batch([BatchRow(one, [token]) for one, token in zip(sessions, step, strict=True)])
        ]
        for step in steps
    ]
    for at, session in enumerate(sessions):
        alone = engine.open()
        alone.feed(prompts[at])
        assert session.position == len(prompts[at]) + len(steps)
        for step, rows in zip(steps, found, strict=True):
            np.testing.assert_allclose(rows[at], values(alone.feed([step[at]])), atol=ATOL, rtol=0)
        alone.close()


def test_the_copies_of_a_step_do_not_grow_with_its_rows(engine: HostEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their order is: each is a call of the driver, beside which other threads take Python's lock."""
    sessions = [engine.open() for _ in range(16)]
    logits = [session.feed([at, 7]) for at, session in enumerate(sessions)]
    order = np.random.default_rng(0).permutation(len(sessions)).tolist()
    calls: list[str] = []
    for name in ("copy", "write", "begin_read"):
        plain = getattr(engine.memory, name)

        def noted(
            *arguments: object, name: str = name, plain: Callable[..., object] = plain, **named: object
        ) -> object:
            calls.append(name)
            return plain(*arguments, **named)

        monkeypatch.setattr(engine.memory, name, noted)
    for _ in range(5):
        calls.clear()
        rows = [BatchRow(sessions[at], [logits[at].top(1).tokens[0]]) for at in order]
        for at, row in zip(order, engine.run_batch(rows), strict=True):
            logits[at] = row
    assert engine._ahead is not None
    assert sorted(calls) == ["begin_read", "copy", "copy", "write"]  # logits and tokens aside; lengths


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_any_schedule_of_batches_gives_each_sequence_what_it_gets_alone(
    engine: HostEngine, package: Package, data: st.DataObject
) -> None:
    """Greedy and not, with joins, leaves, rewinds, growth and states taken and given, against the CPU's sessions."""
    graph = package.graph("generic-float32")
    assert graph is not None
    device = Device(name="cpu", backend="test", description="", available=True)
    plain = OrtEngine(package, graph, device)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    live: list[tuple[ResidentSession, OrtSession]] = []
    latest: dict[ResidentSession, tuple[Logits, Logits]] = {}

    def check(one: ResidentSession) -> None:
        found, expected = latest[one]
        np.testing.assert_allclose(values(found), values(expected), atol=ATOL, rtol=0)

    for _ in range(data.draw(st.integers(3, 25))):
        action = data.draw(st.sampled_from(["join", "greedy", "greedy", "greedy", "some", "leave", "rewind", "state"]))
        fitting = [pair for pair in live if pair[0].position < package.context - 1]
        if action == "join" or not live:
            pair = engine.open(), plain.open()
            prompt = random.integers(0, VOCABULARY, int(random.integers(1, 40))).tolist()
            latest[pair[0]] = pair[0].feed(prompt), pair[1].feed(prompt)
            live.append(pair)
        elif action in ("greedy", "some") and fitting:
            rows = fitting if action == "greedy" else fitting[::2]
            tokens = [
                latest[one][0].top(1).tokens[0] if action == "greedy" or random.random() < 0.7
                else int(random.integers(VOCABULARY))
                for one, _ in rows
            ]  # fmt: skip
            found = engine.run_batch([BatchRow(one, [token]) for (one, _), token in zip(rows, tokens, strict=True)])
            for (one, other), token, row in zip(rows, tokens, found, strict=True):
                latest[one] = row, other.feed([token])
                if action == "greedy":
                    assert row.top(1).tokens == latest[one][1].top(1).tokens
        elif action == "leave":
            one, other = live.pop(int(random.integers(len(live))))
            del latest[one]
            one.close()
            other.close()
        elif action == "rewind":
            one, other = live[int(random.integers(len(live)))]
            position = int(random.integers(1, one.position + 1))
            one.rewind(position)
            other.rewind(position)
            check(one)
            latest[one] = one.feed([7, 8]), other.feed([7, 8])
        else:
            one, other = live[int(random.integers(len(live)))]
            if other.position + 4 > package.context:
                continue
            middle = one.position // 2
            first, second = one.export_stored([(0, middle), (middle, one.position)])
            for pair, right in zip(one.export_state(0, middle), other.export_state(0, middle), strict=True):
                np.testing.assert_allclose(pair, right, atol=ATOL, rtol=0)
            copied = engine.open()
            for state in (first, second):
                copied.import_state(state)
            reference = plain.open()
            reference.import_state(other.export_state(0, other.position))
            latest[copied] = copied.feed([9]), reference.feed([9])
            live.append((copied, reference))
        for one, other in live:
            assert one.position == other.position
        check(live[0][0]) if live else None
    for one, other in live:
        check(one)
        one.close()
        other.close()


def test_rows_that_were_not_stepped_keep_their_logits(engine: HostEngine) -> None:
    sessions = [engine.open() for _ in range(3)]
    for at, session in enumerate(sessions):
        session.feed(TOKENS[: 5 + at])
    rows = engine.run_batch([BatchRow(session, [5]) for session in sessions])
    expected = [values(row) for row in rows]
    engine.run_batch([BatchRow(sessions[0], [6]), BatchRow(sessions[2], [6])])
    prompt = engine.open().feed(TOKENS[:9])
    other = engine.open().feed(TOKENS[:4])
    np.testing.assert_array_equal(values(rows[1]), expected[1])
    assert rows[1].top(3).tokens == NumpyLogits(expected[1].astype(np.float32)).top(3).tokens
    again = engine.run_batch([BatchRow(sessions[0], [6]), BatchRow(sessions[1], [6])])
    engine.run_batch([BatchRow(sessions[0], [7])])
    assert again[1].top(1).tokens
    with pytest.raises(ValueError, match="these logits are gone"):
        again[0].top(1)
    np.testing.assert_array_equal(values(prompt), values(engine.open().feed(TOKENS[:9])))
    np.testing.assert_array_equal(values(other), values(engine.open().feed(TOKENS[:4])))


def test_a_step_ahead_serves_those_that_go_on_when_others_left(engine: HostEngine) -> None:
    sessions = [engine.open() for _ in range(5)]
    logits = [session.feed(TOKENS[: 5 + at]) for at, session in enumerate(sessions)]
    for _ in range(5):
        best = [row.top(1).tokens[0] for row in logits]
        logits = engine.run_batch([BatchRow(one, [token]) for one, token in zip(sessions, best, strict=True)])
    best = [row.top(1).tokens[0] for row in logits]
    assert engine._ahead is not None
    launched: list[object] = []
    engine._launch = lambda *arguments, **_: launched.append(arguments)  # pyright: ignore[reportAttributeAccessIssue]
    sessions[1].close()
    goes_on = [0, 2, 4]
    logits = engine.run_batch([BatchRow(sessions[at], [best[at]]) for at in goes_on])
    assert not launched
    del engine._launch
    for at, row in zip(goes_on, logits, strict=True):
        again = engine.open()
        state = sessions[at].export_state(0, sessions[at].position - 1)
        again.import_state(state)
        np.testing.assert_allclose(values(row), values(again.feed([best[at]])), atol=ATOL, rtol=0)


def test_a_full_sequence_that_waits_is_not_written_over(engine: HostEngine, package: Package) -> None:
    full, others = engine.open(package.context), [engine.open(package.context) for _ in range(3)]
    full.feed([5] * package.context)
    kept = full.export_state(0, package.context)
    assert full.pool.table.slot(full) == 0
    for session in others:
        session.feed(TOKENS[:8])
    engine.run_batch([BatchRow(session, [5]) for session in others])
    for pair, right in zip(full.export_state(0, package.context), kept, strict=True):
        np.testing.assert_array_equal(pair, right)


def test_a_run_that_fails_appends_nothing(engine: HostEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [engine.open() for _ in range(3)]
    for at, session in enumerate(sessions):
        session.feed(TOKENS[: 5 + at])
    prepare = kv_pool.KvPool.prepare

    def lost(*_: object) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr(kv_pool.KvPool, "prepare", lost)
    with pytest.raises(DeviceError, match="'host' failed: lost"):
        engine.run_batch([BatchRow(session, [5]) for session in sessions])
    monkeypatch.setattr(kv_pool.KvPool, "prepare", prepare)
    assert [session.position for session in sessions] == [5, 6, 7]
    rows = engine.run_batch([BatchRow(session, [5]) for session in sessions])
    np.testing.assert_allclose(values(rows[1]), values(fed_anew(engine, [*TOKENS[:6], 5])), atol=ATOL, rtol=0)


def test_short_memory_is_an_error_of_who_opens_and_not_of_the_others(package: Package, engine: HostEngine) -> None:
    sessions = [engine.open(16) for _ in range(3)]
    rows = [session.feed(TOKENS[:5]) for session in sessions]
    memory = engine.memory
    assert isinstance(memory, HostMemory)
    memory.limit = memory.limit - memory.free_bytes()
    with pytest.raises(DeviceError, match="out of memory"):
        [engine.open(16) for _ in range(3)]
    memory.limit *= 2
    assert len(engine.pool(16).table) <= 4
    found = engine.run_batch([BatchRow(session, [5]) for session in sessions])
    assert len(rows) == len(found)
    np.testing.assert_allclose(values(found[0]), values(fed_anew(engine, [*TOKENS[:5], 5])), atol=ATOL, rtol=0)


def test_a_move_for_which_memory_is_short_leaves_all_where_it_was(engine: HostEngine, package: Package) -> None:
    full, others = engine.open(package.context), [engine.open(package.context) for _ in range(3)]
    full.feed([5] * package.context)
    kept = full.export_state(0, package.context)
    for session in others:
        session.feed(TOKENS[:8])
    memory = engine.memory
    assert isinstance(memory, HostMemory)
    memory.limit -= memory.free_bytes()
    with pytest.raises(DeviceError, match="out of memory"):
        engine.run_batch([BatchRow(session, [5]) for session in others])
    memory.limit *= 2
    for pair, right in zip(full.export_state(0, package.context), kept, strict=True):
        np.testing.assert_array_equal(pair, right)
    rows = engine.run_batch([BatchRow(session, [5]) for session in others])
    np.testing.assert_allclose(values(rows[0]), values(fed_anew(engine, [*TOKENS[:8], 5])), atol=ATOL, rtol=0)


def test_a_stored_state_stays_on_the_device(engine: HostEngine) -> None:
    session = engine.open()
    session.feed(TOKENS[:30])
    first, second = session.export_stored([(0, 16), (16, 30)])
    key = first[0][0]
    assert isinstance(key, DeviceArray)
    assert key.is_on_device
    assert key.shape[1:] == (16, key.shape[2])
    assert key.nbytes == np.asarray(key).nbytes
    right = session.export_state(0, 30)
    np.testing.assert_array_equal(np.asarray(second[0][1][:, 2:5]), right[0][1][:, 18:21])
    np.testing.assert_array_equal(np.asarray(key[:, 1:9].copy()), right[0][0][:, 1:9])
    session.close()
    again = engine.open()
    again.import_state(first)
    again.import_state([(key.copy(), value.copy()) for key, value in second])
    for pair, expected in zip(again.export_state(0, 30), right, strict=True):
        np.testing.assert_array_equal(pair, expected)


# --- rows


class _Heads:
    """What rows need of an engine."""

    def __init__(self, row: np.ndarray, session: Callable[[str], ort.InferenceSession]) -> None:
        self.memory: DeviceMemory = HostMemory()
        self.where, self.dtype = ("cpu", 0), row.dtype.type
        self.graph_ids, self.head_sizes = count(1), sizes(row.size)
        self.heads = {name: session(f"{name}.{row.dtype.name}.onnx") for name in self.head_sizes}

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        return ort.RunOptions()


class _Owner:
    def __init__(self) -> None:
        self.fed, self.asked = 0, []

    def note_asked(self, head: str) -> None:
        self.asked.append(head)

    def note_best(self, token: int) -> None: ...


@pytest.fixture(scope="module")
def heads() -> Callable[[np.ndarray], tuple[ListedRow, list[str]]]:
    sessions: dict[str, ort.InferenceSession] = {}

    def session(file: str) -> ort.InferenceSession:
        if file not in sessions:
            sessions[file] = ort.InferenceSession(HEADS / file, providers=["CPUExecutionProvider"], enable_fallback=0)
        return sessions[file]

    def made(row: np.ndarray) -> tuple[ListedRow, list[str]]:
        """A row and what was asked of the device so far."""
        engine, owner = _Heads(row, session), _Owner()
        board = LogitsBoard(engine, 3, row.size)
        rows = np.stack([row[::-1], row])
        engine.memory.write(board.address, rows)
        found = RunLogits(board, [_Owner(), owner]).row(1)
        assert isinstance(found, ListedRow)
        return found, owner.asked

    return made


Heads = Callable[[np.ndarray], tuple[ListedRow, list[str]]]


@given(
    size=st.sampled_from([1, 7, 256, 257, 300, 5000]),
    kind=st.sampled_from([np.float16, np.float32]),
    spread=st.sampled_from([0.0, 0.01, 3.0]),
    count=st.sampled_from([1, 2, 40, 255, 256, 257, 9000]),
    forbidden=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_reduced_row_answers_as_the_row_does(
    heads: Heads, size: int, kind: type, spread: float, count: int, forbidden: int, seed: int
) -> None:
    """With many equal logits: float16 has few values, and a spread of 0 makes all of them equal."""
    random = np.random.default_rng(seed)
    row = (random.standard_normal(size) * spread + 4).astype(kind)
    row[random.integers(0, size, forbidden if size > forbidden else 0)] = -math.inf
    expected, (found, _) = NumpyLogits(row.astype(np.float32)), heads(row)
    for asked in (1, count, 1):
        assert found.top(asked) == expected.top(asked)
        assert found.logsumexp() == pytest.approx(expected.logsumexp(), rel=1e-6)
    best = expected.top(count).tokens
    assert found.values(best) == expected.values(best)
    assert found.logsumexp(0.7) == pytest.approx(expected.logsumexp(0.7), rel=1e-6)
    assert found.draw(0.7, 0.3) == expected.draw(0.7, 0.3)
    assert found.mean(0.7) == pytest.approx(expected.mean(0.7), rel=1e-6)
    token = expected.top(1).tokens[0]
    assert found.mass_nearer(token, math.inf, temperature=1) == expected.mass_nearer(token, math.inf, temperature=1)
    changes = {"biases": [1.0], "divisors": [2.0], "subtracted": [0.5]}
    assert (
        values(found.penalized([token], **changes)).tolist() == values(expected.penalized([token], **changes)).tolist()
    )


@pytest.mark.parametrize("vocabulary", [300, 40])
def test_greedy_brings_three_numbers_over(heads: Heads, vocabulary: int) -> None:
    row, asked = heads(np.random.default_rng(1).standard_normal(vocabulary).astype(np.float16))
    token = row.top(1).tokens[0]
    row.values([token])
    row.logsumexp()
    assert asked == ["best"]


def test_the_best_few_come_as_a_list_where_there_are_enough(heads: Heads) -> None:
    row, asked = heads(np.random.default_rng(1).standard_normal(LISTED).astype(np.float32))
    best = row.top(50)
    row.values(best.tokens[7:8])
    row.logsumexp()
    assert asked == ["list"]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("question", [lambda row: row.top(1), lambda row: row.top(9), lambda row: row.logsumexp()])
def test_a_row_that_is_no_number_is_an_error(heads: Heads, wrong: float, question: Callable[[Logits], object]) -> None:
    row = np.zeros(400, np.float32)
    row[17] = wrong
    with pytest.raises(DeviceError, match="not finite numbers: token 17"):
        question(heads(row)[0])


def test_a_row_that_forbids_all_is_an_error(heads: Heads) -> None:
    with pytest.raises(ValueError, match="no token is allowed"):
        heads(np.full(400, -math.inf, np.float32))[0].top(1)


@pytest.mark.parametrize("lengths", [[9, 9, 9], [2, 17, 30, 5], [40, 3], [24]])
def test_prompts_that_are_read_together_are_those_read_alone(engine: HostEngine, lengths: list[int]) -> None:
    """And so are the steps after them; a session between them that holds something stays as it is."""
    other = engine.open(40)
    other.feed(TOKENS[:10])
    rows = [(TOKENS[at : at + length] * 2)[:length] for at, length in enumerate(lengths)]
    alone = []
    for tokens in rows:
        session = engine.open(40)
        alone.append([values(session.feed(tokens)), values(session.feed([7]))])
        session.close()
    sessions = [engine.open(40) for _ in rows]
    sessions[-1].close()
    sessions[-1] = engine.open(20)  # of another pool
    found = engine.read_prompts([BatchRow(*row) for row in zip(sessions, rows, strict=True)])
    assert [session.position for session in sessions] == lengths
    steps = [values(row) for row in found]
    after = [values(row) for row in engine.run_batch([BatchRow(session, [7]) for session in sessions])]
    for ours, next_ones, expected in zip(steps, after, alone, strict=True):
        np.testing.assert_allclose([ours, next_ones], expected, atol=ATOL, rtol=0)
    expected = engine.open(40)
    expected.feed(TOKENS[:10])
    np.testing.assert_allclose(
        values(other.feed(TOKENS[10:12])), values(expected.feed(TOKENS[10:12])), atol=ATOL, rtol=0
    )


def test_a_read_of_prompts_that_fails_leaves_sessions_that_hold_nothing(
    engine: HostEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [engine.open(40) for _ in range(2)]
    rows = [BatchRow(session, TOKENS[:9]) for session in sessions]

    def fail(rows: object) -> None:
        raise DeviceError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "run_batch", fail)
        with pytest.raises(DeviceError, match="gone"):
            engine.read_prompts(rows)
    assert [session.position for session in sessions] == [0, 0]
    expected = values(engine.open(40).feed(TOKENS[:9]))
    for row in engine.read_prompts(rows):
        np.testing.assert_allclose(values(row), expected, atol=ATOL, rtol=0)
