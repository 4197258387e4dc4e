"""What the checker says of the graphs that we export, and of graphs that DirectML would not take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from embedllm.export import Recipe
from embedllm.export.onnx.directml_rules import check_directml
from embedllm.package.graph_variants import DIRECTML, FLOAT16, FLOAT32
from embedllm.package.package import open_package
from embedllm.profiling.inspection.package_report import describe_package
from tests.backends.gpu.test_directml import MODELS
from tests.support.decoder_cases import CASES, plain
from tests.support.described import described_package

MakePackage = Callable[..., Path]


@pytest.fixture
def good(tiny_package: MakePackage) -> onnx.ModelProto:
    """A graph that the checker takes, to be spoiled."""
    model = load(tiny_package("qwen3"), DIRECTML.file)
    assert check_directml(model) == ()
    return model


def load(folder: Path, file: str) -> onnx.ModelProto:
    return onnx.load(folder / file, load_external_data=False)


def node(model: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == kind)


def set_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def set_input(node: onnx.NodeProto, place: int, name: str) -> None:
    node.input.extend([""] * (place + 1 - len(node.input)))
    node.input[place] = name


@pytest.mark.parametrize("model", MODELS)
def test_every_export_for_directml_passes(model: str, tiny_package: MakePackage) -> None:
    family, recipe, config = MODELS[model]
    assert check_directml(load(tiny_package(family, recipe, **config), DIRECTML.file)) == ()


@pytest.mark.parametrize("case", [name for name, change in CASES.items() if not DIRECTML.unsupported(change(plain()))])
def test_what_other_families_have_passes_where_there_is_a_graph_of_it(case: str, tmp_path: Path) -> None:
    folder = described_package(tmp_path / "package", CASES[case](plain()), Recipe(), variant=DIRECTML.name)
    assert check_directml(load(folder, DIRECTML.file)) == ()


@pytest.mark.parametrize(
    ("variant", "problems"),
    [
        (FLOAT16, {"no kernel is known for GatherBlockQuantized", "GroupQueryAttention needs input 1",
                   "GroupQueryAttention does not take the input q_norm_weight"}),
        (FLOAT32, {"GroupQueryAttention does not do do_rotary 1",
                   "GroupQueryAttention does not take the input cos_cache"}),
    ],
    ids=["float16", "float32"],
)  # fmt: skip
def test_the_other_variants_do_not_pass(variant: object, problems: set[str], tiny_package: MakePackage) -> None:
    found = check_directml(load(tiny_package("qwen3"), variant.file))  # type: ignore[attr-defined]  # a GraphVariant
    assert problems <= {problem.partition(": ")[2] for problem in found}


@pytest.mark.parametrize(
    ("kind", "name", "value", "problem"),
    [
        ("GroupQueryAttention", "do_rotary", 1, "GroupQueryAttention does not do do_rotary 1"),
        ("GroupQueryAttention", "local_window_size", 16, "GroupQueryAttention does not do local_window_size 16"),
        ("GroupQueryAttention", "softcap", 30.0, "GroupQueryAttention does not do softcap 30.0"),
        ("GroupQueryAttention", "smooth_softmax", 1, "GroupQueryAttention does not do smooth_softmax 1"),
        ("RotaryEmbedding", "rotary_embedding_dim", 8, "RotaryEmbedding does not do rotary_embedding_dim 8"),
        ("MatMulNBits", "bits", 2, "MatMulNBits does not do bits 2"),
        ("MatMulNBits", "K", 60, "MatMulNBits does not take rows of 60 values in blocks of 32"),
        ("Cast", "to", TensorProto.BFLOAT16, f"Cast does not do to {TensorProto.BFLOAT16}"),
    ],
)
def test_an_attribute_that_a_kernel_does_not_have_is_found(
    kind: str, name: str, value: object, problem: str, good: onnx.ModelProto
) -> None:
    spoiled = next(n for n in good.graph.node if n.op_type == kind and not n.output[0].endswith("weight.float16"))
    if kind == "Cast":
        spoiled = next(n for n in good.graph.node if n.op_type == "Cast" and "packed" in n.input[0])
    set_attribute(spoiled, name, value)
    assert f"'{spoiled.name}': {problem}" in check_directml(good)


@pytest.mark.parametrize(
    ("kind", "place", "name", "problem"),
    [
        ("GroupQueryAttention", 1, "", "GroupQueryAttention needs input 1"),
        ("GroupQueryAttention", 7, "rope.cos.float16", "GroupQueryAttention does not take the input cos_cache"),
        ("GroupQueryAttention", 14, "rope.cos.float16", "GroupQueryAttention does not take the input q_norm_weight"),
        ("GroupQueryAttention", 3, "past_key_values.0.wide", "to be one buffer; their shapes differ"),
        ("GroupQueryAttention", 5, "input_ids", "GroupQueryAttention does not take input 5 in INT64"),
        ("RotaryEmbedding", 1, "seqlens_k", "RotaryEmbedding does not take input 1 in INT32"),
        (
            "RotaryEmbedding",
            2,
            "layers.0.attention_norm.weight.float16",
            "RotaryEmbedding rotates heads of 128 values; the model's have 16",
        ),
        ("MatMulNBits", 5, "norm.weight.float16", "MatMulNBits does not take the input bias"),
        ("Reshape", 1, "input_ids", "Reshape needs input 1 as a constant"),
        ("Gather", 1, "past_key_values.0.key", "Gather does not take input 1 in FLOAT16"),
    ],
)
def test_an_input_that_a_kernel_does_not_take_is_found(
    kind: str, place: int, name: str, problem: str, good: onnx.ModelProto
) -> None:
    if name.endswith("wide"):
        shape = ["batch", 2, "past", 16]
        good.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))
    spoiled = node(good, kind)
    set_input(spoiled, place, name)
    found = [p for p in check_directml(good) if p.startswith(f"'{spoiled.name}'")]
    assert any(p.endswith(problem) for p in found), found


def test_an_odd_number_of_8_bit_zero_points_is_found(tiny_package: MakePackage) -> None:
    """As another variant has them: ours unpacks such matrices."""
    folder = tiny_package("llama", Recipe(bits=8, symmetric=False), hidden_size=96, intermediate_size=160)
    found = check_directml(load(folder, FLOAT16.file))
    assert "'layers.0.gate': MatMulNBits misreads rows of 3 zero points, an odd number, of 8 bits" in found


def test_an_operator_newer_than_its_kernel_is_found(good: onnx.ModelProto) -> None:
    """Opset 23 has a new Cast and Reshape, for which the table has no kernel."""
    good.opset_import[0].version = 23
    found = {problem.partition(": ")[2] for problem in check_directml(good)}
    assert {"there is no kernel for Cast of opset 23", "there is no kernel for Reshape of opset 23"} <= found


def test_an_operator_without_a_kernel_is_found(good: onnx.ModelProto) -> None:
    spoiled = node(good, "QuickGelu")
    spoiled.op_type = "FastSilu"
    assert check_directml(good) == (f"'{spoiled.name}': no kernel is known for FastSilu",)


def test_inspect_says_what_directml_would_not_take(tiny_package: MakePackage, tmp_path: Path) -> None:
    folder = tiny_package("qwen3")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model = load(folder, DIRECTML.file)
    broken = model.SerializeToString(deterministic=True).replace(b"QuickGelu", b"FastGeluX")  # of the same size
    (tmp_path / DIRECTML.file).write_bytes(broken)
    assert len(broken) == (folder / DIRECTML.file).stat().st_size
    graph = next(g for g in describe_package(open_package(tmp_path)).graphs if g.variant == DIRECTML.name)
    assert graph.problems == tuple(f"'layers.{at}.silu': no kernel is known for FastGeluX" for at in range(2))
