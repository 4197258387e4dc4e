"""Recurrent models in slots on a device, with the CPU provider as the device: states beside the KV, on two sides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embedllm import Cancel, Sampling
from embedllm.backends.base import BatchRow, Interrupted, MovesState, ReadsPrompts, RunsBatches
from embedllm.backends.gpu import cuda_recurrent, io_binding_engine, kv_steps, on_device
from embedllm.backends.gpu.cuda_recurrent import why_not_captured
from embedllm.backends.gpu.recurrent_engine import RecurrentEngine, RecurrentSlot
from embedllm.backends.gpu.state_pool import state_bytes, states_of
from embedllm.backends.ort.runtime import ort
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.errors import ContextFull, DeviceError
from embedllm.export import Recipe, convert
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from embedllm.kv_cache.disk_store import DiskStore
from embedllm.kv_cache.prefix_cache import PrefixCache
from embedllm.package.package import Package, open_package
from embedllm.types import Logits
from tests.support.fakes import Bytes
from tests.support.host_engine import HOST, HostEngine, open_host
from tests.support.logits import values
from tests.support.recurrent_checks import TOKENS, differences
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_lfm2, tiny_qwen3_5

CLOSE = 1e-4  # of the spread of the logits; measured 2e-5


def package_of(tiny: Callable[[Path], Path], folder: Path) -> Package:
    return open_package(convert(tiny(folder / "checkpoint"), folder / "package", Recipe(exact=True)))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return package_of(tiny_qwen3_5, tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "check_assignments", lambda *_: None)  # the CPU is the device here
    for module in (io_binding_engine, kv_steps):
        monkeypatch.setattr(module, "SHORTEST", 16)


def host(package: Package) -> HostEngine:
    return open_host(package, "generic-float32")


@pytest.fixture
def engine(package: Package) -> Iterator[RecurrentEngine]:
    opened = RecurrentEngine(host(package))
    yield opened
    opened.close()


def fed_anew(engine: RecurrentEngine, tokens: list[int]) -> np.ndarray:
    """The logits behind these tokens, of a session that is fed nothing else."""
    session = engine.open(len(tokens))
    found = values(session.feed(tokens))
    session.close()
    return found


def check(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() < CLOSE * np.ptp(expected)


@pytest.mark.parametrize("tiny", [tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def test_logits_follow_the_reference_however_they_are_fed(tiny: Callable[[Path], Path], tmp_path: Path) -> None:
    package = package_of(tiny, tmp_path)
    opened = RecurrentEngine(host(package))
    assert differences(opened, package).max() < CLOSE
    opened.close()


def test_sequences_of_different_lengths_step_together(engine: RecurrentEngine, package: Package) -> None:
    """Also where what they were fed has left their states on different sides, and one of them grows."""
    lengths, streams = (5, 16, 9), np.random.default_rng(1).integers(3, 300, (3, 40)).tolist()
    expected = [ReferenceEngine(package).open().feed_all(stream) for stream in streams]
    sessions = [engine.open(length) for length in lengths]
    for session, length, stream in zip(sessions, lengths, streams, strict=True):
        session.feed(stream[: length - 1 + (length == 9)])
        if length != 9:
            session.feed(stream[length - 1 : length])
    assert len({session.steps_from.side for session in sessions}) == 2  # type: ignore[union-attr]  # all step
    for step in range(20):
        rows = [BatchRow(one, [stream[at + step]]) for one, stream, at in zip(sessions, streams, lengths, strict=True)]
        rows = rows[: 3 - (step in {4, 5})]  # and one of them waits for two steps
        for row, logits, right, at in zip(rows, engine.run_batch(rows), expected, lengths, strict=False):
            if row.session is not sessions[2] or step < 4:
                check(values(logits), right[at + step])
        if step == 5:
            sessions[2].rewind(lengths[2] + 4)
            sessions[2].feed(streams[2][lengths[2] + 4 : lengths[2] + 6])


def test_one_that_waits_keeps_its_states(engine: RecurrentEngine) -> None:
    first, second, third = (engine.open() for _ in range(3))
    for session in (first, second, third):
        session.feed(TOKENS[:6])
    for at in range(6, 11):  # within the width of what steps beside it
        engine.run_batch([BatchRow(first, [TOKENS[at]]), BatchRow(third, [TOKENS[at]])])
    check(values(second.feed([TOKENS[6]])), fed_anew(engine, TOKENS[:7]))
    check(values(third.feed([TOKENS[11]])), fed_anew(engine, TOKENS[:12]))


def test_a_step_that_ran_ahead_and_was_not_wanted_leaves_no_trace(engine: RecurrentEngine) -> None:
    session, tokens = engine.open(), TOKENS[:33]
    logits = session.feed(tokens)
    for _ in range(5):
        tokens = [*tokens, *logits.top(1).tokens]
        logits = session.feed(tokens[-1:])
    logits.top(1)
    assert engine.slots._ahead is not None
    other = (logits.top(1).tokens[0] + 1) % 300
    check(values(session.feed([other])), fed_anew(engine, [*tokens, other]))
    check(values(session.feed([7])), fed_anew(engine, [*tokens, other, 7]))


def test_greedy_steps_are_those_of_a_session_that_never_runs_ahead(engine: RecurrentEngine) -> None:
    session, tokens = engine.open(), TOKENS[:9]
    logits = session.feed(tokens)
    for _ in range(12):
        best = logits.top(1).tokens[0]
        assert best == int(fed_anew(engine, tokens).argmax())
        tokens = [*tokens, best]
        logits = session.feed([best])


def test_a_rewound_session_steps_beside_others(engine: RecurrentEngine) -> None:
    first, second = engine.open(), engine.open()
    for session in (first, second):
        session.feed(TOKENS[:10])
        for token in TOKENS[10:15]:
            session.feed([token])
    first.rewind(13)  # between two copies: three tokens are fed again
    rows = engine.run_batch([BatchRow(first, [9]), BatchRow(second, [8])])
    check(values(rows[0]), fed_anew(engine, [*TOKENS[:13], 9]))
    check(values(rows[1]), fed_anew(engine, [*TOKENS[:15], 8]))
    assert (first.position, second.position) == (14, 16)


def test_a_run_that_fails_leaves_all_where_they_were(engine: RecurrentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = engine.open(), engine.open()
    for session in (first, second):
        session.feed(TOKENS[:10])
        session.feed(TOKENS[10:11])
    second.rewind(9)
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise DeviceError("no more")

        patched.setattr(engine.slots, "run_step", fail)
        with pytest.raises(DeviceError, match="no more"):
            engine.run_batch([BatchRow(first, [5]), BatchRow(second, [5])])
    assert (first.position, second.position) == (11, 9)
    rows = engine.run_batch([BatchRow(first, [5]), BatchRow(second, [6])])
    check(values(rows[0]), fed_anew(engine, [*TOKENS[:11], 5]))
    check(values(rows[1]), fed_anew(engine, [*TOKENS[:9], 6]))


def test_a_token_that_is_none_changes_nothing(engine: RecurrentEngine, package: Package) -> None:
    first, second = engine.open(), engine.open()
    first.feed(TOKENS[:5])
    second.feed([5] * package.context)
    with pytest.raises(ContextFull):
        engine.run_batch([BatchRow(first, [5]), BatchRow(second, [5])])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        engine.run_batch([BatchRow(first, [10_000])])
    check(values(first.feed([5])), fed_anew(engine, [*TOKENS[:5], 5]))


def test_a_stopped_feed_leaves_no_trace(engine: RecurrentEngine) -> None:
    session = engine.open()
    session.feed(TOKENS[:9])
    for tokens in ([3, 4, 5], [6]):
        session.interrupt()
        with pytest.raises(Interrupted):
            session.feed(tokens)
        session.interrupt(stop=False)
    check(values(session.feed(TOKENS[9:12])), fed_anew(engine, TOKENS[:12]))


def test_the_next_owner_of_a_slot_begins_with_no_states(engine: RecurrentEngine) -> None:
    expected = fed_anew(engine, TOKENS[:4])
    used = engine.open()
    for token in TOKENS[20:25]:
        used.feed([token])
    used.close()
    np.testing.assert_array_equal(fed_anew(engine, TOKENS[:4]), expected)
    again = engine.open()
    again.feed(TOKENS[30:41])
    again.rewind(0)
    np.testing.assert_array_equal(values(again.feed(TOKENS[:4])), expected)


def test_a_session_grows_with_its_states(engine: RecurrentEngine) -> None:
    session = engine.open(10)
    for token in TOKENS[:39]:
        session.feed([token])
    assert session.capacity == 64
    check(values(session.feed(TOKENS[39:40])), fed_anew(engine, TOKENS[:40]))


def test_copies_of_states_stay_on_the_device_and_go_with_the_session(engine: RecurrentEngine) -> None:
    session = engine.open(64)
    before = len(engine.slots.memory.allocated)  # type: ignore[attr-defined]  # it is the host's
    for start in range(0, 60, 3):
        session.feed(TOKENS[start : start + 3])
    assert len(engine.slots.memory.allocated) > before  # type: ignore[attr-defined]  # as above
    session.close()
    assert len(engine.slots.memory.allocated) <= before  # type: ignore[attr-defined]  # as above


def test_states_are_as_the_graph_has_them(engine: RecurrentEngine) -> None:
    """CUDA's has some in float32 beside others in float16, and transposed: tests/export/onnx/test_recurrent.py."""
    inputs = [
        SimpleNamespace(name="past_key_values.0.key", type="tensor(float16)", shape=["batch", 2, "capacity", 16]),
        SimpleNamespace(name="past_conv.0", type="tensor(float16)", shape=["batch", 3, 80]),
        SimpleNamespace(name="past_recurrent.0", type="tensor(float)", shape=["batch", 2, 24, 16]),
    ]
    session: ort.InferenceSession = SimpleNamespace(get_inputs=lambda: inputs)  # type: ignore[assignment]  # all that is asked of it
    assert states_of(session) == {"conv.0": (np.float16, (3, 80)), "recurrent.0": (np.float32, (2, 24, 16))}
    assert state_bytes(session) == 2 * 3 * 80 + 4 * 2 * 24 * 16
    assert state_bytes(engine.slots.session) == 4 * (3 * 80 + 2 * 24 * 16)


