"""A short soak, and that its checks see what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import embedllm
from tests.benchmarks.soak import Result, Size, soak
from tests.benchmarks.soak_checks import Alone, Wrong
from tests.benchmarks.soak_killed import check_killed

GREEDY = embedllm.Sampling(temperature=0)
PROMPT = list(range(300, 340))


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    model = Alone("demo", "cpu")
    yield model
    model.close()


@pytest.fixture(scope="module")
def reply() -> embedllm.Completion:
    with embedllm.load("demo", device="cpu") as llm:
        return llm.generate(PROMPT, GREEDY, max_tokens=12, stop_tokens=[])


def test_a_right_reply_passes_and_is_counted(alone: Alone, reply: embedllm.Completion) -> None:
    alone.check(PROMPT, reply, is_greedy=True)
    assert alone.differences.tokens >= 12
    assert alone.differences.greedy == 1


def test_a_reply_to_another_prompt_is_wrong(alone: Alone, reply: embedllm.Completion) -> None:
    with pytest.raises(Wrong, match="told -"):
        alone.check([*PROMPT[:10], *PROMPT[20:]], reply, is_greedy=True)


def test_a_greedy_reply_with_another_token_is_wrong(alone: Alone, reply: embedllm.Completion) -> None:
    drawn = embedllm.Sampling(temperature=3.0, seed=1)
    with embedllm.load("demo", device="cpu") as llm:
        other = llm.generate(PROMPT, drawn, max_tokens=12, stop_tokens=[])
    alone.check(PROMPT, other, is_greedy=False)
    with pytest.raises(Wrong, match="is not the best"):
        alone.check(PROMPT, other, is_greedy=True)
    with pytest.raises(Wrong, match="11 log probabilities"):
        alone.check(PROMPT, replace(reply, logprobs=reply.logprobs[1:]), is_greedy=True)


def test_memory_that_grows_is_seen() -> None:
    flat = Result(sizes=[Size(at, 300 + at % 3, 5, 5) for at in range(100)])
    leak = Result(sizes=[Size(at, 300 + at, 5, 5) for at in range(100)])
    assert abs(flat.slope_mib_min) < 1
    assert abs(flat.growth) < 0.01
    assert leak.slope_mib_min == pytest.approx(60, rel=0.1)
    assert leak.growth > 0.05


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills by SIGKILL")
def test_what_a_killed_process_reported_is_there(alone: Alone, tmp_path: Path) -> None:
    for seed, seconds in enumerate([0.2, 0.7]):
        assert check_killed("demo", alone, tmp_path, seed, seconds)["conversations"] > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_twenty_seconds_of_everything(tmp_path: Path) -> None:
    found = soak(tmp_path, seconds=20, seed=3)
    assert found.troubles == []
    assert found.killed["kills"] > 0
    assert sum(found.counts.values()) > 20
