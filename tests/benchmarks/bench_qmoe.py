"""A layer of a mixture in our graph beside ONNX Runtime's QMoE operator alone, on the CPU, interleaved.

    python tests/benchmarks/bench_qmoe.py --experts 64 --used 8 --hidden 1024 --inner 512

Ours is the difference of a model of three layers and one of one layer, by two: the last layer of a model computes the
last position only, so that a model of one layer says nothing of a prompt. Attention is part of it; with as many
experts as are used it shows what the others cost. QMoE: random integers, 4 bits in groups of 32 with zero points, gate
and up in turns, with float and with 8-bit activations. Medians in milliseconds of the wall, and of the CPU for a busy
machine.
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
from onnx import TensorProto, helper, numpy_helper

from embedllm.backends.base import Session
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.options import RuntimeOptions
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.package import open_package
from tests.support.described import described_package
from tests.support.openings import device
from tests.support.tiny import tiny_config

VOCABULARY = 307
ROUNDS = {1: 25, 8: 9, 128: 5}  # by tokens at once
LAYERS = (1, 3)  # of the models whose difference is measured


def operator(options: argparse.Namespace, accuracy_level: int) -> ort.InferenceSession:
    random = np.random.default_rng(0)
    hidden, inner, experts = options.hidden, options.inner, options.experts

    def matrix(name: str, rows: int, columns: int) -> list[TensorProto]:
        integers = random.integers(0, 256, (experts, rows, columns // 2), dtype=np.uint8)
        scales = (random.random((experts, rows, columns // 32)) * 0.002).astype(np.float32)
        zeros = random.integers(0, 256, (experts, rows, -(-columns // 64)), dtype=np.uint8)
        arrays = {name: integers, f"{name}.scale": scales, f"{name}.zero": zeros}
        return [numpy_helper.from_array(array, name) for name, array in arrays.items()]

    first, second = matrix("first", 2 * inner, hidden), matrix("second", hidden, inner)
    node = helper.make_node(
        "QMoE", ["x", "scores", "first", "first.scale", "", "second", "second.scale", "", "", "", "",
                 "first.zero", "second.zero"], ["y"], domain="com.microsoft",
        k=options.used, activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0,
        expert_weight_bits=4, block_size=32, normalize_routing_weights=1, accuracy_level=accuracy_level,
        weights_prepacked=0,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "qmoe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", hidden]),
         helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["tokens", experts])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", hidden])],
        [*first, *second],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = options.threads
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def ours(options: argparse.Namespace, experts: int, layers: int, folder: Path) -> Session:
    config = tiny_config("qwen3", hidden_size=options.hidden, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                         num_hidden_layers=layers, vocab_size=VOCABULARY, max_position_embeddings=4096)  # fmt: skip
    config |= {"model_type": "qwen3_moe", "moe_intermediate_size": options.inner, "num_experts": experts,
               "num_experts_per_tok": options.used, "norm_topk_prob": True, "decoder_sparse_step": 1,
               "mlp_only_layers": []}  # fmt: skip
    decoder = describe(Config(config), None)
    described_package(folder, decoder, Recipe(method="nearest"), variant="generic-float32")
    return open_engine(open_package(folder), device("cpu"), runtime=RuntimeOptions(threads=options.threads)).open()


def seconds(work: Callable[[], object]) -> NDArray[np.float64]:
    """Of the wall and of the CPU."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - started, time.process_time() - cpu])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("experts", 64), ("used", 8), ("hidden", 1024), ("inner", 512), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    print(f"onnxruntime {ort.__version__}, {platform.machine()}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as place:
        runs = {f"QMoE, {name} activations": operator(options, level) for name, level in (("float", 0), ("8-bit", 4))}
        counts = (options.experts, options.used)
        sessions = {(count, layers): ours(options, count, layers, Path(place) / f"{count}-{layers}")
                    for count in counts for layers in LAYERS}  # fmt: skip
        for tokens, rounds in ROUNDS.items():
            found: dict[object, list[NDArray[np.float64]]] = {name: [] for name in (*runs, *sessions)}
            for _ in range(rounds):
                x, scores = (random.standard_normal((tokens, n)).astype(np.float32)
                             for n in (options.hidden, options.experts))  # fmt: skip
                for name, run in runs.items():
                    found[name].append(seconds(partial(run.run, None, {"x": x, "scores": scores})))
                ids = random.integers(0, VOCABULARY, tokens).tolist()
                for key, session in sessions.items():
                    found[key].append(seconds(partial(session.feed, ids)))
            medians = {name: np.median(times, axis=0) * 1000 for name, times in found.items()}
            least, most = LAYERS
            layer = {f"our layer, {n} experts": (medians[n, most] - medians[n, least]) / (most - least) for n in counts}
            for name, (wall, cpu) in {**{name: medians[name] for name in runs}, **layer}.items():
                print(f"{tokens:4} tokens  {name:28} {wall:8.2f} {cpu:8.2f}")


if __name__ == "__main__":
    main()
