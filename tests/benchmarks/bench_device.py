"""What one device does with a folder, step by step: prefill, decode, and what the sampler adds.

    python tests/benchmarks/bench_device.py FOLDER DEVICE [--prompt 512] [--tokens 256] [--rounds 5]

Feeds sessions directly: "feed" is a step whose logits come to the host, "greedy" asks them for the best token and the
logsumexp, as generating does. For "cuda" also without CUDA graphs, interleaved.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np

from embedllm.backends.base import Engine
from embedllm.backends.devices import registry
from embedllm.loading.resolve import package_folder
from embedllm.package.package import open_package


def measure(engine: Engine, prompt: list[int], count: int) -> dict[str, float]:
    """Tokens per second, on a session that has run before."""
    session = engine.open(len(prompt) + 2 * count + 8)
    session.feed(prompt)
    session.rewind(0)
    start = time.perf_counter()
    session.feed(prompt)
    found = {"prefill": len(prompt) / (time.perf_counter() - start)}
    for token in prompt[:3]:  # a step is captured with its first runs
        session.feed([token])
    start = time.perf_counter()
    for token in range(3, 3 + count):
        session.feed([token])
    found["feed"] = count / (time.perf_counter() - start)
    session.rewind(len(prompt))
    start = time.perf_counter()
    for token in range(3, 3 + count):
        logits = session.feed([token])
        logits.top(1)
        logits.logsumexp()
    found["greedy"] = count / (time.perf_counter() - start)
    session.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("device")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    package = open_package(package_folder(options.folder))
    device = next(d for d in registry.devices_for(package, [options.device]) if d.name == options.device)
    engines: dict[str, Engine] = {options.device: registry.open_engine(package, device)}
    graph = package.graph("generic-float16")
    if options.device.startswith("cuda") and graph is not None:
        from embedllm.backends.gpu.cuda import CudaEngine

        engines[f"{options.device}, no capture"] = CudaEngine(package, graph, device, capture=False)
    prompt = np.random.default_rng(0).integers(3, package.decoder.vocabulary, options.prompt).tolist()
    found = [{name: measure(engine, prompt, options.tokens) for name, engine in engines.items()}
             for _ in range(options.rounds)]  # fmt: skip
    where = f"{package.name}, {device.backend}, {device.description}, {platform.machine()}, {os.cpu_count()} CPUs"
    what = f"prompt {options.prompt}, {options.tokens} steps, tokens/s, median (least-most) of {options.rounds}"
    print(f"{where}; {what}")
    for name in engines:
        cells = []
        for what in found[0][name]:
            speeds = sorted(rounds[name][what] for rounds in found)
            cells.append(f"{what} {statistics.median(speeds):.0f} ({speeds[0]:.0f}-{speeds[-1]:.0f})")
        print(f"{name:20s} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
