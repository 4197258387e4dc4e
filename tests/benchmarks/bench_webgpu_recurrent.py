"""Captured steps of a recurrent model on WebGPU beside steps launched kernel by kernel, in one process and in turns.

    python -m tests.benchmarks.bench_webgpu_recurrent [FOLDER] [--rounds 5] [--tokens 96] [--seconds 80]
    python -m tests.benchmarks.bench_webgpu_recurrent [FOLDER] --sequences 2 4 8 16

Without FOLDER: random weights in the shape of Qwen 3.5 0.8B (make_hybrid.py). On the engine itself, medians, least and
most of the rounds: greedy steps behind a prompt of 64 tokens; steps whose rows of logits come over; the first token of
a prompt of 512; the first step behind it, for which states are kept; and a step behind a rewind of two tokens. Each is
done with captured steps, with one step ahead at most, and kernel by kernel. Ends before the time is over.

With --sequences: that many sequences, each behind a prompt of 64 tokens or fewer, that step together, and in turns,
each one token; the best token of each row, and rows that come over; tokens a second of all. FOLDER may be of any model.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np

from embedllm.backends.base import BatchRow
from embedllm.backends.gpu import webgpu_devices, webgpu_states
from embedllm.backends.gpu.webgpu import WebGpuEngine
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.graph_variants import WEBGPU_FLOAT16
from embedllm.package.package import Package, open_package
from tests.benchmarks.bench_mixture_shapes import COMMON, PooledSource
from tests.benchmarks.make_hybrid import SHAPES
from tests.support.described import described_package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedllm.backends.base import Session
    from embedllm.types import Logits

SHORT, LONG = 64, 512  # tokens of the prompts
FEWEST_PLACES = 3  # of states: a step ahead and no more
Times = dict[str, list[float]]


def loaded(package: Package, *, capture: bool | None, places: int = webgpu_states.PLACES) -> WebGpuEngine:
    graph, device = package.graph(WEBGPU_FLOAT16.name), webgpu_devices.devices()[0]
    if graph is None or not device.available:
        sys.exit(f"no {WEBGPU_FLOAT16.name} graph" if graph is None else f"no WebGPU: {device.reason}")
    webgpu_states.PLACES = places
    start = time.perf_counter()
    engine = WebGpuEngine(package, graph, device, capture=capture)
    print(
        f"{device.description}: loaded in {time.perf_counter() - start:.1f} s, captured: {engine.captures}", flush=True
    )
    return engine


def greedy(session: Session, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The tokens, and milliseconds of each but those behind the prompt that nothing runs ahead of yet."""
    found, start = [int(session.feed(prompt).top(1).tokens[0])], 0.0
    for at in range(count):
        if at == count // 4:
            start = time.perf_counter()
        found.append(int(session.feed(found[-1:]).top(1).tokens[0]))
    return found, 1000 * (time.perf_counter() - start) / (count - count // 4)


def measure(engine: WebGpuEngine, places: int, numbers: np.random.Generator, count: int, times: Times) -> list[int]:
    """One round; returns its greedy tokens."""

    def tokens(length: int) -> list[int]:
        return numbers.integers(3, 300, length).tolist()

    def timed(name: str, fed: list[int]) -> None:
        start = time.perf_counter()
        session.feed(fed).top(1)
        times[name].append(1000 * (time.perf_counter() - start))

    webgpu_states.PLACES = places
    session = engine.open(LONG + 2 * count)
    found, each = greedy(session, tokens(SHORT), count)
    times["greedy step"].append(each)
    start = time.perf_counter()
    for token in tokens(count // 4):
        logits = session.feed([token])
        logits.values([logits.size - 1])  # which the GPU has listed in no case: the row comes over
    times["step with its row"].append(4000 * (time.perf_counter() - start) / count)
    session.rewind(0)
    timed(f"prompt of {LONG}", tokens(LONG))
    timed("first step behind it", tokens(1))
    for _ in range(4):
        session.feed(tokens(1)).top(1)
    session.rewind(session.position - 2)
    timed("step behind a rewind", tokens(1))
    session.close()
    return found


def compare_batches(engine: WebGpuEngine, options: argparse.Namespace) -> None:
    if engine.batches is None:
        sys.exit("its sequences do not step together: a mixture, or no captured steps")
    engine.batches.paces = None  # not by the clock
    for count in options.sequences:
        rates: dict[tuple[str, str], list[float]] = defaultdict(list)
        for at in range(-1, options.rounds):  # the first round warms up, and has batches made
            found = one_round(engine, count, options.tokens, np.random.default_rng(at + 9))
            for key, rate in found.items() if at >= 0 else ():
                rates[key].append(rate)
        for (what, way), found in rates.items():
            ratio = np.median(found) / np.median(rates[what, "in turns"])
            print(f"{count:>3} sequences, {what:>11}, {way}: {np.median(found):8.1f} tokens/s "
                  f"({min(found):.1f}-{max(found):.1f}), {ratio:.2f}", flush=True)  # fmt: skip


def one_round(
    engine: WebGpuEngine, count: int, turns: int, numbers: np.random.Generator
) -> dict[tuple[str, str], float]:
    """Tokens a second of that many sequences."""
    sessions = [engine.open(SHORT + 4 * turns) for _ in range(count)]
    latest = [session.feed(numbers.integers(3, 300, SHORT - place).tolist()) for place, session in enumerate(sessions)]
    tokens = [int(logits.top(1).tokens[0]) for logits in latest]
    rates: dict[tuple[str, str], float] = {}
    for what, needs_row in (("best tokens", False), ("rows", True)):
        for way, step in (("together", engine.run_batch), ("in turns", in_turns)):
            start = 0.0
            for turn in range(turns):
                if turn == turns // 4:  # behind that a change of the way has been paid for
                    start = time.perf_counter()
                found = step([BatchRow(one, [token]) for one, token in zip(sessions, tokens, strict=True)])
                if needs_row:
                    for logits in found:
                        logits.values([logits.size - 1])
                tokens = [int(logits.top(1).tokens[0]) for logits in found]
            rates[what, way] = count * (turns - turns // 4) / (time.perf_counter() - start)
    for session in sessions:
        session.close()
    return rates


def in_turns(rows: Sequence[BatchRow]) -> list[Logits]:
    return [row.session.feed(row.tokens) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    for name, usual in (("rounds", 5), ("tokens", 96), ("seconds", 80), ("layers", 24), ("vocabulary", 248320)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--sequences", type=int, nargs="+")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        package = open_package(options.folder or made(Path(work), options.layers, options.vocabulary))
        if options.sequences:
            engine = loaded(package, capture=None)
            compare_batches(engine, options)
            engine.close()
            return
        engines = {
            "captured": (loaded(package, capture=None), webgpu_states.PLACES),
            "captured, one ahead": (loaded(package, capture=None, places=FEWEST_PLACES), FEWEST_PLACES),
            "kernel by kernel": (loaded(package, capture=False), webgpu_states.PLACES),
        }
        times: dict[str, Times] = {name: defaultdict(list) for name in engines}
        for at in range(-1, options.rounds):
            started, replies = time.monotonic(), []
            for name, (engine, places) in engines.items():
                into = times[name] if at >= 0 else defaultdict(list)  # the first round warms up
                replies.append(measure(engine, places, np.random.default_rng(at + 9), options.tokens, into))
            same = [sum(a == b for a, b in zip(reply, replies[-1], strict=True)) for reply in replies]
            print(f"round {at}: greedy tokens equal to those kernel by kernel: {same} of {len(replies[0])}", flush=True)
            if time.monotonic() - begun + (time.monotonic() - started) > options.seconds:
                break
        report(times)
        for engine, _ in engines.values():
            engine.close()


def made(folder: Path, layers: int, vocabulary: int) -> Path:
    config = SHAPES["qwen3.5-0.8b"] | COMMON | {"num_hidden_layers": layers, "vocab_size": vocabulary}
    return described_package(folder / "package", describe(Config(config), None), Recipe(method="nearest"),
                             variant=WEBGPU_FLOAT16.name, source=PooledSource())  # fmt: skip


def report(times: dict[str, Times]) -> None:
    plain = times["kernel by kernel"]
    for name, found in times.items():
        for what, values in found.items():
            ratio = np.median(plain[what]) / np.median(values)
            print(f"{name:>20} {what:>24}: {np.median(values):8.2f} ms ({min(values):.2f}-{max(values):.2f}), "
                  f"{ratio:.2f} times as fast")  # fmt: skip


if __name__ == "__main__":
    main()
