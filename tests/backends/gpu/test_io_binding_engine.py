"""Sessions whose buffers stay on a device, with the CPU provider as the device; and rows that are reduced there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedllm.backends.base import Device, Interrupted
from embedllm.backends.gpu import buffers as resident_buffers
from embedllm.backends.gpu import io_binding_engine
from embedllm.backends.gpu.device_logits import HEADS, LISTED, Head, device_row, sizes
from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.runtime import ort
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.topk_logits import ListedRow
from embedllm.errors import ContextFull, DeviceError
from embedllm.export import Recipe
from embedllm.package.package import Package, open_package
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.types import F32

ATOL = 1e-4  # measured 7e-6
VOCABULARY = 307  # of the tiny models, above LISTED


class HostEngine(ResidentEngine):
    """The device is the machine's own memory."""

    reduces = True

    def start(self, path: str, options: ort.SessionOptions) -> ort.InferenceSession:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    def read(self, value: ort.OrtValue) -> np.ndarray:
        return value.numpy().copy()  # here it is a view


def values(logits: Logits) -> np.ndarray:
    return np.array(logits.values(range(logits.size)))


@pytest.fixture
def package(tiny_package: Callable[..., Path]) -> Package:
    return open_package(tiny_package("llama", Recipe(exact=True)))


@pytest.fixture
def engine(package: Package, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostEngine]:
    monkeypatch.setattr(io_binding_engine, "left_to_the_cpu", lambda session, operators: [])  # it is the device here
    monkeypatch.setattr(io_binding_engine, "_STEP", 16)
    monkeypatch.setattr(resident_buffers, "_SHORTEST", 2)
    graph = package.graph("generic-float32")
    assert graph is not None
    device = Device(name="host", backend="test", description="", available=True)
    opened = HostEngine(package, graph, device, capture=False)
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
    buffers = engine.take(engine.context)
    assert [buffers.step(end).given.shape()[0] - 1 for end in (1, 2, 3, 33, 100, 127, 128)] == [
        2,
        2,
        3,
        48,
        128,
        128,
        128,
    ]
    assert buffers.step(1) is buffers.step(2)


def test_the_buffers_of_a_closed_session_go_to_the_next(engine: HostEngine) -> None:
    first = engine.open(40)
    buffers = first._buffers
    expected = values(first.feed(TOKENS[:30]))
    first.close()
    second = engine.open(20)
    assert second._buffers is buffers
    np.testing.assert_array_equal(values(second.feed(TOKENS[:30])), expected)
    assert engine.open(20)._buffers is not buffers


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(
        st.sampled_from(["greedy", "greedy", "greedy", "greedy", "other", "list", "row", "rewind", "prompt", "state"]),
        min_size=5,
        max_size=40,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_steps_that_run_ahead_change_nothing(
    engine: HostEngine, package: Package, actions: list[str], seed: int
) -> None:
    """Against a session of the CPU that is fed the same tokens."""
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
        ahead.append(session._ahead is not None)
    assert ahead == [False, True, True, True, True, True]
    logits.draw(1.0, 0.5)
    assert session._ahead is None


def test_logits_are_the_same_after_a_rewind_and_the_kv_stays(engine: HostEngine) -> None:
    """Also when the step that ran ahead has written over them."""
    session = engine.open()
    logits = session.feed(TOKENS[:33])
    for _ in range(4):
        logits = session.feed(logits.top(1).tokens)
    best = logits.top(1)
    assert session._ahead is not None
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

    class Short:
        @staticmethod
        def ortvalue_from_numpy(*_: object) -> None:
            raise RuntimeError("out of memory\nat line 7")

    monkeypatch.setattr("embedllm.backends.gpu.io_binding_engine.ort.OrtValue", Short)
    for attempt in (lambda: engine.open(), lambda: session.feed([1, 2])):
        with pytest.raises(DeviceError, match=r"'host' failed: out of memory$"):
            attempt()


def test_work_left_to_the_cpu_is_refused(package: Package) -> None:
    graph = package.graph("generic-float32")
    assert graph is not None
    device = Device(name="host", backend="test", description="", available=True)
    lack = "'host' cannot run this model: ONNX Runtime gave GroupQueryAttention, MatMulNBits"
    with pytest.raises(DeviceError, match=re.escape(lack)):
        HostEngine(package, graph, device)


# --- rows


@pytest.fixture(scope="module")
def heads() -> Callable[[np.ndarray], tuple[ListedRow, list[str]]]:
    sessions: dict[str, ort.InferenceSession] = {}

    def session(file: str) -> ort.InferenceSession:
        if file not in sessions:
            sessions[file] = ort.InferenceSession(HEADS / file, providers=["CPUExecutionProvider"], enable_fallback=0)
        return sessions[file]

    def made(row: np.ndarray) -> tuple[ListedRow, list[str]]:
        """A row and what was asked of the device so far."""
        logits, asked = ort.OrtValue.ortvalue_from_numpy(row[None, None]), []

        def ask(name: str) -> F32:
            asked.append(name)
            return Head(
                session(f"{name}.{row.dtype.name}.onnx"),
                logits,
                size=sizes(row.size)[name],
                options=ort.RunOptions(),
                place=ort.OrtValue.ortvalue_from_numpy,
                read=lambda value: value.numpy().copy(),
            )()

        return device_row(row.size, ask), asked

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
