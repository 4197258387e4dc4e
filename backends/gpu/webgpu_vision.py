"""A vision encoder's graph for GPUs where attention over many tokens is wrong (docs/webgpu.md#faults).

An encoder's patches see each other all at once, so unlike a prompt they cannot be given in pieces. There attention is
written in plain operators, whose kernels are right, and which keep the scores of all heads in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from embedllm.files.optional_packages import needs

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import NodeProto

_ATTENTION = "MultiHeadAttention"


def with_plain_attention(path: Path, hidden: int) -> bytes:
    """The graph of a file, in which all of `hidden` values see all. Its weights stay where they are.

    Raises ValueError for attention with a mask or a bias.
    """
    with needs("onnx", "WebGPU"):
        import onnx
        from onnx import numpy_helper

    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    nodes = [new for node in graph.node for new in (_plain(node) if node.op_type == _ATTENTION else (node,))]
    heads = {attribute.i for node in graph.node for attribute in node.attribute if attribute.name == "num_heads"}
    kinds = {one.type.tensor_type.elem_type for one in graph.output}
    assert len(heads) == len(kinds) == 1  # an encoder's layers are alike
    (count,), (kind,) = heads, kinds
    number = onnx.helper.tensor_dtype_to_np_dtype(kind)
    constants: dict[str, np.ndarray] = {
        "plain.heads": np.array([0, 0, count, -1]),
        "plain.joined": np.array([0, 0, -1]),
        "plain.scale": np.array(1 / math.sqrt(hidden // count), number),
    }
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model.SerializeToString()


def _plain(node: NodeProto) -> Iterator[NodeProto]:
    """Attention of q, k and v [tiles, patches, heads * D] in plain operators."""
    from onnx import helper

    if any(node.input[3:]) or {attribute.name for attribute in node.attribute} != {"num_heads"}:
        raise ValueError(f"'{node.name}' is attention with more than queries, keys and values")
    out = node.output[0]

    def op(operator: str, inputs: list[str], name: str, **attributes: int | list[int]) -> NodeProto:
        made = out if name == "joined" else f"{out}.{name}"
        new = helper.make_node(operator, inputs, [made], name=f"{out}.{name}")
        new.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        return new

    for part, value, order in zip("qkv", node.input, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
        yield op("Reshape", [value, "plain.heads"], f"{part}.heads")
        yield op("Transpose", [f"{out}.{part}.heads"], part, perm=order)
    yield op("Mul", [f"{out}.q", "plain.scale"], "scaled")  # before the product, which float16 may not hold
    yield op("MatMul", [f"{out}.scaled", f"{out}.k"], "scores")
    yield op("Softmax", [f"{out}.scores"], "weights", axis=-1)
    yield op("MatMul", [f"{out}.weights", f"{out}.v"], "by_head")
    yield op("Transpose", [f"{out}.by_head"], "together", perm=[0, 2, 1, 3])
    yield op("Reshape", [f"{out}.together", "plain.joined"], "joined")
