"""A folder's graph as captured steps need it: its lengths are inputs, and it finds the next token itself.

The provider captures a step only when all of it runs on the GPU, with the same buffers and shapes each time. So in the
place of the attention mask come `seqlens_k` int32 [B], on the GPU, and `total_sequence_length` int32 [1], on the host;
and the best token of each sequence's last row goes into the inputs of the step that greedy decoding wants next:

    next_ids   int64 [B, 1]           that token
    next_seqlens_k  int32 [B]         how many tokens are held then, less one
    next_found  float32 [KEPT, 3]     such tokens, the latest last, each with its logit and the sum of all exponentials
                                      of logits less that one: `found` of before without its first B rows
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.files.optional_packages import needs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

NUMBERS = 3  # of each best token
KEPT = 32  # best tokens that stay on the GPU until the host reads them
NOWHERE = float(1 << 24)  # in place of a token where no logit equals the highest: they are not numbers
_LOWEST = -3.0e38  # fills rows up
_MASK = "attention_mask"
_POSITIONS = "lengths.positions"  # of tokens, where something beside attention reads them: export/onnx/decoder.py
_SCOPE = "best"


def with_next_token(path: Path, vocabulary: int) -> bytes:
    """The graph of a file with these inputs and outputs. Its weights stay where they are.

    Raises ValueError when the graph cannot be captured like that: its mask is used for more than lengths, or it has
    attention with a window, which a session that captures gets wrong (docs/webgpu.md#faults).
    """
    with needs("onnx", "WebGPU"):
        import onnx

    model = onnx.load(str(path), load_external_data=False)
    _count_positions(model.graph)
    _take_lengths(model.graph)
    _find_best(model, vocabulary)
    return model.SerializeToString()


def _take_lengths(graph: GraphProto) -> None:
    """Replaces the mask by lengths. Raises ValueError where more than attention asks for it, or a window is there."""
    from onnx import TensorProto, helper

    readers = {name: [node for node in graph.node if name in node.input] for name in _named(graph.node)}
    producers = {name: node for node in graph.node for name in node.output}
    attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    if _has_window(attentions):
        raise ValueError("its attention has a window")
    lengths = {(node.input[5], node.input[6]) for node in attentions}
    if len(lengths) != 1 or not any(one.name == _MASK for one in graph.input):
        raise ValueError("its attention does not take lengths from one mask")
    own = {node.output[0]: node for name in next(iter(lengths)) for node in _sources(name, producers)}
    if any(reader.output[0] not in own for reader in readers[_MASK]):
        raise ValueError("its graph uses the attention mask for more than lengths")
    for node in attentions:
        node.input[5], node.input[6] = "seqlens_k", "total_sequence_length"
    for name, node in own.items():
        if all(reader.output[0] in own or reader in attentions for reader in readers[name]):
            graph.node.remove(node)
    mask = next(one for one in graph.input if one.name == _MASK)
    graph.input.remove(mask)
    graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.INT32, [size])
        for name, size in (("seqlens_k", "batch"), ("total_sequence_length", 1))
    )


def _count_positions(graph: GraphProto) -> None:
    """Takes positions from the length in place of the mask, where a graph computes them."""
    from onnx import TensorProto, helper, numpy_helper

    producers = {name: node for node in graph.node for name in node.output}
    if _POSITIONS not in producers:
        return
    _remove(graph, {node.output[0]: node for node in _sources(_POSITIONS, producers)})
    ids, none, each, behind, lengths, places, one, axis, column = (
        f"{_POSITIONS}.{name}"
        for name in ("ids", "none", "each", "behind", "lengths", "places", "one", "axis", "column")
    )
    nodes = (  # int32, which the provider has all of these for
        helper.make_node("Cast", ["input_ids"], [ids], to=TensorProto.INT32),
        helper.make_node("Sub", [ids, ids], [none]),
        helper.make_node("Add", [none, one], [each]),
        helper.make_node("CumSum", [each, axis], [behind], exclusive=1, reverse=1),
        helper.make_node("Reshape", ["seqlens_k", column], [lengths]),  # no kernel
        helper.make_node("Sub", [lengths, behind], [places]),
        helper.make_node("Cast", [places], [_POSITIONS], to=TensorProto.INT64),
    )
    for at, node in enumerate(nodes):
        graph.node.insert(at, node)
    graph.initializer.extend(numpy_helper.from_array(np.array(1, np.int32), name) for name in (one, axis))
    graph.initializer.append(numpy_helper.from_array(np.array([-1, 1]), column))


def _remove(graph: GraphProto, nodes: dict[str, NodeProto]) -> None:
    """Removes a node that makes positions, and of those before it what nobody else reads. nodes: by what they make."""
    graph.node.remove(nodes.pop(_POSITIONS))
    while unread := nodes.keys() - {name for node in graph.node for name in node.input}:
        for name in unread:
            graph.node.remove(nodes.pop(name))


def _has_window(attentions: Iterable[NodeProto]) -> bool:
    return any(each.name == "local_window_size" and each.i > 0 for node in attentions for each in node.attribute)


def _sources(name: str, producers: dict[str, NodeProto]) -> Iterator[NodeProto]:
    """The node that makes a value, and those that make what it is made of."""
    if name in producers:
        yield producers[name]
        for source in producers[name].input:
            yield from _sources(source, producers)


def _named(nodes: Iterable[NodeProto]) -> set[str]:
    return {name for node in nodes for name in (*node.input, *node.output) if name}


def _find_best(model: ModelProto, vocabulary: int) -> None:
    """Adds the nodes that find the best token.

    Rows of logits are taken as squares, because this provider reduces with one workgroup for each result: a row of
    150,000 at once would use a hundredth of the GPU. ArgMax has no more than a thread for each result.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    logits = next(one for one in graph.output if one.name == "logits")
    kind = logits.type.tensor_type.elem_type
    across = square_side(vocabulary)
    down = -(-vocabulary // across)
    missing = down * across - vocabulary
    constants: dict[str, np.ndarray] = {
        "square": np.array([-1, down, across]), "column": np.array([-1, 1, down]), "row": np.array([-1, NUMBERS]),
        "single": np.array([-1, 1]), "axis": np.array([2]), "rows": np.array([0]), "kept": np.array([-KEPT]),
        "end": np.array([np.iinfo(np.int64).max]), "padding": np.array([0, 0, 0, 0, 0, missing]),
        "lowest": np.array(_LOWEST, np.float32), "nowhere": np.array(NOWHERE, np.float32),
        "tokens": np.arange(down * across, dtype=np.float32).reshape(1, down, across), "flat": np.array([-1]),
    }  # fmt: skip

    def op(operator: str, *inputs: str, name: str, **attributes: int) -> str:
        output = name if name.startswith("next_") else f"{_SCOPE}.{name}"
        places = [f"{_SCOPE}.{place}" if place in constants else place for place in inputs]
        node = helper.make_node(operator, places, [output], name=f"{_SCOPE}.{name}")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        graph.node.append(node)
        return output

    def cast(value: str, kind: int, name: str) -> str:
        return op("Cast", value, name=name, to=kind)

    def reduced(operator: str, squares: str, name: str) -> str:
        """[T', D, A] to [T', 1, 1]."""
        rows = op(operator, squares, "axis", name=f"{name}.rows", keepdims=1)
        return op(operator, op("Reshape", rows, "column", name=f"{name}.column"), "axis", name=name, keepdims=1)

    floats = "logits" if kind == TensorProto.FLOAT else cast("logits", TensorProto.FLOAT, "floats")
    full = op("Pad", floats, "padding", "lowest", name="full") if missing else floats
    squares = op("Reshape", full, "square", name="squares")
    highest = reduced("ReduceMax", squares, "highest")
    same = op("Equal", squares, highest, name="same")
    token = reduced("ReduceMin", op("Where", same, "tokens", "nowhere", name="numbers"), "token")
    weights = op("Exp", op("Sub", squares, highest, name="below"), name="weights")
    both = op("Concat", token, highest, reduced("ReduceSum", weights, "sum"), name="both", axis=2)
    numbers = op("Reshape", both, "row", name="row.of.found")
    longer = op("Concat", "found", numbers, name="longer", axis=0)
    op("Slice", longer, "kept", "end", "rows", name="next_found")
    cast(op("Reshape", token, "single", name="token.single"), TensorProto.INT64, "next_ids")
    # one more, once all is done: attention still reads the length where this is written
    done = op("Reshape", op("Equal", token, token, name="is_done"), "flat", name="is_done.flat")
    op("Add", "seqlens_k", cast(done, TensorProto.INT32, "more"), name="next_seqlens_k")
    graph.initializer.extend(numpy_helper.from_array(value, f"{_SCOPE}.{name}") for name, value in constants.items())
    graph.input.append(helper.make_tensor_value_info("found", TensorProto.FLOAT, [KEPT, NUMBERS]))
    graph.output.extend(
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("next_ids", TensorProto.INT64, ["rows", 1]),
            ("next_seqlens_k", TensorProto.INT32, ["rows"]),
            ("next_found", TensorProto.FLOAT, [KEPT, NUMBERS]),
        )
    )


def square_side(vocabulary: int) -> int:
    """The side of a square of at least that many, with nothing left over where there is a near one like that."""
    side = max(int(vocabulary**0.5), 1)
    return next((size for size in range(side, 2 * side) if vocabulary % size == 0), side)
