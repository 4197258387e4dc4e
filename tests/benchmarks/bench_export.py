"""Export time and peak memory against onnxruntime-genai's model builder, interleaved.

    python tests/benchmarks/make_checkpoint.py /tmp/q06
    python tests/benchmarks/bench_export.py /tmp/q06 /tmp/bench-export [--rounds 3]

Each export is a process of its own; wall time, CPU time and peak resident memory are what the kernel accounts to it.
The folders stay under the second argument, for `embedllm bench`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import time
from pathlib import Path


def measured(command: list[str], log: Path) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds, peak resident MB) of a command."""
    start = time.perf_counter()
    with log.open("wb") as file:
        child = os.posix_spawn(command[0], command, os.environ, file_actions=[
            (os.POSIX_SPAWN_DUP2, file.fileno(), 1), (os.POSIX_SPAWN_DUP2, file.fileno(), 2)])  # fmt: skip
        _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed; see {log}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    mine, theirs = options.out / "embedllm", options.out / "genai-builder"
    python = sys.executable
    export = [python, "-m", "embedllm", "export", str(options.checkpoint), str(mine), "--quiet"]
    commands = {  # the first and the last are of one method
        "embedllm, nearest scales": [*export, "--method", "nearest"],
        "embedllm, searched scales": export,
        "onnxruntime-genai builder": [
            python, "-m", "onnxruntime_genai.models.builder",
            "-m", str(options.checkpoint), "-i", str(options.checkpoint),
            "-o", str(theirs), "-p", "int4", "-e", "cpu", "-c", str(options.out / "cache"),
            "--extra_options", "int4_accuracy_level=4", "int4_block_size=32",
        ],
    }  # fmt: skip
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            for folder in (mine, theirs):
                if str(folder) in command:
                    shutil.rmtree(folder, ignore_errors=True)
            results[name].append(measured(command, options.out / "log.txt"))
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; median of {options.rounds}")
    for name, rows in results.items():
        wall, cpu, peak = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{name:28s} {wall:7.1f} s wall  {cpu:7.1f} s CPU  {peak:7.0f} MB peak")
    nearest, _, builder = results.values()
    ratios = [statistics.median(b[i] / a[i] for a, b in zip(nearest, builder, strict=True)) for i in range(3)]
    print(f"ratio: {ratios[0]:.1f} wall, {ratios[1]:.1f} CPU, {ratios[2]:.1f} memory")
    for folder in (mine, theirs):
        print(f"{folder.name}: {sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
