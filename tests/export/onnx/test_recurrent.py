"""Recurrent layers in graphs: what each device's operators are given, and how they keep their states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_olmo_hybrid, tiny_qwen3_5


def graph_of(tiny: Callable[[Path], Path], folder: Path, variant: str) -> onnx.GraphProto:
    return graph_in(convert(tiny(folder / "checkpoint"), folder / "package", Recipe(bits=4)), variant)


def graph_in(folder: Path, variant: str) -> onnx.GraphProto:
    package = open_package(folder)
    graph = package.graph(variant)
    assert graph is not None
    return onnx.load(package.folder / graph.file, load_external_data=False).graph


def states(graph: onnx.GraphProto) -> dict[str, tuple[str, list[int]]]:
    """Type and shape of each state that goes in, behind the batch; they come out the same."""
    found = {}
    for kind, values in (("past", graph.input), ("present", graph.output)):
        found[kind] = {
            value.name.removeprefix(f"{kind}_"): (
                onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type),
                [dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]],
            )
            for value in values
            if value.name.startswith((f"{kind}_conv", f"{kind}_recurrent"))
        }
    assert found["past"] == found["present"]
    return found["past"]


def test_cudas_graph_has_the_delta_rule_as_one_operator_over_float32_states(tmp_path: Path) -> None:
    """Norms, gates and all: six kernels fewer a layer, and a prompt in half the time (docs/cuda.md)."""
    graph = graph_of(tiny_qwen3_5, tmp_path, "generic-float16")
    (node,) = (node for node in graph.node if node.op_type == "GatedDeltaNet")
    assert not {"LinearAttention", "Softplus", "Exp"} & {node.op_type for node in graph.node}
    types = {value.name: value.data_type for value in graph.initializer}
    assert [types[name] for name in node.input[7:]] == [onnx.TensorProto.FLOAT] * 2  # as its gates have to be
    assert states(graph) == {"conv.0": ("FLOAT16", [3, 80]), "recurrent.0": ("FLOAT", [2, 24, 16])}


@pytest.mark.parametrize(("variant", "kind"), [("webgpu-float16", "FLOAT16"), ("generic-float32", "FLOAT")])
def test_other_graphs_have_it_by_operators_that_their_devices_have(variant: str, kind: str, tmp_path: Path) -> None:
    graph = graph_of(tiny_qwen3_5, tmp_path, variant)
    operators = [node.op_type for node in graph.node]
    assert operators.count("LinearAttention") == 1
    assert "GatedDeltaNet" not in operators
    assert states(graph) == {"conv.0": (kind, [3, 80]), "recurrent.0": (kind, [2, 16, 24])}


def test_a_rate_up_to_two_is_computed_outside_the_operator(tmp_path: Path) -> None:
    """Of negative eigenvalues: the operator's own sigmoid is at most one."""
    graph = graph_in(tiny_olmo_hybrid(tmp_path / "package", "generic-float16"), "generic-float16")
    (node,) = (node for node in graph.node if node.op_type == "GatedDeltaNet")
    (rate,) = (each for each in graph.node if node.input[5] in each.output)
    assert rate.op_type == "Mul"
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert (attributes["beta_activation"], attributes["gate_activation"]) == (b"none", b"qwen")


def test_state_spaces_are_the_same_in_all_graphs(tmp_path: Path) -> None:
    graph = graph_of(tiny_falcon_h1, tmp_path, "generic-float16")
    assert [node.op_type for node in graph.node].count("LinearAttention") == 2
    assert states(graph)["recurrent.1"] == ("FLOAT16", [4, 16, 24])
