"""What a device computes wrongly of a graph that another exporter has written, and says nothing."""

from __future__ import annotations

from embedllm.onnx_outline import Node, Outline

_SCALES, _ZERO_POINTS = 2, 3  # inputs of both operators that have such


def faults(outline: Outline) -> dict[str, str]:
    """By the device that must not run it, what is in the way."""
    counts = (count for node in outline.nodes if (count := _odd_zero_points(node, outline)) is not None)
    if (count := next(counts, None)) is None:
        return {}
    lack = f"rows have {count} zero points of 4 bits, an odd number, which ONNX Runtime's CUDA operators misread"
    return {"cuda": lack}  # docs/cuda.md


def _odd_zero_points(node: Node, outline: Outline) -> int | None:
    """The zero points of a row of 4-bit values, where it has an odd number of them."""
    if not any(node.inputs[_ZERO_POINTS:][:1]) or node.numbers.get("bits", 4) != 4:
        return None
    count, group = 0, node.numbers.get("block_size", 0)
    if node.operator == "MatMulNBits" and group > 0:
        count = -(-node.numbers.get("K", 0) // group)
    elif node.operator == "GatherBlockQuantized":
        count = outline.widths.get(node.inputs[_SCALES], 0)
    return count if count % 2 else None
