"""Captured steps on WebGPU beside steps that are not, and KV that stays on the GPU.

On a GPU, or on a software one: .ci/lavapipe.sh pytest -m webgpu tests/backends/gpu/test_webgpu_steps.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import Device, Interrupted, MovesStored
from embedllm.backends.gpu import webgpu, webgpu_graph, webgpu_steps
from embedllm.backends.gpu.webgpu import WebGpuEngine
from embedllm.backends.gpu.webgpu_capture import CapturedRun
from embedllm.backends.gpu.webgpu_graph import KEPT
from embedllm.backends.gpu.webgpu_kv import KvCopier
from embedllm.backends.gpu.webgpu_steps import CapturedSession
from embedllm.backends.sessions.kv_arrays import can_join, joined, on_host
from embedllm.package.graph_variants import GPU_FLOAT32
from embedllm.package.package import Package, open_package
from embedllm.types import Logits
from tests.support.logits import best, greedy, values

pytestmark = pytest.mark.webgpu

ATOL = 1e-4  # float32: docs/webgpu.md
PROMPT = [11, 5, 200, 31, 7, 90, 14]


@pytest.fixture(scope="module")
def package(tiny_package: Callable[..., Path]) -> Package:
    return open_package(tiny_package("qwen3", max_position_embeddings=4096))


def engine_of(package: Package, device: Device, *, capture: bool | None = None) -> WebGpuEngine:
    graph = package.graph(GPU_FLOAT32.name)
    assert graph is not None
    return WebGpuEngine(package, graph, device, capture=capture)


@pytest.fixture(scope="module")
def captured(package: Package, device: Device) -> Iterator[WebGpuEngine]:
    engine = engine_of(package, device)
    assert engine.captures
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def plain(package: Package, device: Device) -> Iterator[WebGpuEngine]:
    engine = engine_of(package, device, capture=False)
    yield engine
    engine.close()


def test_greedy_tokens_are_those_of_steps_that_are_not_captured(captured: WebGpuEngine, plain: WebGpuEngine) -> None:
    for prompt in (PROMPT, PROMPT[:1], [*PROMPT, 3]):
        ours, theirs = captured.open(), plain.open()
        assert isinstance(ours, CapturedSession)
        assert greedy(ours, prompt, 50) == greedy(theirs, prompt, 50)
        ours.close()
        theirs.close()


def test_steps_run_ahead_for_as_long_as_they_are_to(
    captured: WebGpuEngine, plain: WebGpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And as many as the GPU keeps the best tokens of, which are read in turn with those that are being computed."""
    monkeypatch.setattr(webgpu_steps, "_AHEAD_S", 60.0)
    ours, theirs, ahead, tokens = captured.open(), plain.open(), set[int](), PROMPT
    assert isinstance(ours, CapturedSession)
    for _ in range(80):
        found = best(ours.feed(tokens))
        ahead.add(ours._frontier - ours._row_at)
        assert found == best(theirs.feed(tokens))
        tokens = [found]
    assert max(ahead) == 2 * KEPT - 1
    ours.close()
    theirs.close()


def test_whole_rows_are_right_while_steps_run_ahead(captured: WebGpuEngine, plain: WebGpuEngine) -> None:
    ours, theirs = captured.open(), plain.open()
    tokens = PROMPT
    for at in range(24):
        found, expected = ours.feed(tokens), theirs.feed(tokens)
        token = best(found)
        assert token == best(expected)
        if at % 6 == 5:  # the others ask for the best only, so that steps run ahead
            np.testing.assert_allclose(values(found), values(expected), atol=ATOL, rtol=0)
        tokens = [token] if at % 8 != 7 else [17]  # not what was foreseen
    ours.close()
    theirs.close()


def test_a_rewind_behind_steps_that_ran_ahead_equals_a_fresh_session(
    captured: WebGpuEngine, plain: WebGpuEngine
) -> None:
    session, fresh = captured.open(), plain.open()
    found = greedy(session, PROMPT, 20)
    session.rewind(len(PROMPT) + 4)
    again = [*PROMPT, *found[:4], 42, 8]
    np.testing.assert_allclose(values(session.feed([42, 8])), values(fresh.feed(again)), atol=ATOL, rtol=0)
    assert greedy(session, [19], 12) == greedy(fresh, [19], 12)
    session.close()
    fresh.close()


