"""What a device does not compute of a graph that another exporter has written, or computes wrongly and says nothing."""

from __future__ import annotations

from collections.abc import Iterator

from embedllm.package.onnx_reader import GraphSummary, Node

_SCALES, _ZERO_POINTS = 2, 3  # inputs of both operators that have such
_NORMS = slice(14, 16)  # inputs of GroupQueryAttention
# of it: inputs that DirectML does not read, the first one at this place (export/onnx/directml_rules.py), and
# attributes of which it takes these values only
_PLAIN, _VALUES = 7, {"do_rotary": 0, "local_window_size": -1, "softcap": 0, "smooth_softmax": 0}


def faults(summary: GraphSummary) -> dict[str, str]:
    """By the device that must not run it, what is in the way."""
    by_device: dict[str, str] = {}
    for device, lack in _faults(summary):
        by_device.setdefault(device, lack)
    return by_device


def _faults(summary: GraphSummary) -> Iterator[tuple[str, str]]:
    for node in (*summary.nodes, *summary.branches):
        bits, count = _zero_points(node, summary)
        if count % 2 and bits == 4:  # docs/cuda.md
            yield "cuda", f"rows have {count} zero points of 4 bits, an odd number, which its operators misread"
        if count % 2 and bits == 8:  # docs/directml.md
            yield "directml", f"rows have {count} zero points of 8 bits, an odd number, which it misreads"
        if node.operator == "GroupQueryAttention" and any(node.inputs[_NORMS]):  # 1.31; it says so at the first feed
            yield "cpu", "attention norms q and k, which ONNX Runtime does not do on a processor"
        if node.operator == "GroupQueryAttention" and (odd := _beyond(node)):
            yield "directml", f"attention has {odd}, which DirectML does not do, and does not say"


def _zero_points(node: Node, summary: GraphSummary) -> tuple[float, int]:
    """The bits of a node's matrix, and how many zero points a row has; 0 where it has none."""
    bits, group = node.numbers.get("bits", 4), node.numbers.get("block_size", 0)
    if not any(node.inputs[_ZERO_POINTS:][:1]):
        return bits, 0
    if node.operator == "MatMulNBits" and group > 0:
        return bits, int(-(-node.numbers.get("K", 0) // group))
    return bits, summary.widths.get(node.inputs[_SCALES], 0) if node.operator == "GatherBlockQuantized" else 0


def _beyond(node: Node) -> str:
    """What attention has that is not plain; empty when it is."""
    odd = next((name for name, usual in _VALUES.items() if node.numbers.get(name, usual) != usual), "")
    if not odd and not all(node.inputs[1:3]):
        odd = "q, k and v in one tensor"
    return odd or ("more inputs than the plain one" if any(node.inputs[_PLAIN:]) else "")
