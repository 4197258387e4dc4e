"""Runs of several tokens whose rows stay on a device, with the CPU provider as the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedllm.backends.base import BatchRow, Session
from embedllm.backends.devices import registry
from embedllm.backends.gpu import cuda, several_tokens
from embedllm.backends.gpu.cuda import CudaEngine
from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.backends.gpu.recurrent_engine import RecurrentEngine
from embedllm.backends.gpu.several_tokens import SeveralTokens
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.errors import ContextFull
from embedllm.export import Recipe, convert
from embedllm.package.package import Package, open_package
from embedllm.types import Logits
from tests.support.host_engine import HostEngine, make_host_the_device, open_host
from tests.support.logits import values
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_lfm2, tiny_qwen3_5

ATOL = 1e-4  # measured 7e-6
GPU_ATOL = 0.05  # of logits up to 5, all in float16
MODELS: dict[str, tuple[str, Recipe, dict[str, object]]] = {
    "llama": ("llama", Recipe(), {}),
    "mistral, window": ("mistral", Recipe(), {"sliding_window": 16}),
    "qwen2, asymmetric": ("qwen2", Recipe(symmetric=False), {}),
    "qwen3, 16 bits": ("qwen3", Recipe(bits=16), {}),
}
TOKENS = np.random.default_rng(5).integers(0, 300, 60).tolist()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, tiny_package: Callable[..., Path]) -> dict[str, Package]:
    folder = tmp_path_factory.mktemp("recurrent")
    lfm2 = convert(tiny_lfm2(folder / "checkpoint"), folder / "package", Recipe(exact=True))
    return {"llama": open_package(tiny_package("llama", Recipe(exact=True))), "lfm2": open_package(lfm2)}


def open_engine(package: Package, monkeypatch: pytest.MonkeyPatch) -> HostEngine:
    make_host_the_device(monkeypatch)
    opened = open_host(package, "generic-float32")
    opened.captures = True  # the CPU captures nothing: it runs all as it stands
    return opened


@pytest.fixture
def engine(packages: dict[str, Package], monkeypatch: pytest.MonkeyPatch) -> Iterator[HostEngine]:
    opened = open_engine(packages["llama"], monkeypatch)
    yield opened
    opened.close()


@pytest.fixture
def recurrent(packages: dict[str, Package], monkeypatch: pytest.MonkeyPatch) -> Iterator[RecurrentEngine]:
    opened = RecurrentEngine(open_engine(packages["lfm2"], monkeypatch))
    yield opened
    opened.close()


def open_cuda(package: Package) -> CudaEngine:
    graph = package.graph("generic-float16")
    assert graph is not None
    return CudaEngine(package, graph, cuda.devices()[0])


def counts_of(engine: ResidentEngine) -> set[int]:
    """The numbers of tokens of the runs that there are."""
    return {step.shape.tokens for step in engine.pool(0).steps}


@pytest.mark.parametrize(("count", "run"), [(2, 4), (3, 4), (4, 4), (5, 8), (8, 8), (9, 32), (32, 32)])
def test_rows_follow_the_reference_and_are_padded_to_few_runs(
    engine: HostEngine, packages: dict[str, Package], count: int, run: int
) -> None:
    expected = ReferenceEngine(packages["llama"]).open().feed_all(TOKENS[: 9 + count])
    session = engine.open(64)
    session.feed(TOKENS[:9])
    rows = session.feed_rows(TOKENS[9 : 9 + count])
    assert session.position == 9 + count
    np.testing.assert_allclose([values(row) for row in rows], expected[9:], atol=ATOL, rtol=0)
    assert [row.top(1).tokens[0] for row in rows] == expected[9:].argmax(axis=1).tolist()
    assert counts_of(engine) == {run}


def test_rows_stay_when_drafts_are_rewound_and_another_session_runs(engine: HostEngine) -> None:
    session, other = engine.open(64), engine.open(64)
    for one in (session, other):
        one.feed(TOKENS[:9])
    rows = session.feed_rows(TOKENS[9:12])
    expected = rows[1].top(1).tokens
    session.rewind(10)
    other.feed_rows(TOKENS[30:33])
    assert rows[1].top(1).tokens == expected
    session.feed(expected)
    with pytest.raises(ValueError, match="these logits are gone: their session was fed again"):
        rows[0].top(1)


def test_what_does_not_fit_in_a_padded_run_is_fed_as_it_is(engine: HostEngine, packages: dict[str, Package]) -> None:
    context = packages["llama"].context
    session = engine.open()
    session.feed([5] * (context - 3))
    rows = session.feed_rows([5, 6])
    assert len(rows) == 2
    assert session.position == context - 1
    assert not counts_of(engine)
    with pytest.raises(ContextFull):
        session.feed_rows([5, 6])
    assert session.position == context - 1


def test_sequences_beyond_the_first_slots_are_fed_as_they_are(
    engine: HostEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_tokens, "_SLOTS", 1)
    sessions = [engine.open(64) for _ in range(2)]
    rows = []
    for session in sessions:
        session.feed(TOKENS[:9])
        rows.append([values(row) for row in session.feed_rows(TOKENS[9:12])])
    np.testing.assert_allclose(rows[1], rows[0], atol=ATOL, rtol=0)
    assert {step.shape.slot for step in engine.pool(0).steps} == {0}


def test_a_wrong_or_failing_capture_is_not_used(
    engine: HostEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = engine.open(64)
    session.feed(TOKENS[:9])
    expected = session.feed_all(TOKENS[9:12])
    run = SeveralTokens._run

    def wrong(self: SeveralTokens, session: ResidentSession, tokens: list[int], width: int) -> object:
        return run(self, session, [0 for _ in tokens], width)

    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    for count, fault, reason in ((3, wrong, "their logits differ by"), (5, fail, "operation not permitted")):
        monkeypatch.setattr(SeveralTokens, "_run", fault)
        session.rewind(9)
        with caplog.at_level(logging.INFO, "embedllm"):
            rows = session.feed_rows(TOKENS[9 : 9 + count])
        np.testing.assert_array_equal([values(row) for row in rows[:3]], expected)
        assert "tokens are launched kernel by kernel: captured, " in caplog.text
        assert reason in caplog.text
    monkeypatch.setattr(SeveralTokens, "_run", run)
    session.rewind(9)
    session.feed_rows(TOKENS[9:12])
    assert session.position == 12


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    drafts=st.lists(
        st.tuples(st.integers(2, 6), st.integers(0, 5), st.sampled_from(["", "beside", "alone", "together"])),
        min_size=1,
        max_size=8,
    )
)
def test_states_follow_the_drafts_that_were_right(
    recurrent: RecurrentEngine, packages: dict[str, Package], drafts: list[tuple[int, int, str]]
) -> None:
    """Some tokens at a time, of which some are rewound; what is right is then fed again together with the next.

    Another sequence steps before the rewind, so that slots are moved; or both step together behind it.
    """
    expected = ReferenceEngine(packages["lfm2"]).open().feed_all(TOKENS)
    session, other = recurrent.open(64), recurrent.open(64)
    assert isinstance(session, StatefulSession)
    session.feed(TOKENS[:5])
    other.feed(TOKENS[:3])

    def check(found: Logits, place: int) -> None:
        np.testing.assert_allclose(values(found), expected[place], atol=ATOL, rtol=0)

    def step(*sessions: Session) -> None:
        rows = [BatchRow(one, [TOKENS[one.position]]) for one in sessions]
        places = [one.position for one in sessions]
        for found, place in zip(recurrent.run_batch(rows), places, strict=True):
            check(found, place)

    for count, right, then in drafts:
        start, kept = session.position, min(count, 1 + right)
        rows = session.feed_rows(TOKENS[start : start + kept] + [7] * (count - kept))
        check(rows[kept - 1], start + kept - 1)
        if then == "beside":
            step(other)
        session.rewind(start + kept)
        if then == "alone":
            check(session.feed([TOKENS[session.position]]), session.position - 1)
        elif then == "together":
            step(session, other)
    for one in (session, other):
        one.close()


def test_drafts_copy_no_states_where_a_sequence_runs_alone(
    recurrent: RecurrentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = recurrent.open(64)
    assert isinstance(session, StatefulSession)
    session.feed(TOKENS[:5])
    session.feed(TOKENS[5:6])
    session.feed(TOKENS[6:7])  # what was before the prompt's first step is copied
    saved: list[int] = []
    monkeypatch.setattr(recurrent.slots.pool(64).states, "save", lambda *place: saved.append(place[-1]))
    for kept in (1, 3, 2, 3, 1):
        start = session.position
        session.feed_rows(TOKENS[start : start + 3])
        session.rewind(start + kept)
    assert saved == []


def test_tokens_behind_a_rewind_are_fed_by_a_run_that_is_there(recurrent: RecurrentEngine) -> None:
    session = recurrent.open(64)
    assert isinstance(session, StatefulSession)
    session.feed(TOKENS[:5])
    expected = session.feed_all(TOKENS[5:9])
    session.rewind(5)
    for _ in range(2):  # on both sides of the states
        session.feed_rows(TOKENS[5:8])
        session.rewind(5)
    session.feed_rows(TOKENS[5:8])
    session.rewind(7)
    runs = counts_of(recurrent.slots)
    np.testing.assert_allclose(values(session.feed(TOKENS[7:8])), expected[2], atol=ATOL, rtol=0)
    assert 3 in runs
    assert counts_of(recurrent.slots) == runs


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_replays_runs_that_follow_the_reference(model: str, tiny_package: Callable[..., Path]) -> None:
    family, recipe, config = MODELS[model]
    package = open_package(tiny_package(family, recipe, **config))
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    opened = open_cuda(package)
    sessions = [opened.open(64) for _ in range(2)]
    for session in sessions:
        session.feed(TOKENS[:9])
    for count in (2, 3, 5, 8, 9, 20) * 2:
        for session in sessions:
            rows = session.feed_rows(TOKENS[9 : 9 + count])
            found = np.array([values(row) for row in rows])
            np.testing.assert_allclose(found, expected[9 : 9 + count], atol=GPU_ATOL, rtol=0)
            assert [row.top(1).tokens[0] for row in rows] == found.argmax(axis=1).tolist()
            session.rewind(9)
    assert opened.several._is_right == {4: True, 8: True, 32: True}
    opened.close()


@pytest.mark.gpu
@pytest.mark.parametrize("tiny", [tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def test_a_gpu_verifies_drafts_of_recurrent_models(tiny: Callable[[Path], Path], tmp_path: Path) -> None:
    package = open_package(convert(tiny(tmp_path), tmp_path / "package", Recipe()))
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    opened = registry.open_engine(package, cuda.devices()[0])
    assert isinstance(opened, RecurrentEngine)
    random, distances = np.random.default_rng(4), []
    for _ in range(4):
        session = opened.open(64)
        assert isinstance(session, StatefulSession)
        session.feed(TOKENS[:5])
        while session.position < 50:
            start, count = session.position, int(random.integers(2, 5))
            right = int(random.integers(1, count + 1))
            rows = session.feed_rows(TOKENS[start : start + right] + [7] * (count - right))
            distances += [np.abs(values(rows[at]) - expected[start + at]).max() for at in range(right)]
            session.rewind(start + right)
        session.close()
    assert any(opened.slots.several._is_right.values())
    opened.close()
    assert np.quantile(distances, 0.9) < 0.01 * np.ptp(expected)
    assert max(distances) < 0.2 * np.ptp(expected)
