"""What forgetting guesses costs a sequence: a feed of several tokens, a rewind to behind the first, the next token.

    python tests/benchmarks/bench_rollback.py FOLDER --device cuda [--guesses 3] [--prompt 512] [--rounds 20]

Medians in ms, of the wall and, for a busy machine, of the CPU in brackets, on the engine itself: a step; the same
behind a prompt, where states are kept; the guesses with the token before them, the best behind each; the rewind; and
the step behind it, which feeds again what the rewind has left.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np

from embedllm.backends.base import FeedsAll, FeedsRows, WarmsUp
from embedllm.backends.devices.registry import devices, open_engine
from embedllm.package.package import open_package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--device", default="cpu")
    for name, usual in (("guesses", 3), ("prompt", 512), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    engine = open_engine(open_package(options.folder), next(d for d in devices() if d.name == options.device))
    if isinstance(engine, WarmsUp):
        engine.warm_up()
    random, times = np.random.default_rng(1), defaultdict(list)
    session = engine.open(options.prompt + 200)
    assert isinstance(session, FeedsAll)

    def tokens(count: int) -> list[int]:
        return random.integers(3, 300, count).tolist()

    def guess(tokens: Sequence[int]) -> None:
        """As a request verifies drafts: the best token behind each."""
        if isinstance(session, FeedsRows):
            for row in session.feed_rows(tokens):
                row.top(1)
        else:
            session.feed_all(tokens).argmax(axis=1)

    def timed(name: str, work: Callable[[], object]) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        work()
        times[name].append((1000 * (time.perf_counter() - started), 1000 * (time.process_time() - cpu)))

    for _ in range(options.rounds):
        session.rewind(0)
        timed("prompt", lambda: session.feed(tokens(options.prompt)).top(1))
        timed("first step", lambda: session.feed(tokens(1)).top(1))
        for _ in range(8):
            timed("step", lambda: session.feed(tokens(1)).top(1))
        timed("guesses", lambda: guess(tokens(1 + options.guesses)))
        timed("rewind", lambda: session.rewind(session.position - options.guesses))
        timed("step behind it", lambda: session.feed(tokens(1)).top(1))
    print(f"{engine.device.backend}, {engine.device.description}, {options.guesses} guesses")
    for name, found in times.items():
        wall, cpu = np.median(found, axis=0)
        print(f"{name:>15}: {wall:8.3f} ({cpu:8.3f})")
    session.close()
    engine.close()


if __name__ == "__main__":
    main()
