"""Python's own time for each row of a step: scheduler, sampler, text and chunks, over an engine that computes nothing.

    python tests/benchmarks/bench_scheduler_host.py [FOLDER] [--rows 1 64] [--steps 200] [--rounds 7] [--profile]

FOLDER: for its tokenizer; default: the demo. The steps run in the calling thread, without an engine loop and readers.
Kinds of requests are interleaved; prints microseconds of CPU time a row and step: least and median of the rounds.
--profile: what they are spent on, by cProfile, which itself takes as long again.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import random
import statistics
import time
from collections.abc import Sequence
from functools import partial

from embedllm.backends.base import BatchRow, Device
from embedllm.cancel import Cancel
from embedllm.generation.job import Job, Steps
from embedllm.generation.outbox import Outbox
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from embedllm.loading.resolve import package_folder
from embedllm.sampling.options import Sampling
from embedllm.text.tokenizer import Tokenizer
from embedllm.types import Candidates

KINDS = {"greedy": Sampling(temperature=0), "sampled": Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=1)}


class KnownLogits:
    """Logits whose best tokens are known, as CUDA lists them."""

    def __init__(self, tokens: list[int], size: int) -> None:
        self.size = size
        self._tokens = tokens
        self._logits = [9.0 - place / 8 for place in range(len(tokens))]

    def top(self, count: int) -> Candidates:
        return Candidates(self._tokens[:count], self._logits[:count])

    def values(self, tokens: Sequence[int]) -> list[float]:
        return [self._logits[self._tokens.index(token)] for token in tokens]

    def logsumexp(self, temperature: float = 1.0) -> float:
        return 11.0


class Session:
    capacity = 1 << 20

    def __init__(self, engine: Engine) -> None:
        self.position = 0
        self._engine = engine

    def feed(self, tokens: Sequence[int]) -> KnownLogits:
        self.position += len(tokens)
        return next(self._engine.logits)

    def rewind(self, position: int) -> None:
        self.position = position

    def close(self) -> None: ...


class Engine:
    """Gives rows that were made before."""

    mixes_lengths = False
    prompt_budget = chunk = 1024
    context = 1 << 20
    remedy = ""
    device = Device(name="none", backend="none", description="", available=True)

    def __init__(self, max_batch: int, vocabulary: int) -> None:
        self.max_batch = max_batch
        chance = random.Random(0)
        usual = range(300, vocabulary)
        self.logits = itertools.cycle([KnownLogits(chance.sample(usual, 256), vocabulary) for _ in range(997)])

    def open(self, capacity: int = 0) -> Session:
        return Session(self)

    def close(self) -> None: ...

    def run_batch(self, rows: Sequence[BatchRow]) -> Sequence[KnownLogits]:
        for row in rows:
            row.session.position += 1
        return list(itertools.islice(self.logits, len(rows)))


def _running(tokenizer: Tokenizer, rows: int, sampling: Sampling) -> Runner:
    """That many requests, whose prompts are read."""
    runner = Runner(Engine(rows, tokenizer.size), tokenizer, is_direct=True, max_running=rows)  # type: ignore[arg-type]  # a fake
    for place in range(rows):
        request = Request(prompt=[3, 4, 5 + place], sampling=sampling, max_tokens=None, stop=(),
                          stop_tokens=frozenset({2}), top_count=0, speculate="off")  # fmt: skip
        begin = partial(_begin, runner, request)
        job = Job(begin=begin, outbox=Outbox(is_whole=True), cancel=Cancel(), unstarted=lambda job: None,
                  prompt=request.prompt)  # fmt: skip
        runner.scheduler.submit(job)
    for _ in range(3):
        runner.scheduler.step()
    return runner


def _begin(runner: Runner, request: Request, job: Job) -> Steps:
    return runner._steps(request, job, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="demo")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    tokenizer = Tokenizer.open(package_folder(asked.folder))
    cases = [(rows, kind) for rows in asked.rows for kind in KINDS]
    found: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    for _ in range(asked.rounds):
        for rows, kind in cases:
            runner = _running(tokenizer, rows, KINDS[kind])
            start_s = time.thread_time()
            for _ in range(asked.steps):
                runner.scheduler.step()
            found[rows, kind].append((time.thread_time() - start_s) / asked.steps / rows * 1e6)
    for (rows, kind), times in found.items():
        print(f"{rows:3} rows, {kind:8} {min(times):6.1f} us a row and step (median {statistics.median(times):.1f})")
    if asked.profile:
        runner = _running(tokenizer, asked.rows[-1], KINDS["greedy"])
        with cProfile.Profile() as profile:
            for _ in range(asked.steps):
                runner.scheduler.step()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
