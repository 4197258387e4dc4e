"""What quantization and rounded activations cost: KL divergence and perplexity on held-out text, against 16 bits.

    python tests/benchmarks/bench_numerics.py CHECKPOINT TEXT.jsonl [--tokens 20000] [--openvino]

--openvino: what OpenVINO's settings cost instead, on its CPU plugin, against exact ones of the same folder.

TEXT.jsonl: documents, a line each: {"text": "..."}. How it is read: docs/guide-eval.md.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import embedllm
from embedllm.backends.options import OpenVINOOptions
from embedllm.evaluation import ModelScore, evaluate
from embedllm.export import Recipe, convert

SETTINGS = {
    "exact (float32, KV float32)": None,
    "bf16": OpenVINOOptions(precision="bf16"),
    "bf16, KV float16": OpenVINOOptions(precision="bf16", kv="f16"),
    "float32, rounded in groups of the weights": OpenVINOOptions(precision="f32"),
    "float32, not rounded": OpenVINOOptions(precision="f32", rounding_group=0),
    "float32, not rounded, KV float16": OpenVINOOptions(precision="f32", rounding_group=0, kv="f16"),
}
SEARCHED = Recipe(method="search", symmetric=True)
RECIPES = {
    "16 bits": Recipe(bits=16),
    "8 bits": Recipe(bits=8),
    "8 bits, exact": Recipe(bits=8, exact=True),
    "4 bits, nearest scales": replace(SEARCHED, method="nearest"),
    "4 bits": SEARCHED,
    "4 bits, asymmetric": replace(SEARCHED, symmetric=False),
    "4 bits, the default": Recipe(),
    "4 bits, exact": replace(SEARCHED, exact=True),
    "4 bits, head 8": replace(SEARCHED, head_bits=8),
    "4 bits, head 8, asymmetric": replace(SEARCHED, head_bits=8, symmetric=False),
    "4 bits, group 64": replace(SEARCHED, group_size=64),
    "4 bits, group 128": replace(SEARCHED, group_size=128),
    "4 bits, head 8, group 16": replace(SEARCHED, head_bits=8, group_size=16),
}


def compare_recipes(checkpoint: Path, folder: Path, text: Path, tokens: int) -> None:
    """A table of all recipes, on `cpu`, against the first."""
    folders = [convert(checkpoint, folder / name, recipe) for name, recipe in RECIPES.items()]
    found = evaluate(folders[1:], text, against=folders[0], tokens=tokens, device="cpu")
    assert found.text is not None
    assert found.base is not None
    assert found.base.text is not None
    first, *others = RECIPES
    print(f"{found.text.tokens} tokens\n")
    print("| recipe | weights MB | mean KL | 95 % KL | 99 % KL | perplexity | same top token |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(f"| {first} | {found.base.weights_bytes / 1e6:.1f} | 0 | 0 | 0 | {found.base.text.perplexity:.3f} | 100 % |")
    for name, one in zip(others, found.models, strict=True):
        print(f"| {name} | {one.weights_bytes / 1e6:.1f} | {cells(one)} |")


def compare_settings(checkpoint: Path, folder: Path, text: Path, tokens: int) -> None:
    """A table of OpenVINO's settings, one model under all, against the exact ones."""
    package = convert(checkpoint, folder / "package", replace(SEARCHED, head_bits=8))
    models = [
        embedllm.load(package, device="openvino", openvino=options, exact=options is None)
        for options in SETTINGS.values()
    ]
    found = evaluate(models, text, against=models[0], tokens=tokens)
    assert found.text is not None
    print(f"{found.text.tokens} tokens\n")
    print("| settings | mean KL | 95 % KL | 99 % KL | perplexity | same top token |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, one in zip(SETTINGS, found.models, strict=True):
        print(f"| {name} | {cells(one)} |")
    for model in models:
        model.close()


def cells(one: ModelScore) -> str:
    """Of a row of a table, what was measured."""
    assert one.text is not None
    far = one.text.divergence
    assert far is not None
    distances = f"{far.mean_kl:.5f} | {far.kl_95:.4f} | {far.kl_99:.4f}"
    return f"{distances} | {one.text.perplexity:.3f} | {100 * far.same_top:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--openvino", action="store_true")
    options = parser.parse_args()
    compare = compare_settings if options.openvino else compare_recipes
    with tempfile.TemporaryDirectory() as folder:
        compare(options.checkpoint, Path(folder), options.text, options.tokens)


if __name__ == "__main__":
    main()
