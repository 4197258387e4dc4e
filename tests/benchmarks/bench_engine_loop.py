"""What callers meet: requests from the main thread, new threads, one long thread, tasks; many at once; prefixes.

    python tests/benchmarks/bench_engine_loop.py FOLDER --device cuda [--prompt 64] [--tokens 256] [--rounds 5]
        [--sequences 1 8 16 32 64] [--prefix 2000] [--json FILE]

Fresh random prompts, default options but for greedy sampling and no stop token. Rates are tokens per second of all
sequences together, from the first request to the last token, as a caller sees it; kinds of callers are interleaved and
medians are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np

import embedllm

GREEDY = embedllm.Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class Reply:
    """Seconds since the call."""

    first_s: float
    end_s: float
    tokens: int
    longest_gap_s: float


class Bench:
    """Calls of one model."""

    def __init__(self, llm: embedllm.Model, *, prompt: int, tokens: int) -> None:
        self.llm, self.prompt, self.tokens = llm, prompt, tokens
        self._random = np.random.default_rng(1)
        self._vocabulary = llm.package.architecture.vocabulary

    def fresh(self, count: int = 0) -> list[int]:
        """A prompt that nobody has asked before."""
        return self._random.integers(3, self._vocabulary - 3, count or self.prompt).tolist()

    def ask(self, prompt: Sequence[int], tokens: int = 0) -> Reply:
        start = time.perf_counter()
        times = [time.perf_counter() - start
                 for _ in self.llm.stream(list(prompt), GREEDY, max_tokens=tokens or self.tokens, stop_tokens=(),
                                          speculate="off")]  # fmt: skip
        return _reply(times)

    async def aask(self, prompt: Sequence[int]) -> Reply:
        start = time.perf_counter()
        times = [time.perf_counter() - start
                 async for _ in self.llm.astream(list(prompt), GREEDY, max_tokens=self.tokens, stop_tokens=(),
                                                 speculate="off")]  # fmt: skip
        return _reply(times)

    def in_new_thread(self) -> Reply:
        replies: list[Reply] = []
        thread = threading.Thread(target=lambda: replies.append(self.ask(self.fresh())))
        thread.start()
        thread.join()
        return replies[0]

    def together(self, count: int) -> tuple[float, float, float]:
        """Tokens per second of that many at once, in threads; seconds until the last first token; longest gap."""
        prompts = [self.fresh() for _ in range(count)]
        start = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            replies = list(threads.map(self.ask, prompts))
        seconds = time.perf_counter() - start
        return count * self.tokens / seconds, max(r.first_s for r in replies), max(r.longest_gap_s for r in replies)

    def batch(self, count: int) -> float:
        """Tokens per second of generate_batch."""
        prompts = [self.fresh() for _ in range(count)]
        start = time.perf_counter()
        self.llm.generate_batch(prompts, GREEDY, max_tokens=self.tokens, stop_tokens=(), speculate="off")
        return count * self.tokens / (time.perf_counter() - start)


def _reply(times: Sequence[float]) -> Reply:
    gaps = [after - before for before, after in pairwise(times)]
    return Reply(times[0], times[-1], len(times), max(gaps, default=0.0))


def callers(bench: Bench, rounds: int) -> dict[str, dict[str, float]]:
    """Rate and first token of one request at a time, by who calls."""
    events = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as long_thread:
        kinds: dict[str, Callable[[], Reply]] = {
            "main thread": lambda: bench.ask(bench.fresh()),
            "a new thread each": bench.in_new_thread,
            "one other thread": lambda: long_thread.submit(bench.ask, bench.fresh()).result(),
            "asyncio": lambda: events.run_until_complete(bench.aask(bench.fresh())),
        }
        found: dict[str, list[Reply]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, call in kinds.items():
                found[kind].append(call())
    events.close()
    return {
        kind: {
            "tokens_s": statistics.median(reply.tokens / reply.end_s for reply in replies),
            "first_ms": 1000 * statistics.median(reply.first_s for reply in replies),
        }
        for kind, replies in found.items()
    }


def prefix(bench: Bench, count: int, rounds: int) -> dict[str, float]:
    """The first token after a prompt of `count` tokens, cold and where another request has read all but the end."""
    cold, warm = [], []
    for _ in range(rounds):
        shared = bench.fresh(count)
        cold.append(bench.ask([*shared, *bench.fresh(16)], 4).first_s)
        bench.ask(bench.fresh(), 4)  # so that the sequence itself is used by another
        warm.append(bench.ask([*shared, *bench.fresh(16)], 4).first_s)
    return {"cold_ms": 1000 * statistics.median(cold), "warm_ms": 1000 * statistics.median(warm)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What callers of every kind meet.")
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--json")
    options = parser.parse_args()
    result: dict[str, object] = {"python": platform.python_version(), "device": options.device}
    started = time.perf_counter()
    with embedllm.load(options.folder, device=options.device, tuned=False) as llm:
        loaded = time.perf_counter()
        bench = Bench(llm, prompt=options.prompt, tokens=options.tokens)
        first = bench.ask(bench.fresh(), 4)
        result |= {"backend": llm.device.backend, "load_s": loaded - started, "first_request_ms": 1000 * first.first_s}
        print(f"{llm.device.backend}, {llm.device.description}: loaded in {loaded - started:.2f} s, the first token of "
              f"the first request after {1000 * first.first_s:.1f} ms")  # fmt: skip
        bench.ask(bench.fresh())
        result["callers"] = found = callers(bench, options.rounds)
        for kind, numbers in found.items():
            print(f"{kind:>18}: {numbers['tokens_s']:8.1f} tokens/s, first token {numbers['first_ms']:6.1f} ms")
        alone, many = 0.0, {}
        for count in options.sequences:
            bench.together(count)  # captures, buffers
            rounds = [bench.together(count) for _ in range(min(options.rounds, 3))]
            rate, last, gap = (statistics.median(column) for column in zip(*rounds, strict=True))
            in_batch = statistics.median(bench.batch(count) for _ in range(min(options.rounds, 3)))
            alone = alone or rate / count
            many[count] = {
                "tokens_s": rate,
                "generate_batch": in_batch,
                "last_first_ms": 1000 * last,
                "gap_ms": 1000 * gap,
            }
            print(f"{count:3d} at once: {rate:8.1f} tokens/s ({rate / alone:5.2f}x), generate_batch {in_batch:8.1f}, "
                  f"last first token {1000 * last:6.1f} ms, longest gap {1000 * gap:6.1f} ms")  # fmt: skip
        result["sequences"] = many
        if options.prefix:
            result["prefix"] = shared = prefix(bench, options.prefix, options.rounds)
            print(f"a prefix of {options.prefix} tokens: first token {shared['cold_ms']:.1f} ms cold, "
                  f"{shared['warm_ms']:.1f} ms shared ({shared['warm_ms'] / shared['cold_ms']:.3f})")  # fmt: skip
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
