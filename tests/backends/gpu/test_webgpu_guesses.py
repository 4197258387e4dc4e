"""Sampled steps that run ahead on WebGPU, beside sampled steps one by one: the text is the same.

On a GPU, or on a software one: .ci/lavapipe.sh pytest -m webgpu tests/backends/gpu/test_webgpu_guesses.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedllm.backends.base import Device
from embedllm.backends.gpu import webgpu, webgpu_guesses, webgpu_steps
from embedllm.backends.gpu.webgpu import WebGpuEngine
from embedllm.backends.gpu.webgpu_capture import CapturedRun
from embedllm.backends.gpu.webgpu_guesses import Guesses
from embedllm.backends.gpu.webgpu_pace import Pace
from embedllm.backends.gpu.webgpu_steps import SAMPLED_WAYS
from embedllm.cancel import Cancel
from embedllm.generation.chunk import Chunk
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from embedllm.package.graph_variants import GPU_FLOAT32
from embedllm.package.package import Package, open_package
from embedllm.sampling.options import Sampling
from tests.support.fakes import Bytes, tokens

pytestmark = pytest.mark.webgpu

PROMPT = [11, 5, 200, 31, 7, 90, 14]
CONTEXT = 1100  # one growth
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.4, "min_p": 0.1},
    {"top_p": 0.9, "repetition_penalty": 1.2},  # one by one
    {"temperature": 0},
]


class Letters(Bytes):
    """A tokenizer whose tokens are letters."""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return "".join(chr(0x4E00 + token) for token in tokens)


@pytest.fixture(scope="module")
def package(tiny_package: Callable[..., Path]) -> Package:
    return open_package(tiny_package("qwen3", max_position_embeddings=CONTEXT))


def engine_of(package: Package, device: Device) -> WebGpuEngine:
    graph = package.graph(GPU_FLOAT32.name)
    assert graph is not None
    return WebGpuEngine(package, graph, device, capture=True, joins=False)  # steps of several are of another rounding


@pytest.fixture(scope="module")
def ahead(package: Package, device: Device) -> Iterator[Runner]:
    engine = engine_of(package, device)
    assert engine.guesser is not None
    engine.pace = None  # ahead, whether or not that is the faster way here
    runner = Runner(engine, Letters())
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def singly(package: Package, device: Device) -> Iterator[Runner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(webgpu.CAPTURE, "greedy")
        engine = engine_of(package, device)
    assert engine.captures
    assert engine.guesser is None
    runner = Runner(engine, Letters())
    yield runner
    runner.close()


@pytest.fixture(autouse=True)
def as_on_a_fast_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webgpu_steps, "_AHEAD_S", 60.0)  # whole groups, however long they take


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each guess that the sampler's choice was compared with, whether it was right."""
    found: list[bool] = []
    check = Guesses.check

    def noted(self: Guesses, token: int) -> bool:
        is_right, is_guess = check(self, token), self._latest is not None
        if is_guess:
            found.append(is_right)
        return is_right

    monkeypatch.setattr(Guesses, "check", noted)
    return found


def request(options: dict[str, Any], seed: int = 0, **changes: Any) -> Request:  # noqa: ANN401 - fields of a Request
    given: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 18, "stop": (), "stop_tokens": frozenset(), "top_count": 0}
    return Request(sampling=Sampling(seed=seed, **options), **given | changes)


def reply(runner: Runner, asked: Request) -> list[Chunk]:
    return list(runner.stream(asked, Cancel()))