def test_sessions_in_turn_do_not_disturb_each_other(captured: WebGpuEngine, plain: WebGpuEngine) -> None:
    prompts = [PROMPT, PROMPT[::-1], [250, 3, 4]]
    expected = []
    for prompt in prompts:
        session = plain.open()
        expected.append(greedy(session, prompt, 24))
        session.close()
    sessions = [captured.open() for _ in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    for _ in range(24):
        for session, prompt, tokens in zip(sessions, prompts, found, strict=True):
            tokens.append(best(session.feed(tokens[-1:] or prompt)))
    assert found == expected
    for session in sessions:
        session.close()


def test_greedy_steps_go_on_where_the_kv_grows(captured: WebGpuEngine, plain: WebGpuEngine) -> None:
    tokens = np.random.default_rng(4).integers(3, 300, 1010).tolist()
    ours, theirs = captured.open(), plain.open(2000)
    assert ours.capacity == 1024
    assert greedy(ours, tokens, 30) == greedy(theirs, tokens, 30)
    assert ours.capacity == 2048
    ours.close()
    theirs.close()


def test_logits_of_before_say_that_they_are_gone(captured: WebGpuEngine) -> None:
    session = captured.open()
    before = session.feed(PROMPT)
    session.feed([3])
    with pytest.raises(ValueError, match="these logits are gone"):
        best(before)
    last = session.feed([4])
    session.close()
    with pytest.raises(ValueError, match="closed"):
        best(last)


def test_an_interrupt_stops_greedy_steps_and_they_go_on_after_it(captured: WebGpuEngine, plain: WebGpuEngine) -> None:
    session, fresh = captured.open(), plain.open()
    found = greedy(session, PROMPT, 10)
    session.interrupt()
    with pytest.raises(Interrupted):
        session.feed(found[-1:])
    session.interrupt(False)
    assert session.position == len(PROMPT) + 9
    fresh.feed([*PROMPT, *found[:-1]])
    assert greedy(session, found[-1:], 10) == greedy(fresh, found[-1:], 10)
    session.close()
    fresh.close()


def test_kv_stays_on_the_gpu_between_sessions_while_steps_run_ahead(
    captured: WebGpuEngine, plain: WebGpuEngine
) -> None:
    first, second, third, fresh = captured.open(), captured.open(), captured.open(), plain.open()
    assert isinstance(first, MovesStored)
    tokens = [*PROMPT, *greedy(first, PROMPT, 20)]
    one, other, last = first.export_stored([(0, 6), (6, 15), (15, 20)])
    greedy(first, [9], 5)
    assert can_join(one, other)
    assert not can_join(one, last)
    second.import_state(joined([one, other]))
    second.import_state(last)
    third.import_state(on_host(joined([one, other, last])))
    expected = values(fresh.feed(tokens[:23]))
    for session in (second, third):
        np.testing.assert_allclose(values(session.feed(tokens[20:23])), expected, atol=ATOL, rtol=0)
    for (key, value), (plain_key, plain_value) in zip(on_host(other), fresh.export_state(6, 15), strict=True):
        np.testing.assert_allclose(key, plain_key, atol=ATOL, rtol=0)
        np.testing.assert_allclose(value, plain_value, atol=ATOL, rtol=0)
    for session in (first, second, third, fresh):
        session.close()


def test_attention_with_a_window_is_still_wrong_in_a_session_that_captures(
    device: Device, tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When this fails, the plug-in was mended: backends/gpu/webgpu_graph.py need not refuse windows."""
    package = open_package(tiny_package("mistral", sliding_window=16))
    tokens = np.random.default_rng(3).integers(3, 300, 60).tolist()
    rows = []
    for refuses in (True, False):
        if not refuses:
            monkeypatch.setattr(webgpu_graph, "_has_window", lambda _: False)
            monkeypatch.setattr(WebGpuEngine, "_check_steps", lambda _: None)
        engine = engine_of(package, device)
        assert engine.captures is not refuses
        session = engine.open()
        rows.append(session.feed_all(tokens))
        session.close()
        engine.close()
    wrong = np.abs(rows[0] - rows[1]).max(axis=1)
    assert wrong[:16].max() < ATOL
    assert wrong.max() > 0.3  # measured: 5.0


def test_what_cannot_be_captured_runs_as_before_and_says_why(
    package: Package, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: CapturedRun) -> None:
        raise RuntimeError("this driver captures nothing")

    caplog.set_level(logging.INFO, "embedllm")
    monkeypatch.setattr(CapturedRun, "run", fails)
    engine = engine_of(package, device)
    assert not engine.captures
    assert "not captured here: this driver captures nothing" in caplog.text
    session = engine.open()
    assert len(greedy(session, PROMPT, 3)) == 3
    session.close()
    engine.close()


def test_steps_that_give_other_logits_are_not_captured(
    package: Package, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, calls = webgpu._values, iter(range(10))

    def wrong_at_first(logits: Logits) -> np.ndarray:
        return whole(logits)[:: -1 if next(calls) == 0 else 1]

    caplog.set_level(logging.INFO, "embedllm")
    monkeypatch.setattr(webgpu, "_values", wrong_at_first)
    engine = engine_of(package, device)
    assert not engine.captures
    assert "captured steps differ by" in caplog.text
    engine.close()


def test_the_environment_turns_capture_off(package: Package, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(webgpu.CAPTURE, "0")
    engine = engine_of(package, device)
    assert not engine.captures
    engine.close()


def test_kv_goes_through_the_host_where_copies_on_the_gpu_change_numbers(
    package: Package, device: Device, monkeypatch: pytest.MonkeyPatch, plain: WebGpuEngine
) -> None:
    monkeypatch.setattr(KvCopier, "works", lambda *_: False)
    engine = engine_of(package, device, capture=False)
    assert engine.copier is None
    one, other, fresh = engine.open(), engine.open(), plain.open()
    one.feed(PROMPT)
    other.import_state(one.export_state(0, 5))
    np.testing.assert_allclose(values(other.feed(PROMPT[5:])), values(fresh.feed(PROMPT)), atol=ATOL, rtol=0)
    for session in (one, other, fresh):
        session.close()
    engine.close()
