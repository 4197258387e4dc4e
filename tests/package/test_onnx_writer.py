"""Parts of graphs as bytes: what the package onnx writes of the same."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedllm.package.onnx_reader import FLOAT, read_makers, read_versions
from embedllm.package.onnx_writer import constant, graph_input, graph_output, more_of_graph, node

LONG = "a name of more than a hundred and twenty-seven bytes, whose length is a number of two: " + 50 * "."


def test_what_is_appended_to_a_model_is_in_its_graph() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"], name="y")]
    graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", FLOAT, [1])], [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    parts = [node("Add", ["y", LONG], ["z"]), constant("axis", -2), graph_input(LONG), graph_output("z")]
    found = onnx.load_model_from_string(model.SerializeToString() + more_of_graph(parts))
    model.graph.node.append(helper.make_node("Add", ["y", LONG], ["z"], name="z"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-2]), "axis"))
    model.graph.input.append(helper.make_tensor_value_info(LONG, TensorProto.FLOAT, None))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    assert [numpy_helper.to_array(one).tolist() for one in found.graph.initializer] == [[-2]]
    del found.graph.initializer[:], model.graph.initializer[:]
    assert found == model


def test_a_node_keeps_its_operator_under_other_names() -> None:
    own = helper.make_node("Own", ["a", "b"], ["c", "d"], name="e", domain="ours", rule="gated", sizes=[1, 2])
    model = helper.make_model(helper.make_graph([own], "graph", [], []), opset_imports=[helper.make_opsetid("ours", 3)])
    data = model.SerializeToString()
    makers = read_makers(data, ["d", "b"])
    assert makers.keys() == {"d"}
    moved = more_of_graph([node(makers["d"].operator, ["f"], ["g", "h"])])
    found = onnx.load_model_from_string(read_versions(data) + moved)
    assert found.opset_import == model.opset_import
    assert found.graph.node == [
        helper.make_node("Own", ["f"], ["g", "h"], name="h", domain="ours", rule="gated", sizes=[1, 2])
    ]