def same(one: Sequence[Chunk], other: Sequence[Chunk]) -> bool:
    """Whether tokens, text, log probabilities and ends are equal."""
    return [(c.token, c.text, c.logprob, c.finish_reason, c.stopped_by) for c in one] == [
        (c.token, c.text, c.logprob, c.finish_reason, c.stopped_by) for c in other
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_replies_are_those_of_steps_one_by_one(
    options: dict[str, Any], ahead: Runner, singly: Runner, checked: list[bool]
) -> None:
    for seed in range(3):
        asked = request(options, seed)
        assert same(reply(ahead, asked), reply(singly, asked))
    if "repetition_penalty" in options or ("temperature" in options and not options["temperature"]):
        assert not checked
    else:
        assert sum(checked) >= 0.9 * len(checked) > 40


def test_a_request_without_a_seed_draws_other_numbers_each_time(ahead: Runner, checked: list[bool]) -> None:
    asked = [request({}, seed=None) for _ in range(2)]  # type: ignore[arg-type]
    one, other = (tokens(reply(ahead, each)) for each in asked)
    assert one != other
    assert sum(checked) >= 0.9 * len(checked) > 20


@pytest.mark.parametrize("wrong_every", [1, 2, 5])
def test_wrong_guesses_change_nothing_and_end_where_they_are_many(
    wrong_every: int, ahead: Runner, singly: Runner, checked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, calls = webgpu_guesses.numbers_of, iter(range(1000))

    def wrong(sampling: Sampling, uniforms: Sequence[float]) -> np.ndarray:
        is_wrong = next(calls) % wrong_every == 0
        return numbers(sampling, [(u + 0.5) % 1 for u in uniforms] if is_wrong else uniforms)

    monkeypatch.setattr(webgpu_guesses, "numbers_of", wrong)
    asked = request({"temperature": 1.2}, max_tokens=40)
    assert same(reply(ahead, asked), reply(singly, asked))
    assert not all(checked)
    if wrong_every == 1:
        assert len(checked) < 12  # then one by one


def test_both_ways_are_tried_on_the_first_tokens(
    ahead: Runner, singly: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace("sampled steps", SAMPLED_WAYS)
    monkeypatch.setattr(ahead.engine, "pace", pace)
    ways = list[str]()
    note = pace.note
    monkeypatch.setattr(pace, "note", lambda *step: (note(*step), ways.append(pace.way)))
    asked = request(OPTIONS[1], seed=3, max_tokens=90)
    assert same(reply(ahead, asked), reply(singly, asked))
    assert ways[0] == SAMPLED_WAYS[0]
    assert set(ways) == set(SAMPLED_WAYS)


def test_stops_leave_a_sequence_that_goes_on_rightly(ahead: Runner, singly: Runner) -> None:
    whole = tokens(reply(singly, request({}, 5)))
    for change in ({"stop_tokens": frozenset({whole[6]})}, {"stop": (chr(0x4E00 + (whole[9] or 0)),)}):
        asked = request({}, 5, **change)
        first = reply(ahead, asked)
        assert first[-1].finish_reason == "stop"
        assert same(first, reply(singly, asked))
        following = request({}, 6, prompt=[*PROMPT, *(t for t in tokens(first) if t is not None), 40, 41])
        second = reply(ahead, following)
        assert second[-1].statistics.cached_tokens >= len(PROMPT) + 5
        assert same(second, reply(singly, following))


def test_requests_at_once_do_not_disturb_each_other(ahead: Runner, singly: Runner) -> None:
    asked = [request(options, seed, prompt=PROMPT[seed:]) for seed, options in enumerate(OPTIONS[:3])]
    expected = [reply(singly, each) for each in asked]
    streams = [ahead.stream(each, Cancel()) for each in asked]
    found: list[list[Chunk]] = [[] for _ in streams]
    for _ in range(18):
        for stream, chunks in zip(streams, found, strict=True):
            chunks.append(next(stream))
    assert all(map(same, found, expected))


def test_a_cancelled_request_leaves_the_next_one_right(ahead: Runner, singly: Runner) -> None:
    cancel, found = Cancel(), []
    for chunk in ahead.stream(request({}, 8, max_tokens=200), cancel):
        found.append(chunk)
        if len(found) == 6:
            cancel.cancel()
    assert found[-1].finish_reason == "cancelled"
    assert len(found) < 100
    asked = request({}, 9, prompt=[*PROMPT, *(t for t in tokens(found[:5]) if t is not None), 3])
    # the other engine reads as a prompt what was steps here, which rounds otherwise
    assert tokens(reply(ahead, asked)) == tokens(reply(singly, asked))


def test_replies_go_on_where_the_kv_grows_and_end_with_the_context(
    ahead: Runner, singly: Runner, checked: list[bool]
) -> None:
    numbers = np.random.default_rng(4).integers(3, 300, CONTEXT).tolist()
    for length in (1014, CONTEXT - 12):
        asked = request({}, prompt=numbers[:length], max_tokens=20)
        found = reply(ahead, asked)
        assert same(found, reply(singly, asked))
    assert found[-1].finish_reason == "context"
    assert sum(checked) >= 0.9 * len(checked) > 20


def test_where_guesses_cannot_be_captured_the_log_says_so(
    package: Package, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = CapturedRun.run

    def fails(self: CapturedRun) -> None:
        if any(one.name == "numbers" for one in self._session.get_inputs()) and not self.failure:
            raise RuntimeError("this driver captures nothing more")
        run(self)

    caplog.set_level(logging.INFO, "embedllm")
    monkeypatch.setattr(CapturedRun, "run", fails)
    engine = engine_of(package, device)
    assert engine.captures
    assert engine.guesser is None
    assert "do not run ahead here: this driver captures nothing more" in caplog.text
    runner = Runner(engine, Letters())
    assert len(reply(runner, request({}, max_tokens=3))) == 3
    runner.close()


def test_rows_that_change_on_the_way_are_found_when_a_model_is_loaded(
    package: Package, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = Guesses.put
    caplog.set_level(logging.INFO, "embedllm")
    monkeypatch.setattr(Guesses, "put", lambda self, ring: put(self, ring + np.float32(1e-3)))
    engine = engine_of(package, device)
    assert engine.guesser is None
    assert "rows of logits change on the way" in caplog.text
    engine.close()
