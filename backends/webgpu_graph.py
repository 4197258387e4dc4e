"""A folder's graph as WebGPU's provider runs and captures it; the weights stay where they are.

- GroupQueryAttention with q and k norms takes q, k and v apart: "q_norm_weight / k_norm_weight are not supported when
  QKV is packed" (onnxruntime-ep-webgpu 0.4.0; tests/test_webgpu_graph.py tells when that is over).
- Lengths are inputs instead of being computed from a mask. That takes nodes on the CPU and copies between it and the
  GPU, with which no step can be captured; and a mask as long as the KV gave wrong logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LENGTHS = "seqlens_k"  # input: int32 [1], how many tokens attention sees, less one
TOTAL = "total_sequence_length"  # input: int32 [], the same plus one, on the host; with a default for captured steps
_ATTENTION = "GroupQueryAttention"
_QUERY, _KEY, _PAST, _LENGTHS, _TOTAL, _NORMS = 0, 1, 3, 5, 6, (14, 15)  # places of its inputs


def adapted(path: Path) -> bytes:
    """The graph of a file as ONNX, with the inputs LENGTHS and TOTAL in place of attention_mask."""
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    head_dims = {value.name: value.type.tensor_type.shape.dim[-1].dim_value for value in graph.input}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == _ATTENTION:
            node.input[_LENGTHS], node.input[_TOTAL] = LENGTHS, TOTAL
            if not node.input[_KEY] and any(node.input[place] for place in _NORMS if place < len(node.input)):
                nodes.append(_taken_apart(node, head_dims[node.input[_PAST]], graph))
        nodes.append(node)
    graph.input.append(helper.make_tensor_value_info(LENGTHS, TensorProto.INT32, [1]))
    graph.input.append(helper.make_tensor_value_info(TOTAL, TensorProto.INT32, []))
    # captured steps read the length on the GPU alone: measured right with 1 at every position
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), TOTAL))
    _keep(graph, _needed(nodes, [value.name for value in graph.output]))
    return model.SerializeToString()


def _taken_apart(node: onnx.NodeProto, head_dim: int, graph: onnx.GraphProto) -> onnx.NodeProto:
    """A Split of what attention gets in one tensor; makes it take the parts."""
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    q, kv = attributes["num_heads"] * head_dim, attributes["kv_num_heads"] * head_dim
    sizes, parts = f"{node.name}.sizes", [f"{node.name}.{part}" for part in ("q", "k", "v")]
    graph.initializer.append(numpy_helper.from_array(np.array([q, kv, kv], np.int64), sizes))
    split = helper.make_node("Split", [node.input[_QUERY], sizes], parts, f"{node.name}.split", axis=-1)
    for place, part in enumerate(parts):
        node.input[place] = part
    return split


def _needed(nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that lead to the outputs, in their order."""
    wanted, kept = set(outputs), []
    for node in reversed(list(nodes)):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def _keep(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    """Leaves these nodes and what they read."""
    # copies, because these lie in what is emptied
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    read = {name for node in nodes for name in node.input}
    inputs = [onnx.ValueInfoProto.FromString(one.SerializeToString()) for one in graph.input if one.name in read]
    stored = [onnx.TensorProto.FromString(one.SerializeToString()) for one in graph.initializer if one.name in read]
    del graph.node[:], graph.input[:], graph.initializer[:]
    graph.node.extend(copies)
    graph.input.extend(inputs)
    graph.initializer.extend(stored)
