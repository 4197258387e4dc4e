"""A vision encoder's graph for WebGPU, with attention in plain operators where the provider's is wrong, or not there.

Wrong is attention over many tokens on some GPUs (docs/webgpu.md#faults): an encoder's patches see each other all at
once, so unlike a prompt they cannot be given in pieces. Not there is attention with a mask of windows (provider 0.4.0).
Plain operators have kernels that are right, and keep the scores of all heads in memory.
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
_MASK = 4  # its place among the inputs: 1 for what is seen, 0 for what fills up
_BIAS = "plain.bias"  # of scores
_UNSEEN = 3e4  # less than a float16 may have, and e to its negative is 0


def with_plain_attention(path: Path, hidden: int, *, masked_only: bool = False) -> bytes:
    """The graph of a file, whose attention has `hidden` values, unless it has a scale. Its weights stay where they are.

    masked_only: attention without a mask stays as it is. Raises ValueError for attention with a bias.
    """
    with needs("onnx", "WebGPU"):
        import onnx
        from onnx import numpy_helper

    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    masks = {node.input[_MASK] for node in graph.node if _is_masked(node)}
    nodes = [new for mask in masks for new in _bias_of(mask, graph.output[0].type.tensor_type.elem_type)]
    for node in graph.node:
        is_plain = node.op_type == _ATTENTION and (_is_masked(node) or not masked_only)
        nodes.extend(_plain(node) if is_plain else (node,))
    attributes = [one for node in graph.node if node.op_type == _ATTENTION for one in node.attribute]
    heads = {one.i for one in attributes if one.name == "num_heads"}
    scales = {one.f for one in attributes if one.name == "scale"}
    kinds = {one.type.tensor_type.elem_type for one in graph.output}
    assert len(heads) == len(kinds) == 1  # an encoder's layers are alike
    assert len(masks) <= 1
    assert len(scales) <= 1
    (count,), (kind,) = heads, kinds
    (scale,) = scales or {1 / math.sqrt(hidden // count)}
    number = onnx.helper.tensor_dtype_to_np_dtype(kind)
    constants: dict[str, np.ndarray] = {
        "plain.heads": np.array([0, 0, count, -1]),
        "plain.joined": np.array([0, 0, -1]),
        "plain.scale": np.array(scale, number),
        "plain.one": np.array(1, number),
        "plain.unseen": np.array(_UNSEEN, number),
        "plain.axes": np.array([1, 2]),
    }
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model.SerializeToString()


def _is_masked(node: NodeProto) -> bool:
    return node.op_type == _ATTENTION and any(node.input[_MASK:])


def _bias_of(mask: str, kind: int) -> Iterator[NodeProto]:
    """What is added to scores [windows, heads, patches, patches], of a mask [windows, patches]."""
    from onnx import helper

    yield helper.make_node("Cast", [mask], [f"{_BIAS}.seen"], name=f"{_BIAS}.seen", to=kind)
    yield helper.make_node("Sub", [f"{_BIAS}.seen", "plain.one"], [f"{_BIAS}.unseen"], name=f"{_BIAS}.unseen")
    yield helper.make_node("Mul", [f"{_BIAS}.unseen", "plain.unseen"], [f"{_BIAS}.flat"], name=f"{_BIAS}.flat")
    yield helper.make_node("Unsqueeze", [f"{_BIAS}.flat", "plain.axes"], [_BIAS], name=_BIAS)


def _plain(node: NodeProto) -> Iterator[NodeProto]:
    """Attention of q, k and v [tiles, patches, heads * D] in plain operators."""
    from onnx import helper

    others = [name for place, name in enumerate(node.input) if place > 2 and place != _MASK and name]
    if others or {attribute.name for attribute in node.attribute} - {"num_heads", "scale"}:
        raise ValueError(f"'{node.name}' is attention with more than queries, keys, values and a mask")
    out = node.output[0]

    def op(operator: str, inputs: list[str], name: str, **attributes: int | list[int]) -> NodeProto:
        output = out if name == "joined" else f"{out}.{name}"
        new = helper.make_node(operator, inputs, [output], name=f"{out}.{name}")
        new.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        return new

    for part, value, order in zip("qkv", node.input[:3], ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
        yield op("Reshape", [value, "plain.heads"], f"{part}.heads")
        yield op("Transpose", [f"{out}.{part}.heads"], part, perm=order)
    yield op("Mul", [f"{out}.q", "plain.scale"], "scaled")  # before the product, which float16 may not hold
    yield op("MatMul", [f"{out}.scaled", f"{out}.k"], "scores")
    scores = f"{out}.scores"
    if _is_masked(node):
        yield op("Add", [scores, _BIAS], "scores.masked")
        scores = f"{out}.scores.masked"
    yield op("Softmax", [scores], "weights", axis=-1)
    yield op("MatMul", [f"{out}.weights", f"{out}.v"], "by_head")
    yield op("Transpose", [f"{out}.by_head"], "together", perm=[0, 2, 1, 3])
    yield op("Reshape", [f"{out}.together", "plain.joined"], "joined")