def test_prompts_are_read_one_by_one_and_nothing_of_a_sequence_is_given_away(engine: RecurrentEngine) -> None:
    """Padding would change the states; and KV without them is of no use (KeepsStates gives both)."""
    assert isinstance(engine, RunsBatches)
    assert engine.max_batch > 1
    assert not isinstance(engine, ReadsPrompts)
    session = engine.open()
    assert isinstance(session, StatefulSession)
    assert not isinstance(session, MovesState)


def test_a_warm_engine_has_a_step_of_each_side(engine: RecurrentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.warm_up()
    pool = engine.slots.pool(0)
    assert {(step.shape.rows, step.shape.side) for step in pool.steps} == {(1, 0), (1, 1)}
    assert all(step.has_run for step in pool.steps)


def test_steps_that_are_as_good_as_their_kernels_are_captured(engine: RecurrentEngine) -> None:
    assert why_not_captured(engine.slots) == ""


def test_steps_are_not_captured_where_that_changes_or_fails_them(
    package: Package, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[bool] = []

    def open_host(package: Package, *_: object, capture: bool = True) -> HostEngine:
        opened.append(capture)
        engine = host(package)
        engine.captures = capture
        return engine

    feed = RecurrentSlot.feed
    monkeypatch.setattr(cuda_recurrent, "CudaEngine", open_host)
    monkeypatch.setattr(RecurrentSlot, "feed", lambda self, tokens: feed(self, [min(token, 4) for token in tokens]))
    graph = package.graph("generic-float32")
    assert graph is not None
    with caplog.at_level(logging.INFO, "embedllm"):
        cuda_recurrent.open_recurrent(package, graph, HOST).close()
    assert opened == [True, False]
    assert "host: steps are launched kernel by kernel: captured, their logits differ by" in caplog.text

    def fail(self: RecurrentSlot, tokens: list[int]) -> Logits:
        if len(tokens) == 1:
            raise DeviceError("operation not permitted when stream is capturing")
        return feed(self, tokens)

    monkeypatch.setattr(RecurrentSlot, "feed", fail)
    with caplog.at_level(logging.INFO, "embedllm"):
        cuda_recurrent.open_recurrent(package, graph, HOST).close()
    assert opened[2:] == [True, False]
    assert "kernel by kernel: operation not permitted when stream is capturing" in caplog.text


def test_a_session_takes_a_prefix_of_another_one(engine: RecurrentEngine) -> None:
    """Also one that steps with others, from states that lie in a slot or in a block, and by way of the host."""
    one, other, third = (engine.open(len(TOKENS)) for _ in range(3))
    one.feed(TOKENS[:40])
    one.feed(TOKENS[40:60])
    for _ in range(3):
        engine.run_batch([BatchRow(session, [TOKENS[session.position]]) for session in (one, third)])
    assert one.kept() == [40, 60, 63]
    assert one.kv is not None
    expected = fed_anew(engine, TOKENS[:70])
    for at in one.kept():
        states = one.export_states(at)
        for each in (states, {name: np.array(array) for name, array in states.items()}):
            other.rewind(0)
            other.feed(TOKENS[:20])
            assert other.import_prefix(TOKENS[20:at], [one.kv.export_state(20, at)], each)
            check(values(other.feed(TOKENS[at:70])), expected)
            other.rewind(20)  # the states behind the tokens that it was fed itself are kept, too
            check(values(other.feed(TOKENS[20:70])), expected)
    check(values(one.feed(TOKENS[63:70])), expected)
    for session in (one, other, third):
        session.close()


def test_prefixes_are_taken_from_memory_and_disk(package: Package, tmp_path: Path) -> None:
    prompts = [[*TOKENS, *TOKENS[10 * seed : 10 * seed + 20]] for seed in range(4)]

    def replies(prompt: list[int], runner: Runner) -> tuple[list[int | None], int]:
        greedy = Sampling(temperature=0)
        request = Request(prompt=prompt, sampling=greedy, max_tokens=4, stop=(), stop_tokens=frozenset(), top_count=0)
        chunks = list(runner.stream(request, Cancel()))
        return [chunk.token for chunk in chunks], chunks[-1].statistics.cached_tokens

    def runner(folder: Path | None, budget: int = 1 << 20) -> Runner:
        store = None if folder is None else DiskStore(folder, budget_bytes=1 << 30)
        cache = PrefixCache(budget, model={"of": "tests"}, folder=store)
        return Runner(RecurrentEngine(host(package)), Bytes(), prefix_cache=cache)

    expected = [replies(prompt, runner(None, 0))[0] for prompt in prompts]
    first, second = runner(tmp_path), runner(tmp_path)
    found = [replies(prompts[0], first), replies(prompts[1], first)]
    replies(TOKENS[::-1], first)  # takes the sequence
    found.append(replies(prompts[2], first))
    first.close()
    found.append(replies(prompts[3], second))
    second.close()
    assert [tokens for tokens, _ in found] == expected
    assert [cached for _, cached in found] == [
        0,
        0,
        64,
        64,
    ]  # the second one shows where they part; the disk takes whole blocks
