"""The variants of one model's graph: what each computes on this machine's CPU, against the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from embedllm.backends.ort import engine as ort
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe
from embedllm.package.graph_variants import FLOAT16, GPU_FLOAT32, VARIANTS, WEBGPU_FLOAT16, GraphVariant
from embedllm.package.package import Package, open_package

FLOAT32_ATOL = 2e-5  # of logits up to 4.1, over 60 tokens: measured 3e-6 to 4.2e-6


def tokens_of(package: Package, count: int = 60) -> list[int]:
    return np.random.default_rng(3).integers(0, package.decoder.vocabulary, count).tolist()


def nodes(package: Package, variant: GraphVariant) -> list[onnx.NodeProto]:
    return list(onnx.load(package.folder / variant.file, load_external_data=False).graph.node)


def test_every_variant_has_a_name_and_a_file_of_its_own() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)
    assert len({variant.file for variant in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(symmetric=False, head_bits=8), Recipe(bits=8), Recipe(bits=16)])
@pytest.mark.parametrize(("family", "config"), [("llama", {}), ("mistral", {"sliding_window": 16}), ("qwen2", {})])
def test_the_float32_graph_for_gpus_is_exact(
    family: str, config: dict[str, object], recipe: Recipe, tiny_package: Callable[..., Path]
) -> None:
    """The CPU's own graph, which rounds activations, is 0.09 to 0.14 off. With q and k norms it needs a GPU."""
    package = open_package(tiny_package(family, recipe, **config))
    graph = package.graph(GPU_FLOAT32.name)
    assert graph is not None
    tokens = tokens_of(package)
    found = OrtEngine(package, graph, ort.devices()[0]).open().feed_all(tokens)
    expected = ReferenceEngine(package).open().feed_all(tokens)
    np.testing.assert_allclose(found, expected, atol=FLOAT32_ATOL, rtol=0)


def test_the_graphs_for_gpus_differ_in_the_type_and_the_split_only(tiny_package: Callable[..., Path]) -> None:
    package = open_package(tiny_package("qwen3"))
    rows = (FLOAT16, WEBGPU_FLOAT16, GPU_FLOAT32)
    graphs = [package.graph(variant.name) for variant in rows]
    assert [graph.activations for graph in graphs if graph] == ["float16", "float16", "float32"]
    kinds = [[n.op_type for n in nodes(package, d) if n.op_type not in ("Cast", "Split")] for d in rows]
    assert kinds[0] == kinds[1] == kinds[2]
    casts = [[n.op_type for n in nodes(package, d) if n.op_type == "Cast"] for d in rows]
    assert casts[0] == casts[1]


@pytest.mark.parametrize("variant", [WEBGPU_FLOAT16, GPU_FLOAT32], ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("family", "config", "is_split"),
    [("qwen3", {}, True), ("llama", {}, False), ("mistral", {"sliding_window": 16}, True), ("mistral", {}, False)],
)
def test_q_k_and_v_are_taken_apart_where_attention_norms_them_or_has_a_window(
    family: str, config: dict[str, object], is_split: bool, variant: GraphVariant, tiny_package: Callable[..., Path]
) -> None:
    found = nodes(open_package(tiny_package(family, Recipe(), **config)), variant)
    splits = [node for node in found if node.op_type == "Split"]
    attentions = [node for node in found if node.op_type == "GroupQueryAttention"]
    assert len(splits) == (len(attentions) if is_split else 0)
    for split, attention in zip(splits, attentions, strict=False):
        assert list(attention.input)[:3] == list(split.output)
