"""Which nodes of a graph DirectML's kernels would not take, or would silently compute otherwise.

Sources, per row:
[K] ONNX Runtime, docs/OperatorKernels.md, the table of DmlExecutionProvider: operator versions and types.
[S] ONNX Runtime, core/providers/dml/DmlExecutionProvider/src/Operators/DmlOperator*.cpp: what a kernel reads of a node.
[R] seen in runs of onnxruntime-directml 1.24.4 (docs/directml.md).
Both texts are of mid 2026. The table holds what our graphs need; what it does not know counts as not taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

from embedllm.export.onnx.builder import MICROSOFT

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
_BYTES = frozenset({TensorProto.UINT8})
_INT32, _INT64 = frozenset({TensorProto.INT32}), frozenset({TensorProto.INT64})
_PLACES = _INT32 | _INT64
_NUMBERS = _FLOATS | _BYTES | _PLACES


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What DirectML takes of one operator."""

    versions: frozenset[int]  # of the operator in its domain
    takes: tuple[frozenset[int], ...]  # types of each input; the last one those of all that follow
    gives: int | None = 0  # the input whose type the outputs have; None: the attribute `to` says
    needs: frozenset[int] = frozenset()  # inputs that may not be left out
    constant: frozenset[int] = frozenset()  # inputs that must be initializers
    lacks: Mapping[int, str] = field(default_factory=dict)  # inputs that it refuses or does not read, by name
    # attributes and the values that it takes; None: any. An attribute that is not here, it does not read
    attributes: Mapping[str, frozenset[float] | None] = field(default_factory=dict)


