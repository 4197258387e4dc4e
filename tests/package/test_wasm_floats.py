"""The graph for a browser's processor, and the rule of the file of floats that it reads: docs/format.md."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from embedllm.backends.devices.drivers import drivers
from embedllm.backends.ort import engine as ort
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe
from embedllm.files.safetensors_header import read_header
from embedllm.package.graph_variants import WASM
from embedllm.package.package import WEIGHTS, Package, open_package
from embedllm.package.tensors import linears
from embedllm.package.wasm_floats import FLOATS, float_spans, joined

FLOAT32_ATOL = 2e-5  # of logits up to 5.3, over 60 tokens: measured 3e-6 to 5e-6
RAGGED = {"hidden_size": 72, "intermediate_size": 104}  # no multiples of a group


def written_out(folder: Path, place: Path) -> bytes:
    """weights.float32 as docs/format.md has it, by NumPy and the two JSON files alone."""
    manifest = json.loads((folder / "embedllm.json").read_text(encoding="utf-8"))
    data = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    kinds = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}

    def tensor(name: str) -> np.ndarray:
        start, stop = header[name]["data_offsets"]
        return np.frombuffer(data[8 + length :][start:stop], kinds[header[name]["dtype"]]).reshape(
            header[name]["shape"]
        )

    def numbers(packed: np.ndarray, bits: int) -> np.ndarray:
        if bits == 8:
            return packed.astype(np.float32)
        return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1).astype(np.float32)

    architecture, packing = manifest["architecture"], manifest["quantization"]
    shapes = {m["name"]: (m["rows"], m["columns"]) for m in matrices(architecture)}
    names = [name.removesuffix(".weight") for name in header if name.removesuffix(".weight") in shapes]
    names.sort(key=lambda name: header[f"{name}.weight"]["data_offsets"][0])
    made = b""
    for name in names:
        (rows, columns), how, weight = shapes[name], packing[name], tensor(f"{name}.weight")
        if how["bits"] < 16:
            scale = tensor(f"{name}.scale").astype(np.float32)[:, :, None]
            zero: np.ndarray = np.full((1, 1, 1), 1 << how["bits"] - 1, np.float32)
            if not how["symmetric"]:
                zero = numbers(tensor(f"{name}.zero"), how["bits"])[:, : scale.shape[1], None]
            weight = ((numbers(weight, how["bits"]) - zero) * scale).reshape(rows, -1)[:, :columns]
        made += np.ascontiguousarray(weight, np.float32).tobytes()
    (place / FLOATS).write_bytes(made)
    return made


def matrices(architecture: dict[str, object]) -> list[dict[str, Any]]:
    """Every Linear that the manifest describes, a table that is only looked up aside."""
    found: list[dict[str, Any]] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            if {"name", "rows", "columns"} <= set(value):
                found.append(value)
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk({key: value for key, value in architecture.items() if key != "embedding"})
    return found


def engine_over(package: Package, place: Path) -> OrtEngine:
    """The graph on ONNX Runtime's CPU, in a folder that has the floats as a file."""
    graph = package.graph(WASM.name)
    assert graph is not None
    for name in (WEIGHTS, graph.file):
        os.link(package.folder / name, place / name)
    written_out(package.folder, place)
    moved = Package(place, package.manifest)
    return OrtEngine(moved, graph, ort.devices()[0])


def fed(engine: OrtEngine | ReferenceEngine, pieces: Sequence[Sequence[int]]) -> np.ndarray:
    session = engine.open()
    return np.concatenate([session.feed_all(piece) for piece in pieces])


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(symmetric=False, head_bits=8),
        Recipe(bits=8, group_size=16, symmetric=False),
        Recipe(bits=16),
        Recipe(bits=32),
        Recipe(exact=True, group_size=64),
    ],
    ids=["4", "4 and 8 zero points", "8 zero points", "16", "32", "4 exact"],
)
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("qwen3", {}),  # tied, norms
        ("qwen2", RAGGED),  # biases, a head of its own
        ("mistral", {"sliding_window": 16}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, **RAGGED}),
    ],
    ids=["qwen3", "qwen2 ragged", "mistral window", "llama tied, ragged"],
)
def test_the_graph_over_the_floats_of_the_rule_is_exact(
    family: str, config: dict[str, object], recipe: Recipe, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    package = open_package(tiny_package(family, recipe, **config))
    tokens = np.random.default_rng(3).integers(0, package.decoder.vocabulary, 60).tolist()
    pieces = [tokens[:30], tokens[30:31], tokens[31:]]
    found, expected = fed(engine_over(package, tmp_path), pieces), fed(ReferenceEngine(package), [tokens])
    np.testing.assert_allclose(found, expected, atol=FLOAT32_ATOL, rtol=0)


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen2", False)])
def test_the_floats_are_all_matrices_of_products_without_gaps(
    family: str, tied: bool, tiny_package: Callable[..., Path], tmp_path: Path
) -> None:
    package = open_package(tiny_package(family, Recipe(symmetric=False), **RAGGED))
    decoder = package.decoder
    spans = float_spans(decoder, {n: t.offset for n, t in read_header(package.weights).tensors.items()})
    products = [matrix for layer in decoder.layers for matrix in linears(layer)]
    names = [matrix.name for matrix in products]
    assert list(spans) == (["embedding", *names] if tied else [*names, "head"])
    end = 0
    for start, length in spans.values():
        assert start == end
        end += length
    assert end == 4 * sum(m.rows * m.columns for m in [*products, decoder.head])
    assert len(written_out(package.folder, tmp_path)) == end


def test_matrices_that_are_no_neighbours_are_refused() -> None:
    spans = {"a": (0, 8), "b": (8, 16), "c": (24, 4)}
    assert joined(["a", "b"], spans) == (0, 24)
    with pytest.raises(ValueError, match=r"'c' starts at byte 24 of weights\.float32, not at 8"):
        joined(["a", "c"], spans)


def test_every_product_reads_floats_and_every_matrix_is_read_once(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("qwen2", Recipe(head_bits=8)))
    graph = onnx.load(package.folder / WASM.file, load_external_data=False).graph
    products = [node for node in graph.node if "MatMul" in node.op_type]
    assert {node.op_type for node in products} == {"FusedMatMul"}
    assert len(products) == 2 * 5 + 1  # q, k and v in one
    held = {t.name: {e.key: e.value for e in t.external_data} for t in graph.initializer if t.external_data}
    floats = sorted((int(p["offset"]), int(p["length"])) for p in held.values() if p["location"] == FLOATS)
    assert len(floats) == len(products)
    assert [start for start, _ in floats] == [0, *np.cumsum([length for _, length in floats])[:-1]]


def test_no_device_of_onnxruntime_chooses_it() -> None:
    assert all(WASM.name not in one.capabilities.variants for driver in drivers() for one in driver.families)
