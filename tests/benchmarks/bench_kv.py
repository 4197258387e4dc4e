"""Measures quantized KV on the CPU beside float32: bytes, exactness on a text, speed.

    python tests/benchmarks/bench_kv.py FOLDER TEXTS [--documents 3] [--tokens 400]

FOLDER: a package with the variants int8-kv and int4-kv. TEXTS: JSON lines, each with a "text".
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from embedllm.backends.ort.engine import OrtEngine, devices
from embedllm.export.verify import compare
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import FLOAT32, INT4_KV, INT8_KV, KV_SCALES
from embedllm.package.package import Package, open_package
from embedllm.text.tokenizer import Tokenizer

_ROUNDS = 5  # interleaved
_DECODED = 32  # tokens, after the prompt


def per_tensor(package: Package, graph: Graph) -> Graph:
    """The same graph with one scale for all keys of a layer, and one for all values."""
    model = onnx.load(package.folder / graph.file, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.name.endswith(KV_SCALES):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).max().reshape(1), tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name.endswith("_quant_type"):
                attribute.s = b"PER_TENSOR"
    file = f"per_tensor.{graph.file}"
    onnx.save(model, package.folder / file)
    return Graph(file=file, variant=f"{graph.variant}, per tensor", activations=graph.activations)


def graphs_of(package: Package) -> list[Graph]:
    found = [package.graph(variant.name) for variant in (FLOAT32, INT8_KV, INT4_KV)]
    floats, eight, four = [graph for graph in found if graph is not None]
    return [floats, eight, per_tensor(package, eight), four, per_tensor(package, four)]


def exactness(package: Package, graphs: list[Graph], texts: list[list[int]], *, exact: bool) -> None:
    """exact: float activations in the products, so that only the KV differs."""
    rows: dict[str, list[np.ndarray]] = {}
    for graph in graphs:
        engine = OrtEngine(package, graph, devices()[0], exact=exact)
        rows[graph.variant] = [engine.open().feed_all(tokens)[::4] for tokens in texts]
        engine.close()
    reference, *others = rows.items()
    for name, found in others:
        each = [compare(one, other) for one, other in zip(reference[1], found, strict=True)]
        kl, same = np.mean([one.kl_mean for one in each]), np.mean([one.same_top for one in each])
        print(f"{'exact' if exact else 'usual'} products, {name}: mean KL {kl:.2e}, same best token {same:.4f}")


def speed(package: Package, graphs: list[Graph], tokens: list[int]) -> None:
    sessions = {graph.variant: OrtEngine(package, graph, devices()[0]).open(2048) for graph in graphs}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
    for _ in range(_ROUNDS):
        for name, session in sessions.items():
            session.rewind(0)
            start = time.perf_counter()
            for at in range(0, len(tokens), 512):
                session.feed(tokens[at : at + 512])
            read = time.perf_counter()
            for _ in range(_DECODED):
                session.feed([1])
            times[name].append((read - start, time.perf_counter() - read))
    for name, session in sessions.items():
        prefill, decode = (min(one) for one in zip(*times[name], strict=True))
        held = sum(array.nbytes for array in session.kv.values())
        print(
            f"{name}: {held:,} bytes for {session.capacity} tokens; best of {_ROUNDS}: prompt of {len(tokens)} "
            f"{len(tokens) / prefill:.0f} tokens/s, decode behind it {_DECODED / decode:.1f} tokens/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--documents", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=400)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        package = open_package(shutil.copytree(given.folder, Path(place) / "package"))
        tokenizer = Tokenizer.open(package.folder)
        lines = given.texts.read_text(encoding="utf-8").splitlines()
        read = [list(tokenizer.encode(json.loads(line)["text"], special=False)) for line in lines]
        texts = [tokens[: given.tokens] for tokens in read if len(tokens) >= given.tokens][: given.documents]
        graphs = graphs_of(package)
        for exact in (True, False):
            exactness(package, graphs, texts, exact=exact)
        speed(package, graphs, [token for tokens in read for token in tokens][:1536])


if __name__ == "__main__":
    main()