_KERNELS: dict[tuple[str, str], Kernel] = {
    ("", "Add"): Kernel(versions=frozenset({7, 13, 14}), takes=(_NUMBERS,)),  # [K]
    ("", "Cast"): Kernel(
        versions=frozenset({6, 9, 13, 19, 21}), takes=(_NUMBERS,), gives=None, attributes={"to": _NUMBERS}
    ),  # [K]
    ("", "Concat"): Kernel(versions=frozenset({4, 11, 13}), takes=(_NUMBERS,), attributes={"axis": None}),  # [K]
    ("", "Elu"): Kernel(versions=frozenset({6}), takes=(_FLOATS,), attributes={"alpha": None}),  # [K]
    ("", "Floor"): Kernel(versions=frozenset({6, 13}), takes=(_FLOATS,)),  # [K]
    ("", "Gather"): Kernel(
        versions=frozenset({1, 11, 13}), takes=(_NUMBERS, _PLACES), attributes={"axis": None}
    ),  # [K]
    ("", "LayerNormalization"): Kernel(
        versions=frozenset({1, 17}), takes=(_FLOATS,), attributes={"axis": None, "epsilon": None, "stash_type": None}
    ),  # [K]
    ("", "MatMul"): Kernel(versions=frozenset({1, 9, 13}), takes=(_FLOATS,)),  # [K]
    ("", "Mul"): Kernel(versions=frozenset({7, 13, 14}), takes=(_NUMBERS,)),  # [K]
    ("", "Pad"): Kernel(
        versions=frozenset({2, 11, 13, 18, 19, 21}), takes=(_NUMBERS, _INT64, _NUMBERS, _PLACES),
        constant=frozenset({1, 3}), attributes={"mode": None},
    ),  # [K] [S]: where and how much is read on the CPU, when the kernel is made
    ("", "ReduceSum"): Kernel(
        versions=frozenset({1, 11, 13}), takes=(_FLOATS, _INT64), constant=frozenset({1}),
        attributes={"keepdims": None, "noop_with_empty_axes": None},
    ),  # [K] [S]
    ("", "Relu"): Kernel(versions=frozenset({6, 13, 14}), takes=(_FLOATS,)),  # [K]
    ("", "Reshape"): Kernel(
        versions=frozenset({5, 13, 14, 19, 21}), takes=(_NUMBERS, _INT64), constant=frozenset({1})
    ),  # [K] [S]
    ("", "Sigmoid"): Kernel(versions=frozenset({6, 13}), takes=(_FLOATS,)),  # [K]
    ("", "SimplifiedLayerNormalization"): Kernel(
        versions=frozenset({1}), takes=(_FLOATS,), attributes={"axis": None, "epsilon": None, "stash_type": None}
    ),  # [K]
    ("", "Slice"): Kernel(
        versions=frozenset({1, 10, 11, 13}), takes=(_NUMBERS, _PLACES), constant=frozenset({1, 2, 3, 4})
    ),  # [K] [S]
    ("", "Split"): Kernel(
        versions=frozenset({2, 11, 13, 18}), takes=(_NUMBERS, _INT64), constant=frozenset({1}),
        attributes={"axis": None},
    ),  # [K] [S]
    ("", "Sub"): Kernel(versions=frozenset({7, 13, 14}), takes=(_NUMBERS,)),  # [K]
    ("", "Tanh"): Kernel(versions=frozenset({6, 13}), takes=(_FLOATS,)),  # [K]
    ("", "Transpose"): Kernel(versions=frozenset({1, 13, 21}), takes=(_NUMBERS,), attributes={"perm": None}),  # [K]
    ("", "Unsqueeze"): Kernel(
        versions=frozenset({1, 11, 13, 21}), takes=(_NUMBERS, _INT64), constant=frozenset({1})
    ),  # [K] [S]
    (MICROSOFT, "FastGelu"): Kernel(versions=frozenset({1}), takes=(_FLOATS,)),  # [K]
    (MICROSOFT, "Gelu"): Kernel(versions=frozenset({1}), takes=(_FLOATS,)),  # [K]
    (MICROSOFT, "GroupQueryAttention"): Kernel(
        versions=frozenset({1}),
        takes=(_FLOATS, _FLOATS, _FLOATS, _FLOATS, _FLOATS, _INT32),
        needs=frozenset({1, 2}),  # [S] no q, k and v side by side
        # [S] neither rotation nor anything else than plain attention; the norms are refused, the rest not read
        lacks={7: "cos_cache", 8: "sin_cache", 9: "position_ids", 10: "attention_bias", 11: "head_sink", 12: "k_scale",
               13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight"},
        attributes={"num_heads": None, "kv_num_heads": None, "scale": None, "causal": frozenset({1}),
                    "do_rotary": frozenset({0}), "local_window_size": frozenset({-1}), "softcap": frozenset({0})},
    ),  # [K] [S]
    (MICROSOFT, "MatMulNBits"): Kernel(
        versions=frozenset({1}),
        takes=(_FLOATS, _BYTES, _FLOATS, _BYTES),
        lacks={4: "g_idx", 5: "bias"},  # [S] refused
        attributes={"K": None, "N": None, "bits": frozenset({4, 8}), "block_size": None, "accuracy_level": None},
    ),  # [K] [S] [R]
    (MICROSOFT, "QuickGelu"): Kernel(versions=frozenset({1}), takes=(_FLOATS,), attributes={"alpha": None}),  # [K]
    (MICROSOFT, "RotaryEmbedding"): Kernel(
        versions=frozenset({1}),
        takes=(_FLOATS, _INT64, _FLOATS),
        needs=frozenset({1, 2, 3}),
        # [S] the size of a head is twice the width of the tables
        attributes={"interleaved": None, "num_heads": None, "rotary_embedding_dim": frozenset({0}),
                    "is_packed_batching": frozenset({0}), "scale": frozenset({1})},
    ),  # [K] [S] [R]
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): Kernel(
        versions=frozenset({1}), takes=(_FLOATS,), attributes={"epsilon": None}
    ),  # [K]
}  # fmt: skip


def check_directml(model: onnx.ModelProto) -> tuple[str, ...]:
    """What DirectML would not take of a graph, in words; nothing when it would take all of it.

    Nodes of constants only are passed by: ONNX Runtime computes them when it loads.
    """
    return tuple(_Checker(model).problems())


