"""load(threaded=False): the calling thread computes, and no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import embedllm
from embedllm.errors import DeviceError

GREEDY = embedllm.Sampling(temperature=0)


@pytest.fixture(scope="module")
def single() -> embedllm.Model:
    return embedllm.load("demo", device="cpu", threaded=False)


def test_it_generates_what_a_model_with_a_thread_does(single: embedllm.Model) -> None:
    with embedllm.load("demo", device="cpu") as other:
        for prompt in ("Once upon a time", [5, 6, 7]):
            expected = other.generate(prompt, GREEDY, max_tokens=12)
            assert single.generate(prompt, GREEDY, max_tokens=12).tokens == expected.tokens
            assert tuple(chunk.token for chunk in single.stream(prompt, GREEDY, max_tokens=12)) == expected.tokens
        said = other.conversation().say("list files", GREEDY, max_tokens=8).text
        assert single.conversation().say("list files", GREEDY, max_tokens=8).text == said


def test_it_starts_no_thread() -> None:
    script = (
        "import threading, embedllm; llm = embedllm.load('demo', device='cpu', threaded=False); "
        "llm.generate('a', max_tokens=3); print([one.name for one in threading.enumerate()])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "'MainThread'" in done.stdout
    assert "'embedllm-cpu'" not in done.stdout


def test_another_thread_is_refused_and_leaves_it_usable(single: embedllm.Model) -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(DeviceError, match="threaded=False in another thread"):
        threads.submit(lambda: single.generate("a", max_tokens=2)).result()
    assert len(single.generate("a", max_tokens=2, stop_tokens=()).tokens) == 2


def test_what_needs_the_thread_is_refused(single: embedllm.Model) -> None:
    with pytest.raises(ValueError, match="timeout needs the thread"):
        single.generate("a", timeout=1.0)
    with pytest.raises(ValueError, match="call load"):
        asyncio.run(embedllm.aload("demo", threaded=False))
    with pytest.raises(ValueError, match="the same 'threaded'"):
        embedllm.load("demo", device="cpu", draft=single)
