"""Several requests at once on a model: what each would get alone, in order; errors and cancelling end all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm.cancel import Cancel
from embedllm.generation.chunk import Chunk
from embedllm.generation.request import Request
from embedllm.sampling.options import Sampling

GREEDY = Sampling(temperature=0)
PROMPTS = [[(seed * at) % 300 for at in range(1, 5 + seed)] for seed in (3, 5, 40, 11, 7, 90)]
WAIT_S = 120  # a test that waits this long has failed


@pytest.fixture(scope="module")
def llm(tiny_package: Callable[..., Path]) -> Iterator[embedllm.Model]:
    with embedllm.load(tiny_package("llama"), device="cpu") as model:
        yield model


def test_a_batch_gives_what_each_prompt_gives_alone(llm: embedllm.Model) -> None:
    llm.release()  # what is held already, of tests before too, is computed in other pieces
    expected = [llm.generate(prompt, GREEDY, max_tokens=40, stop_tokens=[]) for prompt in PROMPTS]
    llm.release()
    found = llm.generate_batch(PROMPTS, GREEDY, max_tokens=40, stop_tokens=[])
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    for one, other in zip(found, expected, strict=True):
        # with AVX2 alone ONNX Runtime sums several rows in another order than one, so that an activation may be rounded
        # to the next of its 255 steps: 0.008
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=0.03)


def test_tasks_of_an_event_loop_run_together_too(llm: embedllm.Model) -> None:
    async def all_of_them() -> list[embedllm.Completion]:
        return await asyncio.gather(
            *(llm.agenerate(prompt, GREEDY, max_tokens=40, stop_tokens=[]) for prompt in PROMPTS)
        )

    expected = [llm.generate(prompt, GREEDY, max_tokens=40, stop_tokens=[]).tokens for prompt in PROMPTS]
    assert [one.tokens for one in asyncio.run(all_of_them())] == expected


def test_a_bad_prompt_is_refused_before_anything_runs(llm: embedllm.Model) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        llm.generate_batch([[1], []])
    with pytest.raises(ValueError, match="a list of prompts, found one text"):
        llm.generate_batch("abc")
    assert llm.generate_batch([]) == []


def test_cancelling_ends_all_and_leaves_the_switch_to_its_owner(llm: embedllm.Model) -> None:
    cancel = Cancel()
    cancel.cancel()
    found = llm.generate_batch(PROMPTS[:3], GREEDY, stop_tokens=[], cancel=cancel)
    assert [one.finish_reason for one in found] == ["cancelled"] * 3
    again = llm.generate_batch(PROMPTS[:3], GREEDY, max_tokens=2, stop_tokens=[])
    assert [len(one.tokens) for one in again] == [2, 2, 2]
    failing = Cancel()
    with pytest.raises(ValueError, match="expected a whole number, 1 or more"):
        llm.generate_batch(PROMPTS[:2], GREEDY, max_tokens=0, cancel=failing)
    assert not failing.cancelled


# --- with few slots


@pytest.fixture(scope="module")
def narrow(tiny_package: Callable[..., Path]) -> Iterator[embedllm.Model]:
    with embedllm.load(tiny_package("llama"), device="cpu", max_sequences=2, max_waiting=3) as model:
        yield model


def replies(model: embedllm.Model, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    return [reply.tokens for reply in model.generate_batch(prompts, GREEDY, max_tokens=12, stop_tokens=[])]


def test_a_batch_of_more_than_may_wait_is_no_reason_to_refuse_it(llm: embedllm.Model, narrow: embedllm.Model) -> None:
    assert replies(narrow, PROMPTS * 3) == replies(llm, PROMPTS * 3)


def test_batches_from_a_pool_of_threads_share_the_places(llm: embedllm.Model, narrow: embedllm.Model) -> None:
    expected = replies(llm, PROMPTS)
    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(replies, narrow, PROMPTS) for _ in range(3)]
        assert [one.result(WAIT_S) for one in found] == [expected] * 3


def test_of_several_replies_to_one_prompt_only_the_first_can_be_refused(
    narrow: embedllm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    run_all = narrow.runner.run_all

    def noted(requests: Sequence[Request], cancel: Cancel) -> Iterator[list[Chunk]]:
        asked.extend(request.is_rejectable for request in requests)
        return run_all(requests, cancel)

    monkeypatch.setattr(narrow.runner, "run_all", noted)
    assert len(narrow.generate_n(PROMPTS[0], 3, max_tokens=2, stop_tokens=[])) == 3
    assert asked == [True, False, False]


def test_prompts_that_come_together_compute_their_common_prefix_once(llm: embedllm.Model) -> None:
    prefix = [token * 7 % 250 for token in range(80)]
    prompts = [[*prefix, which] for which in range(4)]
    alone = [llm.generate(prompt, GREEDY, max_tokens=6, stop_tokens=[]).tokens for prompt in prompts]
    llm.release()
    found = llm.generate_batch(prompts, GREEDY, max_tokens=6, stop_tokens=[])
    assert [reply.tokens for reply in found] == alone
    assert [reply.statistics.cached_tokens for reply in found] == [0, *[len(prefix)] * 3]
