"""What quantization and rounded activations cost: KL divergence and perplexity on held-out text, against 16 bits.

    python tests/benchmarks/bench_numerics.py CHECKPOINT TEXT.jsonl [--tokens 20000] [--openvino]

--openvino: what OpenVINO's settings cost instead, on its CPU plugin, against exact ones of the same folder.

TEXT.jsonl: documents, a line each: {"text": "..."}. Every document is read in windows of 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import embedllm
from embedllm.backends.base import FeedsAll
from embedllm.backends.ort import OrtEngine, devices
from embedllm.export import Recipe, convert
from embedllm.export.dialects import FLOAT32
from embedllm.openvino_options import OpenVINOOptions
from embedllm.package import open_package
from embedllm.text import Tokenizer

if TYPE_CHECKING:
    from embedllm.backends.base import Engine

WINDOW = 512  # tokens
PIECE = 64  # tokens fed at once, so that most of what is attended to comes out of the KV cache
SETTINGS = {
    "exact (float32, KV float32)": None,
    "the plugin's choice": OpenVINOOptions(),
    "the plugin's choice, KV float16": OpenVINOOptions(kv="f16"),
    "float32, rounded in groups of the weights": OpenVINOOptions(precision="f32"),
    "float32, not rounded": OpenVINOOptions(precision="f32", rounding_group=0),
    "float32, not rounded, KV float16": OpenVINOOptions(precision="f32", rounding_group=0, kv="f16"),
}
RECIPES = {
    "16 bits": Recipe(bits=16),
    "8 bits": Recipe(bits=8),
    "8 bits, exact": Recipe(bits=8, exact=True),
    "4 bits, nearest scales": Recipe(method="nearest"),
    "4 bits": Recipe(),
    "4 bits, asymmetric": Recipe(symmetric=False),
    "4 bits, exact": Recipe(exact=True),
    "4 bits, head 8": Recipe(head_bits=8),
    "4 bits, head 8, asymmetric": Recipe(head_bits=8, symmetric=False),
    "4 bits, group 64": Recipe(group=64),
    "4 bits, group 128": Recipe(group=128),
    "4 bits, head 8, group 16": Recipe(head_bits=8, group=16),
}


def windows(checkpoint: Path, text: Path, limit: int) -> Iterator[list[int]]:
    tokenizer = Tokenizer.open(checkpoint)
    count = 0
    for line in text.read_text(encoding="utf-8").splitlines():
        tokens = tokenizer.encode(json.loads(line)["text"], special=False)
        for start in range(0, len(tokens) - WINDOW, WINDOW):
            yield tokens[start : start + WINDOW]
            count += WINDOW
            if count >= limit:
                return


def logprobs(engine: Engine, tokens: list[int]) -> np.ndarray:
    session = engine.open(len(tokens))
    assert isinstance(session, FeedsAll)
    pieces = [session.feed_all(tokens[at : at + PIECE]) for at in range(0, len(tokens), PIECE)]
    session.close()
    logits = np.concatenate(pieces).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def differences(engines: Mapping[str, Engine], pieces: list[list[int]]) -> Iterator[tuple[str, str]]:
    """(name, cells of the table) of every engine, against the first of them."""
    totals: dict[str, list[np.ndarray]] = {name: [] for name in engines}
    for tokens in pieces:
        base = logprobs(next(iter(engines.values())), tokens)
        for name, engine in engines.items():
            found = logprobs(engine, tokens)
            kl = (np.exp(base) * (base - found)).sum(axis=-1)
            loss = -found[np.arange(len(tokens) - 1), tokens[1:]]
            same = found.argmax(axis=-1) == base.argmax(axis=-1)
            totals[name].append(np.array([kl.mean(), np.percentile(kl, 99), loss.mean(), same.mean()]))
    for name, rows in totals.items():
        kl, tail, loss, same = np.mean(rows, axis=0)
        yield name, f"{kl:.5f} | {tail:.4f} | {math.exp(loss):.3f} | {100 * same:.1f} %"


def compare_recipes(checkpoint: Path, folder: Path, pieces: list[list[int]]) -> None:
    engines: dict[str, OrtEngine] = {}
    sizes: dict[str, float] = {}
    for name, recipe in RECIPES.items():
        package = open_package(convert(checkpoint, folder / name, recipe))
        graph = package.graph(FLOAT32.name)
        assert graph is not None
        engines[name] = OrtEngine(package, graph, devices()[0])
        sizes[name] = package.weights.stat().st_size / 1e6
    print("| recipe | weights MB | mean KL | 99 % KL | perplexity | same top token |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, cells in differences(engines, pieces):
        print(f"| {name} | {sizes[name]:.1f} | {cells} |")


def compare_settings(checkpoint: Path, folder: Path, pieces: list[list[int]]) -> None:
    package = convert(checkpoint, folder / "package", Recipe(head_bits=8))
    models = {
        name: embedllm.load(package, device="openvino", openvino=options, exact=options is None)
        for name, options in SETTINGS.items()
    }
    engines = {name: model.runner.engine for name, model in models.items()}
    print("| settings | mean KL | 99 % KL | perplexity | same top token |")
    print("| --- | --- | --- | --- | --- |")
    for name, cells in differences(engines, pieces):
        print(f"| {name} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--openvino", action="store_true")
    options = parser.parse_args()
    pieces = list(windows(options.checkpoint, options.text, options.tokens))
    print(f"{len(pieces) * WINDOW} tokens")
    compare = compare_settings if options.openvino else compare_recipes
    with tempfile.TemporaryDirectory() as folder:
        compare(options.checkpoint, Path(folder), pieces)


if __name__ == "__main__":
    main()
