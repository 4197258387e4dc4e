"""A folder's ONNX graph with room for an adapter: beside each product of a layer, x @ a @ b is added.

Made in memory when a model is loaded for adapters. The factors are inputs of open rank, bound by each session, so that
one copy of the weights serves every adapter; with rank 0 the products are zeros, at a cost that
docs/performance.md#adapters tells. ONNX Runtime's own adapters (RunOptions.add_active_adapter) are such inputs too, and
have no effect on a run with bound buffers (1.31).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto, helper

from embedllm.backends.lora import input_names, products
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Linear


def with_adapters(path: Path, decoder: Decoder) -> bytes:
    """The graph of a file, changed; its weights stay outside. Raises ValueError when it lacks a product."""
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    makers = {output: node for node in graph.node for output in node.output}
    named = {node.name: node for node in graph.node}
    added: dict[str, list[NodeProto]] = {}  # behind the node of that name
    for value, parts in products(decoder):
        if value not in makers or value not in named:
            raise ValueError(f"the graph has no product '{value}'")
        maker = makers[value]
        maker.output[list(maker.output).index(value)] = f"{value}.alone"
        added[maker.name] = _nodes(value, _find_source(makers, named[value].input[0]), parts)
        graph.input.extend(info for part in parts for info in _inputs(part))
    ordered = [one for node in graph.node for one in (node, *added.get(node.name, ()))]
    del graph.node[:]
    graph.node.extend(ordered)
    return model.SerializeToString()


def _find_source(makers: Mapping[str, NodeProto], x: str) -> str:
    """What a product is of, before its columns are brought into the order of the weights'."""
    return makers[x].input[0] if x in makers and ".in_order." in x else x


def _nodes(value: str, x: str, parts: Sequence[Linear]) -> list[NodeProto]:
    """What makes the value of "VALUE.alone" and the adapter's products with x."""
    nodes: list[NodeProto] = []
    for part in parts:
        a, b = input_names(part)
        nodes.append(helper.make_node("MatMul", [x, a], [f"{a}.product"], f"{a}.product"))
        nodes.append(helper.make_node("MatMul", [f"{a}.product", b], [f"{b}.product"], f"{b}.product"))
    outputs = [f"{input_names(part)[1]}.product" for part in parts]
    if len(outputs) > 1:
        nodes.append(helper.make_node("Concat", outputs, [f"{value}.adapter"], f"{value}.adapter", axis=-1))
        outputs = [f"{value}.adapter"]
    return [*nodes, helper.make_node("Add", [f"{value}.alone", *outputs], [value], f"{value}.adapted")]


def _inputs(part: Linear) -> list[onnx.ValueInfoProto]:
    rank = f"{part.name}.rank"
    return [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(input_names(part), ([part.columns, rank], [rank, part.rows]), strict=True)
    ]
