"""Load, prefill and decode against onnxruntime-genai, interleaved in one run.

    python tests/benchmarks/make_checkpoint.py /tmp/q06
    embedllm export /tmp/q06 /tmp/q06-g32
    python tests/benchmarks/bench_generate.py /tmp/q06-g32 [--genai FOLDER ...] [--rounds 7] ...

Each round runs every engine once, in turn, in the same process: prompt of random ids, then greedy decoding through the
public API of each. Prints medians, the spread, and ratios to onnxruntime-genai on the same folder. --genai adds folders
made by its own builder. Other work on the machine makes single figures drift; ratios of one run are what to quote.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np
import onnxruntime

import embedllm
from embedllm.backends.threads import compute_threads

og: Any = importlib.import_module("onnxruntime_genai")  # it has no type information
Times = tuple[float, float]  # seconds of the prefill, seconds per decoded token


@dataclass
class Engine:
    name: str
    run: Callable[[list[int], int], Times]
    prefill_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)


def ours(folder: str, **options: bool | int) -> Callable[[list[int], int], Times]:
    llm = embedllm.load(folder, **options)  # type: ignore[arg-type]  # exact or threads

    def run(prompt: list[int], count: int) -> Times:
        # another first token each time: the cache of the last call must not help
        reply = llm.generate(prompt, embedllm.Sampling(temperature=0), max_tokens=count, stop_tokens=())
        assert reply.statistics.cached_tokens == 0
        return reply.statistics.prefill_s, reply.statistics.decode_s / (count - 1)

    return run


def genai(folder: str, threads: int = 0) -> Callable[[list[int], int], Times]:
    """threads: 0 leaves the choice to onnxruntime-genai."""
    config = og.Config(folder)
    if threads:
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = og.Model(config)

    def run(prompt: list[int], count: int) -> Times:
        parameters = og.GeneratorParams(model)
        length = len(prompt) + count
        parameters.set_search_options(do_sample=False, max_length=length, min_length=length)
        generator = og.Generator(model, parameters)
        start = time.perf_counter()
        generator.append_tokens(prompt)
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(count - 1):
            generator.generate_next_token()
        return first - start, (time.perf_counter() - first) / (count - 1)

    return run


def load_seconds(folder: str) -> list[float]:
    """In fresh processes, the files warm: from the call of load() to a model that is ready."""
    code = (
        "import sys, time, embedllm; start = time.perf_counter(); "
        "embedllm.load(sys.argv[1]); print(time.perf_counter() - start)"
    )
    times = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
        times.append(float(done.stdout))
    return times


def row(engine: Engine, base: Engine, prompt: int) -> str:
    cells = [f"{engine.name:42s}"]
    for what, mine, theirs, count in (
        ("prefill", engine.prefill_s, base.prefill_s, prompt),
        ("decode", engine.decode_s, base.decode_s, 1),
    ):
        speeds = sorted(count / seconds for seconds in mine)
        ratio = statistics.median(b / e for b, e in zip(theirs, mine, strict=True))
        cells.append(
            f"{what} {statistics.median(speeds):7.1f} ({speeds[0]:.1f}-{speeds[-1]:.1f}) tokens/s x{ratio:.2f}"
        )
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--genai", nargs="*", default=[], help="folders made by onnxruntime-genai's builder")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    threads = compute_threads() or os.cpu_count() or 1
    engines = [
        Engine("embedllm", ours(options.folder)),
        Engine("embedllm, exact", ours(options.folder, exact=True)),
        Engine("onnxruntime-genai, same folder", genai(options.folder)),
        Engine(f"onnxruntime-genai, same folder, {threads} threads", genai(options.folder, threads)),
        *(Engine(f"onnxruntime-genai, {Path(folder).name}", genai(folder)) for folder in options.genai),
    ]
    random = np.random.default_rng(0)
    for engine in engines:
        engine.run(random.integers(3, 16000, 32).tolist(), 4)
    for _ in range(options.rounds):
        prompt = random.integers(3, 16000, options.prompt).tolist()
        for engine in engines:
            prefill_s, decode_s = engine.run(prompt, options.tokens)
            engine.prefill_s.append(prefill_s)
            engine.decode_s.append(decode_s)
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, "
        f"onnxruntime {onnxruntime.__version__}, onnxruntime-genai {og.__version__}, embedllm {embedllm.__version__}; "
        f"prompt {options.prompt}, {options.tokens} new, median (least-most) of {options.rounds}"
    )
    for engine in engines:
        print(row(engine, engines[2], options.prompt))
    loads = load_seconds(options.folder)
    print(f"load, warm, fresh processes: {statistics.median(loads):.2f} s ({min(loads):.2f}-{max(loads):.2f})")


if __name__ == "__main__":
    main()
