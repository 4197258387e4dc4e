"""Several replies at once, against one; and what a long prompt costs those who wait for their next token.

    python tests/benchmarks/make_checkpoint.py /tmp/q06
    embedllm export /tmp/q06 /tmp/q06-g32 --context 4096
    python tests/benchmarks/bench_batch.py /tmp/q06-g32 [--device cpu] [--streams 2 4 8] [--tokens 48] [--prompt 2000]
        [--rounds 5]

Each round times one stream and every number of streams in turn, while all of them make tokens. Prints tokens per second
of all together, and the median over the rounds of the ratio to one. Then a prompt is fed while one stream runs: the
times between that stream's tokens, in times of what they are without.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np

import embedllm

GREEDY = embedllm.Sampling(temperature=0)


def rate(llm: embedllm.Model, prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second of all streams together, while all of them run."""
    begun = threading.Barrier(len(prompts))

    def reply(prompt: list[int]) -> tuple[float, list[float]]:
        times: list[float] = []
        for _ in llm.stream(prompt, GREEDY, max_tokens=tokens, stop_tokens=()):
            if not times:
                begun.wait()
            times.append(time.perf_counter())
        return times[0], times

    with ThreadPoolExecutor(len(prompts)) as threads:
        found = list(threads.map(reply, prompts))
    start, end = max(first for first, _ in found), min(times[-1] for _, times in found)
    return sum(start < at <= end for _, times in found for at in times) / (end - start)


def gaps(llm: embedllm.Model, prompt: list[int], long: list[int]) -> tuple[list[float], list[float], float]:
    """Seconds between tokens before and while a long prompt is fed, and how long that took."""
    times: list[float] = []
    cancel = embedllm.Cancel()

    def reply() -> None:
        for _ in llm.stream(prompt, GREEDY, stop_tokens=(), cancel=cancel):
            times.append(time.perf_counter())

    thread = threading.Thread(target=reply)
    thread.start()
    while len(times) < 40:
        time.sleep(0.01)
    start, before = time.perf_counter(), len(times)
    llm.generate(long, GREEDY, max_tokens=1, stop_tokens=())
    end, after = time.perf_counter(), len(times)
    cancel.cancel()
    thread.join()
    return np.diff(times[5:before]).tolist(), np.diff(times[before:after]).tolist(), end - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)

    def prompt(length: int) -> list[int]:
        return random.integers(5, 8000, length).tolist()

    with embedllm.load(arguments.folder, device=arguments.device) as llm:
        rates: dict[int, list[float]] = {count: [] for count in (1, *arguments.streams)}
        for _ in range(arguments.rounds):
            for count, found in rates.items():
                found.append(rate(llm, [prompt(16) for _ in range(count)], arguments.tokens))
        for count, found in rates.items():
            ratio = statistics.median(one / alone for one, alone in zip(found, rates[1], strict=True))
            spread = f"{min(found):.1f}-{max(found):.1f}"
            print(f"{count} streams: {statistics.median(found):.1f} tokens/s ({spread}), {ratio:.2f} x one")
        alone_s, beside_s = [], []
        for _ in range(arguments.rounds):
            usual, slowed, took_s = gaps(llm, prompt(50), prompt(arguments.prompt))
            start = time.perf_counter()
            llm.generate(prompt(arguments.prompt), GREEDY, max_tokens=1, stop_tokens=())
            alone_s.append(time.perf_counter() - start)
            beside_s.append(took_s)
            times = [gap / statistics.median(usual) for gap in slowed]
            print(f"between tokens beside a prompt of {arguments.prompt}: mean {statistics.mean(times):.2f}, median "
                  f"{statistics.median(times):.2f}, 95 % {np.quantile(times, 0.95):.2f}, most {max(times):.2f} times "
                  f"{statistics.median(usual) * 1000:.1f} ms; the prompt took {took_s:.1f} s")  # fmt: skip
        print(
            f"the prompt alone {statistics.median(alone_s):.1f} s, beside a stream {statistics.median(beside_s):.1f} s"
        )


if __name__ == "__main__":
    main()
