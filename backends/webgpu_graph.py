"""A folder's graph as WebGPU's attention takes it; the weights stay where they are.

GroupQueryAttention of onnxruntime-ep-webgpu 0.4.0 says "q_norm_weight / k_norm_weight are not supported when QKV is
packed", and gives wrong numbers past the window when it has one and QKV is packed. So q, k and v are taken apart there;
tests/test_webgpu.py tells when that is over.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

_ATTENTION = "GroupQueryAttention"
_QUERY, _KEY, _PAST, _NORMS = 0, 1, 3, (14, 15)  # places of its inputs


def taken_apart(path: Path) -> bytes:
    """The graph of a file as ONNX, with a Split before attention that norms q and k, or has a window."""
    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    head_dims = {value.name: value.type.tensor_type.shape.dim[-1].dim_value for value in graph.input}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == _ATTENTION and not node.input[_KEY] and (_norms(node) or _has_window(node)):
            nodes.append(_split(node, head_dims[node.input[_PAST]], graph))
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]  # they lie in what is emptied
    del graph.node[:]
    graph.node.extend(copies)
    return model.SerializeToString()


def _norms(node: onnx.NodeProto) -> bool:
    return any(node.input[place] for place in _NORMS if place < len(node.input))


def _has_window(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "local_window_size" and attribute.i > 0 for attribute in node.attribute)


def _split(node: onnx.NodeProto, head_dim: int, graph: onnx.GraphProto) -> onnx.NodeProto:
    """What gives attention its q, k and v one by one."""
    heads = {attribute.name: attribute.i for attribute in node.attribute}
    q, kv = heads["num_heads"] * head_dim, heads["kv_num_heads"] * head_dim
    sizes, parts = f"{node.name}.sizes", [f"{node.name}.{part}" for part in ("q", "k", "v")]
    graph.initializer.append(numpy_helper.from_array(np.array([q, kv, kv], np.int64), sizes))
    split = helper.make_node("Split", [node.input[_QUERY], sizes], parts, f"{node.name}.split", axis=-1)
    for place, part in enumerate(parts):
        node.input[place] = part
    return split
