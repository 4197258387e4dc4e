"""A layer of a mixture on the CPU, expert by expert and as one operator (QMoE), interleaved; and how both load.

    python -m tests.benchmarks.bench_qmoe --experts 64 --used 8 --hidden 1024 --inner 512

A layer is the difference of a model of three layers and one of one layer, by two: the last layer of a model computes
the last position only, so that a model of one layer says nothing of a prompt. Attention is part of it. Both graphs are
of one folder, over the same weights: 4 bits in groups of 32. Medians in milliseconds of the wall, and of the CPU for a
busy machine. Loading: of the three layers, in seconds of the CPU, three times.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from embedllm.backends.base import Engine
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.options import RuntimeOptions
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.graphs import write_variant
from embedllm.package.graph_variants import FLOAT32, QMOE
from embedllm.package.package import open_package
from tests.support.described import described_package
from tests.support.openings import device
from tests.support.tiny import tiny_config

VOCABULARY = 307
ROUNDS = {1: 25, 8: 9, 128: 5}  # by tokens at once
LAYERS = (1, 3)  # of the models whose difference is measured
VARIANTS = (FLOAT32.name, QMOE.name)
LOADS = 3


def package(options: argparse.Namespace, layers: int, folder: Path) -> Path:
    config = tiny_config("qwen3", hidden_size=options.hidden, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                         num_hidden_layers=layers, vocab_size=VOCABULARY, max_position_embeddings=4096)  # fmt: skip
    config |= {"model_type": "qwen3_moe", "moe_intermediate_size": options.inner, "num_experts": options.experts,
               "num_experts_per_tok": options.used, "norm_topk_prob": True, "decoder_sparse_step": 1,
               "mlp_only_layers": []}  # fmt: skip
    recipe = Recipe(method="nearest", bits=4, symmetric=not options.zero_points)
    described_package(folder, describe(Config(config), None), recipe, variant=FLOAT32.name)
    write_variant(folder, QMOE.name)
    return folder


def engine(folder: Path, variant: str, threads: int) -> Engine:
    cpu = device("cpu")
    return open_engine(open_package(folder), cpu, runtime=RuntimeOptions(threads=threads), variants={"cpu": [variant]})


def seconds(work: Callable[[], object]) -> NDArray[np.float64]:
    """Of the wall and of the CPU."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - started, time.process_time() - cpu])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("experts", 64), ("used", 8), ("hidden", 1024), ("inner", 512), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--zero-points", action="store_true")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    print(f"onnxruntime {ort.__version__}, {platform.machine()}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as place:
        folders = {layers: package(options, layers, Path(place) / str(layers)) for layers in LAYERS}
        for _ in range(LOADS):
            for variant in VARIANTS:
                cpu = seconds(lambda variant=variant: engine(folders[LAYERS[-1]], variant, options.threads).close())[1]
                print(f"load         {variant:16} {cpu:8.2f} s")
        sessions = {(variant, layers): engine(folder, variant, options.threads).open()
                    for variant in VARIANTS for layers, folder in folders.items()}  # fmt: skip
        for tokens, rounds in ROUNDS.items():
            found: dict[tuple[str, int], list[NDArray[np.float64]]] = {key: [] for key in sessions}
            for _ in range(rounds):
                ids = random.integers(0, VOCABULARY, tokens).tolist()
                for key, session in sessions.items():
                    found[key].append(seconds(partial(session.feed, ids)))
            medians = {key: np.median(times, axis=0) * 1000 for key, times in found.items()}
            least, most = LAYERS
            for variant in VARIANTS:
                wall, cpu = (medians[variant, most] - medians[variant, least]) / (most - least)
                print(f"{tokens:4} tokens  {variant:16} {wall:8.2f} {cpu:8.2f} ms")


if __name__ == "__main__":
    main()
