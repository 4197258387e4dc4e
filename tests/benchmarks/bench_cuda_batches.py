"""Steps of 1 to 64 sequences at once on an NVIDIA GPU, by the engine alone, and what first tokens cost.

    python tests/benchmarks/bench_cuda_batches.py FOLDER [--tokens 192] [--prompt 64] [--rounds 3]

One process, one thread: load and warm_up(), the first prompt after it; then, for each width, that many sequences with
prompts of random ids, decoded greedily by run_batch, with the best token of each row asked for: tokens/s in all, the
median of the rounds. Then a prompt of 64 to 2,048 tokens, alone and beside 32 sequences that decode, and a prefix of
2,000 tokens from stored KV.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from embedllm.backends.base import BatchRow
from embedllm.backends.gpu import cuda
from embedllm.backends.gpu.cuda import CudaEngine
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.package.package import open_package
from embedllm.types import Logits

WIDTHS = (1, 2, 4, 8, 9, 16, 17, 31, 32, 33, 64)


def timed(call: Callable[[], object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


class Bench:
    """An engine and random prompts for it."""

    def __init__(self, engine: CudaEngine) -> None:
        self.engine = engine
        self.numbers = random.Random(0)

    def prompt(self, length: int) -> list[int]:
        return [self.numbers.randrange(3, 16000) for _ in range(length)]

    def started(self, count: int, length: int) -> tuple[list[ResidentSession], list[Logits]]:
        sessions = [self.engine.open() for _ in range(count)]
        return sessions, [session.feed(self.prompt(length + at)) for at, session in enumerate(sessions)]

    def step(self, sessions: Sequence[ResidentSession], logits: Sequence[Logits]) -> Sequence[Logits]:
        tokens = [row.top(1).tokens[0] for row in logits]
        return self.engine.run_batch([BatchRow(one, [token]) for one, token in zip(sessions, tokens, strict=True)])

    def decode(self, width: int, prompt: int, tokens: int, *, listed: int = 0) -> float:
        """Tokens a second, of all. listed: of each row that many of the best tokens are asked for, as sampling does."""
        sessions, logits = self.started(width, prompt)
        for _ in range(4):  # until it runs ahead
            logits = self.step(sessions, logits)
        start = time.perf_counter()
        for _ in range(tokens):
            for row in logits if listed else ():
                row.top(listed)
            logits = self.step(sessions, logits)
        logits[0].top(1)
        seconds = time.perf_counter() - start
        for session in sessions:
            session.close()
        return width * tokens / seconds

    def first_token(self, length: int) -> float:
        prompt = self.prompt(length)
        start = time.perf_counter()
        session = self.engine.open(length)
        session.feed(prompt).top(1)
        found = 1000 * (time.perf_counter() - start)
        session.close()
        return found

    def beside(self, length: int) -> float:
        """Milliseconds that a piece of a prompt of that length adds to a step of 32."""
        sessions, logits = self.started(32, 64)
        times, start = {}, 0.0
        for has_piece in (False, True):
            for number in range(24):
                if number == 4:  # it runs ahead
                    start = time.perf_counter()
                logits = self.step(sessions, logits)
                if has_piece:
                    other = self.engine.open(length)
                    other.feed(self.prompt(length)).top(1)
                    other.close()
            logits[0].top(1)
            times[has_piece] = 1000 * (time.perf_counter() - start) / 20
        for session in sessions:
            session.close()
        return times[True] - times[False]

    def prefix(self, length: int) -> tuple[float, float, float, float]:
        """Milliseconds: cold, the copy out, the copy in, and the first token after it with 16 tokens more."""
        session, prompt, rest = self.engine.open(length + 32), self.prompt(length), self.prompt(16)
        cold = timed(lambda: session.feed(prompt + rest).top(1))
        spans = [(at, min(at + 64, length)) for at in range(0, length, 64)]
        states = []
        out = timed(lambda: (states.extend(session.export_stored(spans)), self.engine.memory.synchronize()))
        session.close()
        start = time.perf_counter()
        session = self.engine.open(length + 32)
        for state in states:
            session.import_state(state)
        into = 1000 * (time.perf_counter() - start)
        session.feed(rest).top(1)
        warm = 1000 * (time.perf_counter() - start)
        session.close()
        return cold, out, into, warm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    package = open_package(options.folder)
    graph = package.graph("generic-float16")
    assert graph is not None
    start = time.perf_counter()
    engine = CudaEngine(package, graph, cuda.devices()[0])
    print(f"{options.folder.name}: loaded in {time.perf_counter() - start:.2f} s, max_batch {engine.max_batch}")
    bench = Bench(engine)
    print(f"warm_up {timed(engine.warm_up):.0f} ms")
    print("first tokens after it, ms:", *(f"{bench.first_token(options.prompt + at):.1f}" for at in range(5)))
    alone = 0.0
    for width in WIDTHS:
        if width > engine.max_batch:
            break
        first = timed(lambda width=width: bench.decode(width, options.prompt, 1))
        speeds = [bench.decode(width, options.prompt, options.tokens) for _ in range(options.rounds)]
        speed = statistics.median(speeds)
        alone = alone or speed
        print(f"{width:3d} sequences {speed:8.0f} ({min(speeds):.0f}-{max(speeds):.0f}) tokens/s x{speed / alone:.1f}, "
              f"{1000 * width / speed:.2f} ms a step; the first time {first:.0f} ms", flush=True)  # fmt: skip
    for width in (1, 8, 32, 64):
        if width <= engine.max_batch:
            speed = bench.decode(width, options.prompt, options.tokens, listed=50)
            print(f"{width:3d} sequences, the 50 best of each: {speed:.0f} tokens/s", flush=True)
    for length in (64, 128, 256, 512, 1024, 2048):
        times = [bench.first_token(length) for _ in range(5)]
        more = bench.beside(length)
        print(f"prompt of {length:4d}: {statistics.median(times):.1f} ms ({min(times):.1f}-{max(times):.1f}); "
              f"beside steps of 32 {more:.1f}", flush=True)  # fmt: skip
    for _ in range(3):
        cold, out, into, warm = bench.prefix(2000)
        print(
            f"prefix of 2000: cold {cold:.1f} ms, out {out:.2f}, in {into:.2f}, first token with 16 more {warm:.2f} ms"
        )
    engine.close()


if __name__ == "__main__":
    main()
