"""What quantization and rounded activations cost: KL divergence and perplexity on held-out text, against 16 bits.

    python tests/benchmarks/bench_numerics.py CHECKPOINT TEXT.jsonl [--tokens 20000]

TEXT.jsonl: documents, a line each: {"text": "..."}. Every document is read in windows of 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from embedllm.backends.ort import OrtEngine, devices
from embedllm.export import Recipe, convert
from embedllm.package import open_package
from embedllm.text import Tokenizer

WINDOW = 512  # tokens
RECIPES = {
    "16 bits": Recipe(bits=16),
    "8 bits": Recipe(bits=8),
    "8 bits, exact": Recipe(bits=8, exact=True),
    "4 bits": Recipe(),
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


def logprobs(engine: OrtEngine, tokens: list[int]) -> np.ndarray:
    session = engine.open(len(tokens))
    logits = session.feed_all(tokens).astype(np.float64)
    session.close()
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000)
    options = parser.parse_args()
    pieces = list(windows(options.checkpoint, options.text, options.tokens))
    engines: dict[str, OrtEngine] = {}
    sizes: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in RECIPES.items():
            package = open_package(convert(options.checkpoint, Path(folder) / name, recipe))
            graph = package.graph("generic-float32")
            assert graph is not None
            engines[name] = OrtEngine(package, graph, devices()[0])
            sizes[name] = package.weights.stat().st_size / 1e6
        totals: dict[str, list[np.ndarray]] = {name: [] for name in RECIPES}
        for tokens in pieces:
            base = logprobs(engines["16 bits"], tokens)
            for name, engine in engines.items():
                found = logprobs(engine, tokens)
                kl = (np.exp(base) * (base - found)).sum(axis=-1)
                loss = -found[np.arange(len(tokens) - 1), tokens[1:]]
                same = found.argmax(axis=-1) == base.argmax(axis=-1)
                totals[name].append(np.array([kl.mean(), np.percentile(kl, 99), loss.mean(), same.mean()]))
    print(f"{len(pieces) * WINDOW} tokens")
    print("| recipe | weights MB | mean KL | 99 % KL | perplexity | same top token |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, rows in totals.items():
        kl, tail, loss, same = np.mean(rows, axis=0)
        print(f"| {name} | {sizes[name]:.1f} | {kl:.5f} | {tail:.4f} | {math.exp(loss):.3f} | {100 * same:.1f} % |")


if __name__ == "__main__":
    main()
