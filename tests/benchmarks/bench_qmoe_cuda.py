"""A mixture on CUDA, expert by expert and as one operator (QMoE): load, prompt and step.

    python -m tests.benchmarks.bench_qmoe_cuda --layers 3 --experts 128 --used 8 --hidden 2048 --inner 768

Random weights, both graphs of one folder: 4 bits in groups of 32. A step is that of a session, from the token to the
best one; the median of a hundred behind a prompt. The first prompt of an engine chooses kernels.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort

from embedllm.backends.devices.registry import open_engine
from embedllm.backends.gpu import cuda
from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.graphs import write_variant
from embedllm.package.graph_variants import FLOAT16, QMOE_FLOAT16
from embedllm.package.package import open_package
from tests.support.described import described_package
from tests.support.tiny import tiny_config

VOCABULARY = 307
STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual_values = (("layers", 3), ("experts", 128), ("used", 8), ("hidden", 2048), ("inner", 768), ("prompt", 512))
    for name, usual in usual_values:
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    random, device = np.random.default_rng(1), cuda.devices()[0]
    print(f"onnxruntime {ort.__version__}, {device.description}")
    config = tiny_config("qwen3", hidden_size=options.hidden, num_hidden_layers=options.layers, num_attention_heads=16,
                         num_key_value_heads=2, head_dim=128, vocab_size=VOCABULARY,
                         max_position_embeddings=4096)  # fmt: skip
    config |= {"model_type": "qwen3_moe", "moe_intermediate_size": options.inner, "num_experts": options.experts,
               "num_experts_per_tok": options.used, "norm_topk_prob": True, "decoder_sparse_step": 1,
               "mlp_only_layers": []}  # fmt: skip

    def tokens(count: int) -> list[int]:
        return [int(each) for each in random.integers(0, VOCABULARY, count)]

    with tempfile.TemporaryDirectory() as place:
        decoder, recipe = describe(Config(config), None), Recipe(method="nearest")
        folder = described_package(Path(place) / "package", decoder, recipe, variant=FLOAT16.name)
        write_variant(folder, QMOE_FLOAT16.name)
        package = open_package(folder)
        for variant in (FLOAT16.name, QMOE_FLOAT16.name):
            begun = time.perf_counter()
            engine = open_engine(package, device, variants={device.name: (variant,)})
            loaded = time.perf_counter() - begun
            session, prompts, steps = engine.open(options.prompt + STEPS + 1), [], []
            for _ in range(4):
                session.rewind(0)
                begun = time.perf_counter()
                session.feed(tokens(options.prompt)).top(1)
                prompts.append(1000 * (time.perf_counter() - begun))
            for _ in range(STEPS):
                begun = time.perf_counter()
                session.feed(tokens(1)).top(1)
                steps.append(1000 * (time.perf_counter() - begun))
            prompt = f"prompt {np.median(prompts[1:]):7.1f} ms (first {prompts[0]:.0f})"
            print(f"{variant:16} load {loaded:6.1f} s  {prompt}  step {np.median(steps):7.3f} ms", flush=True)
            session.close()
            engine.close()


if __name__ == "__main__":
    main()
