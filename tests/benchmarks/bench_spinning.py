"""Steps on the CPU by how long ONNX Runtime's threads spin before they sleep, on an idle machine and beside busy ones.

    python tests/benchmarks/bench_spinning.py [FOLDER] [--us 10 20 40 80] [--busy 1] [--steps 100] [--rounds 9]

FOLDER is an export; the demo by default. One session a setting, all open at once, each round runs every one on a fresh
random prompt of 128 tokens. "off": threads sleep at once; "on": ONNX Runtime's own millisecond. --busy: that many other
processes compute meanwhile. Prints the median step (least-most), its speed as a median of ratios to "off" of the same
round, the CPU time that it took, and the prompt.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from embedllm.backends.options import RuntimeOptions
from embedllm.backends.ort import engine as ort_engine
from embedllm.backends.ort.engine import OrtEngine, devices
from embedllm.loading.resolve import package_folder
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import Package, open_package

_BUSY = "while True: pass"


def opened(package: Package, setting: str) -> OrtEngine:
    """setting: "off", "on", or microseconds."""
    graph = package.graph(FLOAT32.name)
    assert graph is not None
    with ExitStack() as stack:
        if setting == "off":
            stack.enter_context(patch.object(ort_engine, "_is_old", lambda _: True))
        elif setting != "on":
            stack.enter_context(patch.object(ort_engine, "_SPIN_US", setting))
        return OrtEngine(package, graph, devices()[0], runtime=RuntimeOptions(spinning=setting == "on"))


def step(engine: OrtEngine, prompt: list[int], steps: int) -> tuple[float, float, float]:
    """Milliseconds: a step, its CPU time, the prompt."""
    session = engine.open(len(prompt) + steps + 1)
    start = time.perf_counter()
    token = session.feed(prompt).top(1).tokens[0]
    read = time.perf_counter() - start
    start, computed = time.perf_counter(), time.process_time()
    for _ in range(steps):
        token = session.feed([token]).top(1).tokens[0]
    seconds, computed = time.perf_counter() - start, time.process_time() - computed
    session.close()
    return 1000 * seconds / steps, 1000 * computed / steps, 1000 * read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="demo")
    parser.add_argument("--us", nargs="+", default=["10", "20", "40", "80"])
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    package = open_package(Path(package_folder(options.folder)))
    engines = {setting: opened(package, setting) for setting in ("off", "on", *options.us)}
    found: dict[str, list[tuple[float, float, float]]] = {setting: [] for setting in engines}
    numbers = random.Random(0)
    others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(options.busy)]
    try:
        for number in range(-1, options.rounds):
            for setting, engine in engines.items():
                prompt = [numbers.randrange(3, package.decoder.vocabulary - 3) for _ in range(128)]
                one = step(engine, prompt, options.steps)
                if number >= 0:
                    found[setting].append(one)
    finally:
        for process in others:
            process.kill()
    for setting, ones in found.items():
        steps, computed, read = zip(*ones, strict=True)
        speed = statistics.median(off[0] / mine for off, mine in zip(found["off"], steps, strict=True))
        print(f"{setting:>4} {statistics.median(steps):8.2f} ms a step ({min(steps):.2f}-{max(steps):.2f}), "
              f"{speed:.2f} of the speed of off, {statistics.median(computed):.2f} ms of CPU time, "
              f"prompt {statistics.median(read):.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