class _Checker:
    """Walks a graph in order, knowing the types of all values so far."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        inputs = {info.name: info.type.tensor_type for info in self.graph.input}
        self.shapes = {name: [d.dim_param or d.dim_value for d in kind.shape.dim] for name, kind in inputs.items()}
        self.shapes |= {
            info.name: [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]
            for info in self.graph.output
        }
        self.types = {tensor.name: tensor.data_type for tensor in self.graph.initializer}
        self.types |= {name: kind.elem_type for name, kind in inputs.items()}
        self.constants = {tensor.name for tensor in self.graph.initializer} - inputs.keys()
        self.widths = {tensor.name: tensor.dims[-1] for tensor in self.graph.initializer if tensor.dims}

    def problems(self) -> Iterator[str]:
        for node in self.graph.node:
            kernel = _KERNELS.get((node.domain, node.op_type))
            values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if self.constants.issuperset(name for name in node.input if name):
                self.constants.update(node.output)
                if node.op_type == "Cast":  # the last dimension of a table, through its Cast
                    self.widths[node.output[0]] = self.widths.get(node.input[0], 0)
            elif kernel is None:
                yield f"'{node.name}': no kernel is known for {node.op_type}"
            else:
                yield from (f"'{node.name}': {lack}" for lack in self.lacks(node, kernel, values))
            source = 0 if kernel is None else kernel.gives
            kind = values.get("to") if source is None else self.types.get(node.input[source])
            if isinstance(value := values.get("value"), TensorProto):  # of a ConstantOfShape
                kind = value.data_type
            if isinstance(kind, int):
                self.types |= dict.fromkeys(node.output, kind)

    def lacks(self, node: onnx.NodeProto, kernel: Kernel, values: Mapping[str, object]) -> Iterator[str]:
        version = self.version(node)
        if version not in kernel.versions:
            yield f"there is no kernel for {node.op_type} of opset {version}"
        for place, name in enumerate(node.input):
            types, kind = kernel.takes[min(place, len(kernel.takes) - 1)], self.types.get(name)
            if name and place in kernel.lacks:
                yield f"{node.op_type} does not take the input {kernel.lacks[place]}"
            elif kind is not None and kind not in types:
                yield f"{node.op_type} does not take input {place} in {TensorProto.DataType.Name(kind)}"
            if name and place in kernel.constant and name not in self.constants:
                yield f"{node.op_type} needs input {place} as a constant"
        for place in kernel.needs:
            if place >= len(node.input) or not node.input[place]:
                yield f"{node.op_type} needs input {place}"
        for name, value in values.items():
            supported = kernel.attributes.get(name, frozenset())
            if supported is not None and value not in supported:
                yield f"{node.op_type} does not do {name} {value}"
        yield from _SHAPES.get(node.op_type, lambda *_: ())(self, node, values)

    def version(self, node: onnx.NodeProto) -> int:
        """Of the operator that a node's opset means; 1 for those of ONNX Runtime."""
        if node.domain or not onnx.defs.has(node.op_type):
            return 1
        return onnx.defs.get_schema(node.op_type, self.opsets.get("", 1)).since_version


def _blocks(checker: _Checker, node: onnx.NodeProto, values: Mapping[str, object]) -> Iterator[str]:
    columns, block = values.get("K"), values.get("block_size")
    if not isinstance(columns, int) or not isinstance(block, int):
        return
    if columns % block:  # [S] [R] left to the CPU
        yield f"MatMulNBits does not take rows of {columns} values in blocks of {block}"
    elif values.get("bits") == 8 and columns // block % 2 and len(node.input) > 3 and node.input[3]:
        # [S] it takes each row for one byte longer than it is. [R] wrong products
        yield f"MatMulNBits misreads rows of {columns // block} zero points, an odd number, of 8 bits"


def _tables(checker: _Checker, node: onnx.NodeProto, values: Mapping[str, object]) -> Iterator[str]:
    sizes = {shape[-1] for name, shape in checker.shapes.items() if name.startswith("past_key_values.") and shape}
    for name in node.input[2:4]:
        width = checker.widths.get(name, 0)
        if sizes and sizes != {2 * width}:
            yield f"RotaryEmbedding rotates heads of {2 * width} values; the model's have {', '.join(map(str, sizes))}"


def _shared(checker: _Checker, node: onnx.NodeProto, values: Mapping[str, object]) -> Iterator[str]:
    """[S] The past is read from where the present is written."""
    for past, present in zip(node.input[3:5], node.output[1:3], strict=False):
        if checker.shapes.get(past) != checker.shapes.get(present):
            yield f"GroupQueryAttention needs '{past}' and '{present}' to be one buffer; their shapes differ"


_SHAPES = {"MatMulNBits": _blocks, "RotaryEmbedding": _tables, "GroupQueryAttention": _shared}
