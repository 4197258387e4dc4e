"""Measures what room for adapters costs, and what an adapter of each rank does: a step, a prompt, a switch.

    python tests/benchmarks/bench_lora.py FOLDER [--devices cpu,openvino] [--ranks 8,16,64] [--threads 1] [--rounds 8]

Adapters are random, of all matrices of the layers. Times are those of the processor, of all threads, which other
programs on the machine disturb less than those of a clock; with one thread they are how long a step takes. Interleaved;
the best of the rounds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from embedllm.backends.base import Session, TakesAdapters
from embedllm.backends.devices.registry import devices, open_engine
from embedllm.backends.options import RuntimeOptions
from embedllm.package.lora.adapter import Adapter
from embedllm.package.package import Package, open_package
from embedllm.package.tensors import linears

_PROMPT, _DECODED = 256, 16  # tokens


def random_adapter(package: Package, rank: int) -> Adapter:
    random = np.random.default_rng(rank)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32) * np.float32(0.02)

    matrices = [linear for layer in package.decoder.layers for linear in linears(layer)]
    factors = {matrix.name: (normal(matrix.columns, rank), normal(rank, matrix.rows)) for matrix in matrices}
    return Adapter(name=f"rank {rank}", sha256=str(rank), factors=factors)


def measured(session: Session) -> tuple[float, float]:
    """Seconds of a prompt, and of a step behind it."""
    session.rewind(0)
    start = time.process_time()
    session.feed(range(_PROMPT))
    read = time.process_time()
    for _ in range(_DECODED):
        session.feed([1])
    return read - start, (time.process_time() - read) / _DECODED


def run(package: Package, device_name: str, adapters: list[Adapter], *, threads: int, rounds: int) -> None:
    device = next(device for device in devices() if device.name == device_name)
    runtime = RuntimeOptions(threads=threads)
    plain = open_engine(package, device, runtime=runtime)
    adapting = open_engine(package, device, runtime=runtime, adapts=True)
    sessions = {"without room for adapters": plain.open(512), "with room, none chosen": adapting.open(512)}
    for adapter in adapters:
        session = sessions[f"{adapter.name}, {adapter.bytes / 1e6:.1f} MB"] = adapting.open(512)
        assert isinstance(session, TakesAdapters)
        start = time.process_time()
        session.adapt(adapter)
        print(f"{device_name}, {adapter.name}: switched to in {(time.process_time() - start) * 1e3:.2f} ms")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
    for _ in range(rounds):
        for name, session in sessions.items():
            times[name].append(measured(session))
    best = {name: tuple(min(one) for one in zip(*found, strict=True)) for name, found in times.items()}
    prompt_s, step_s = best["without room for adapters"]
    for name, (prompt, step) in best.items():
        print(
            f"{device_name}, {name}: step {step * 1e3:.2f} ms ({step / step_s - 1:+.1%}), "
            f"prompt of {_PROMPT} {prompt * 1e3:.0f} ms ({prompt / prompt_s - 1:+.1%})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", default="cpu,openvino")
    parser.add_argument("--ranks", default="8,16,64")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    package = open_package(given.folder)
    adapters = [random_adapter(package, int(rank)) for rank in given.ranks.split(",")]
    for name in given.devices.split(","):
        run(package, name, adapters, threads=given.threads, rounds=given.rounds)


if __name__ == "__main__":
    main()
