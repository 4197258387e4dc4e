"""Mixtures in the shapes that people run, cut to a few layers: how graphs of one folder load, prefill and decode.

    python -m tests.benchmarks.bench_mixture_shapes qwen3.5-35b-a3b --layers 4 --graphs qmoe-float32,openvino --rounds 3

Weights are random: speed does not depend on their values, memory neither. Every measurement is a process of its own,
which loads one graph; graphs take turns. Times are of the CPU, for a busy machine, and of the wall in brackets:
loading, the median of three prompts, and of 24 steps behind them. Memory is the most that was resident.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
from numpy.typing import NDArray

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.options import RuntimeOptions
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.graphs import write_variant
from embedllm.package.graph_variants import FLOAT32, OPENVINO
from embedllm.package.package import open_package
from tests.support.described import described_package

SHAPES: dict[str, dict[str, object]] = {
    "qwen3.5-35b-a3b": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "tie_word_embeddings": False, "vocab_size": 248320,
    },
    "gemma-4-26b-a4b": {
        "model_type": "gemma4_text", "hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
        "intermediate_size": 2112, "moe_intermediate_size": 704, "enable_moe_block": True, "num_experts": 128,
        "top_k_experts": 8, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "sliding_window": 1024,
        "tie_word_embeddings": True, "vocab_size": 262144,
    },
}  # fmt: skip
COMMON = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-6}
POOL = 1 << 24  # random numbers, read from another place for each piece
STEPS, PROMPTS = 24, 3


class PooledSource:
    """Normal values for every tensor that is asked for, without the memory of a whole model."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._pool = self._random.standard_normal(POOL, dtype=np.float32) * np.float32(0.02)
        self._shapes: dict[str, tuple[int, ...]] = {}

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self._shapes[name] = shape

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        shape = stop - start, *self._shapes[name][1:]
        places = np.arange(np.prod(shape)) + self._random.integers(POOL)
        values = np.take(self._pool, places, mode="wrap").reshape(shape)
        return values + np.float32(1) if "norm" in name else values


def write(folder: Path, options: argparse.Namespace) -> None:
    config = SHAPES[options.shape] | COMMON | {"num_hidden_layers": options.layers}
    if options.vocabulary:
        config["vocab_size"] = options.vocabulary
    recipe = Recipe(method="nearest", bits=4)
    described_package(folder, describe(Config(config), None), recipe, variant=FLOAT32.name, source=PooledSource())
    for variant in options.graphs.split(","):
        if variant != FLOAT32.name:
            write_variant(folder, variant)
    print(f"{options.shape}, {options.layers} layers, {(folder / 'weights.safetensors').stat().st_size / 1e9:.2f} GB")


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Of the CPU and of the wall."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - cpu, time.perf_counter() - started


def measure(folder: Path, variant: str, threads: int) -> str:
    from tests.support.openings import device  # OpenVINO, which those who take the shapes alone may not have

    package, family = open_package(folder), "openvino" if variant == OPENVINO else "cpu"
    options, variants = RuntimeOptions(threads=threads), {family: [variant]}
    opened = []
    load = seconds(lambda: opened.append(open_engine(package, device(family), runtime=options, variants=variants)))
    session, parts = opened[0].open(), [f"load {load[0]:.2f} s ({load[1]:.2f})"]
    random = np.random.default_rng(1)
    for count in (128, 512):
        tokens = random.integers(0, package.decoder.vocabulary, count).tolist()
        times = []
        for _ in range(PROMPTS):
            session.rewind(0)
            times.append(seconds(lambda tokens=tokens: session.feed(tokens)))
        cpu, wall = np.median(times, axis=0)
        parts.append(f"prompt of {count} {cpu:.3f} s ({wall:.3f})")
    cpu, wall = np.median([seconds(lambda: session.feed([7])) for _ in range(STEPS)], axis=0) * 1000
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    most = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return ", ".join([*parts, f"step {cpu:.1f} ms ({wall:.1f})", f"{most / 1e6:.2f} GB"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    for name, usual in (("layers", 4), ("rounds", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--graphs", default="generic-float32,qmoe-float32,openvino", help="variants, in turns")
    parser.add_argument("--vocabulary", type=int, help="another number of tokens, to weigh the layers alone")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the processes that measure
    options = parser.parse_args()
    if options.folder is not None:
        print(f"{options.graphs:16} {measure(options.folder, options.graphs, options.threads)}", flush=True)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "package"
        write(folder, options)
        for _ in range(options.rounds):
            for variant in options.graphs.split(","):
                call = [sys.executable, __file__, options.shape, "--graphs", variant, "--folder", str(folder)]
                subprocess.run([*call, "--threads", str(options.threads)], check=True)


if __name__ == "__main__":
    main()
