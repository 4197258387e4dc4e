"""Writes a package with random weights in the shape of a hybrid (recurrent) model, for benchmarks without a download.

    python -m tests.benchmarks.make_hybrid OUT --shape qwen3.5-0.8b [--layers 24] [--vocabulary 307]
        [--graphs generic-float16]

4 bits in groups of 32, and the demo's tokenizer. Speed and memory do not depend on the weights' values.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.graphs import write_variant
from embedllm.files.atomic import write_json
from embedllm.loading.resolve import package_folder
from embedllm.package.package import MANIFEST, sha256
from tests.benchmarks.bench_mixture_shapes import COMMON, PooledSource
from tests.benchmarks.bench_mixture_shapes import SHAPES as MIXTURES
from tests.support.described import described_package

SHAPES: dict[str, dict[str, object]] = {
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5_text", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 3584, "linear_num_key_heads": 16,
        "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "tie_word_embeddings": True, "vocab_size": 248320,
    },
    "qwen3.5-35b-a3b": MIXTURES["qwen3.5-35b-a3b"] | {"num_hidden_layers": 40},
}  # fmt: skip
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--graphs", default="generic-float16", help="variants, by commas")
    options = parser.parse_args()
    config = SHAPES[options.shape] | COMMON
    config |= {"num_hidden_layers": options.layers} if options.layers else {}
    config |= {"vocab_size": options.vocabulary} if options.vocabulary else {}
    first, *others = options.graphs.split(",")
    decoder, recipe = describe(Config(config), None), Recipe(method="nearest")
    described_package(options.out, decoder, recipe, variant=first, source=PooledSource())
    for variant in others:
        write_variant(options.out, variant)
    demo, manifest = package_folder("demo"), json.loads((options.out / MANIFEST).read_text(encoding="utf-8"))
    for name in TOKENIZER:
        if (demo / name).exists():
            made = Path(shutil.copy(demo / name, options.out / name))
            manifest["files"][name] = {"bytes": made.stat().st_size, "sha256": sha256(made)}  # a page fetches those
    write_json(options.out / MANIFEST, manifest)


if __name__ == "__main__":
    main()
