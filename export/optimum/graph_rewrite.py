"""Takes the weights out of a graph that another exporter has traced, and puts products with stored matrices in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedllm.errors import ExportError
from embedllm.export.layout import Layout
from embedllm.export.onnx.builder import MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.package.architecture.weights import Linear, Origin
from embedllm.package.graph_variants import EXTERNAL
from embedllm.package.packing import Packing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embedllm.types import F32

_LEAST = 32  # rows and columns of a matrix that is worth rounding
_STORED = 1024  # bytes; what is smaller stays in the graph
_POINTWISE = frozenset({"Add", "Cast", "Clip", "Div", "Identity", "Mul", "Sub", "Tanh"})
_LOGITS_FROM = "logits_from"
_END = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Where a matrix is used: a product, or a look-up of rows."""

    node: onnx.NodeProto
    linear: Linear
    looks_up: bool


@dataclass(slots=True, kw_only=True)
class TracedGraph:
    """A graph as it was read, and what was found in it."""

    model: onnx.ModelProto
    folder: Path  # where its large tensors lie
    vocabulary: int
    uses: list[Use] = field(default_factory=list)

    @property
    def tensors(self) -> dict[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @property
    def matrices(self) -> list[Linear]:
        """Each once, the embedding first."""
        ordered = sorted(self.uses, key=lambda use: not use.looks_up)
        return list({use.linear.name: use.linear for use in ordered}.values())

    @property
    def rest(self) -> list[TensorProto]:
        """Float tensors that are large enough to be stored, and are no matrices."""
        matrix_names = {use.linear.source for use in self.uses} | {_weight(use) for use in self.uses}
        return [
            tensor
            for tensor in self.model.graph.initializer
            if tensor.name not in matrix_names
            and tensor.data_type == TensorProto.FLOAT
            and 4 * np.prod(tensor.dims) >= _STORED
        ]

    def array(self, tensor: TensorProto) -> np.ndarray:
        """Its values; a large tensor beside the graph is mapped, not read."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        facts = {entry.key: entry.value for entry in tensor.external_data}
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        path = self.folder / facts["location"]
        return np.memmap(path, dtype, "r", int(facts.get("offset", 0)), tuple(tensor.dims))


class GraphSource:
    """The matrices of a traced graph, read by rows."""

    def __init__(self, traced: TracedGraph) -> None:
        self._traced = traced
        self._tensors = {f"{tensor.name}.weight": tensor for tensor in traced.model.graph.initializer}
        self._open: dict[str, np.ndarray] = {}

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        dims = tuple(self._tensors[name].dims)
        if dims != shape:
            raise ExportError(f"'{name}' has the shape {dims}; expected {shape}.")

    def rows(self, name: str, start: int, stop: int) -> F32:
        values = self._open.get(name)
        if values is None:
            values = self._traced.array(self._tensors[name])
            self._open = {name: values}  # one at a time, as they may be large; several threads may want different ones
        return np.asarray(values[start:stop], np.float32)


def read_traced(path: Path) -> TracedGraph:
    """A decoder's graph with past keys and values, as optimum writes it. Raises ExportError for another one."""
    model = onnx.load(path, load_external_data=False)
    logits = {output.name: output for output in model.graph.output}.get("logits")
    sizes = [] if logits is None else _dims(logits)
    if len(sizes) != 3 or not isinstance(sizes[-1], int):
        raise ExportError(f"the graph that optimum wrote has no 'logits' [B, T, vocabulary]; it gives {_named(model)}.")
    traced = TracedGraph(model=model, folder=path.parent, vocabulary=sizes[-1])
    traced.uses.extend(_uses(traced))
    return traced


def kv_shapes(traced: TracedGraph) -> tuple[tuple[int, int], ...]:
    """By layer: KV heads, and the size of a key or value. Raises ExportError unless they grow along the third axis."""
    inputs = {value.name: _dims(value) for value in traced.model.graph.input}
    names = [name for name in inputs if name.startswith("past_key_values.")]
    shapes: list[tuple[int, int]] = []
    for index in range(len(names) // 2):
        pair = [inputs.get(f"past_key_values.{index}.{part}", []) for part in ("key", "value")]
        if pair[0] != pair[1] or [isinstance(size, int) for size in pair[0]] != [False, True, False, True]:
            raise ExportError(
                f"layer {index} of the graph that optimum wrote keeps {pair[0]} and {pair[1]}; expected a key and a "
                "value of [batch, heads, tokens, size] each. Such a model cannot be exported."
            )
        shapes.append((int(pair[0][1]), int(pair[0][3])))
    others = inputs.keys() - {*names, "input_ids", "attention_mask", "position_ids"}
    if not shapes or others:
        raise ExportError(
            f"the graph that optimum wrote has the inputs {', '.join(inputs)}; expected tokens, their mask and "
            "positions, and keys and values per layer. Such a model cannot be exported."
        )
    return tuple(shapes)


def rewritten(traced: TracedGraph, layout: Layout, packing: Mapping[str, Packing], *, exact: bool) -> bytes:
    """The graph over the weights file; it gives the last logits alone unless it is asked for more."""
    variant = replace(EXTERNAL, accuracy_level=0) if exact else EXTERNAL
    graph, uses = traced.model.graph, {use.node.name: use for use in traced.uses}
    _cut_logits(traced)
    nodes: list[onnx.NodeProto] = []
    tensors: dict[str, TensorProto] = {}
    for node in graph.node:
        if (use := uses.get(node.name)) is None:
            nodes.append(node)
            continue
        part = Graph(layout, variant.activations)
        part.scope = node.name.strip("/").replace("/", ".") or use.linear.name
        _emit(Products(part, packing, variant), use)
        nodes += part.nodes
        tensors |= {tensor.name: tensor for tensor in part.initializers}
    stored = Graph(layout, variant.activations)
    for tensor in traced.rest:
        stored.stored([tensor.name], shape=list(tensor.dims))
    tensors |= {tensor.name: tensor for tensor in stored.initializers}
    gone = {_weight(use) for use in traced.uses} | tensors.keys()
    others = [tensor for tensor in graph.initializer if tensor.name not in gone]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*others, *tensors.values()])
    if MICROSOFT not in {opset.domain for opset in traced.model.opset_import}:
        traced.model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return traced.model.SerializeToString(deterministic=True)


def _emit(products: Products, use: Use) -> None:
    """What stands for a node of the traced graph, under the same output."""
    graph, node = products.graph, use.node
    if use.looks_up:
        rows = products.embedding(use.linear, node.input[1])
        graph.node("Identity", [rows], [node.output[0]], f"{graph.scope}.given")
        return
    bias = node.input[2] if node.op_type == "Gemm" and len(node.input) > 2 else ""
    product = products.linear(node.input[0], [use.linear], "product", output="" if bias else node.output[0])
    if bias:
        graph.node("Add", [product, bias], [node.output[0]], f"{graph.scope}.sum")


def _uses(traced: TracedGraph) -> Iterator[Use]:
    tensors = traced.tensors
    tables: list[Linear] = []
    for index, node in enumerate(traced.model.graph.node):
        node.name = node.name or f"node.{index}"
        if node.op_type == "Gather" and (tensor := tensors.get(node.input[0])) is not None:
            is_table = list(tensor.dims[:1]) == [traced.vocabulary] and len(tensor.dims) == 2
            if is_table and tensor.data_type == TensorProto.FLOAT:
                rows, columns = tensor.dims
                tables.append(Linear(name=tensor.name, source=tensor.name, rows=rows, columns=columns))
                yield Use(node=node, linear=tables[-1], looks_up=True)
    for node in traced.model.graph.node:
        if (linear := _product(node, tensors)) is not None:
            yield Use(node=node, linear=_tied(traced, linear, tables), looks_up=False)


def _product(node: onnx.NodeProto, tensors: dict[str, TensorProto]) -> Linear | None:
    """The matrix that a node multiplies by, where it is large enough."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    usual = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0} | attributes
    plain = (usual["transA"], usual["alpha"], usual["beta"]) == (0, 1.0, 1.0)
    tensor = tensors.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") and plain else None
    if tensor is None or len(tensor.dims) != 2 or min(tensor.dims) < _LEAST or tensor.data_type != TensorProto.FLOAT:
        return None
    is_transposed = not usual["transB"]
    rows, columns = reversed(tensor.dims) if is_transposed else tensor.dims
    origin = Origin(rows=rows, transposed=True) if is_transposed else None
    return Linear(name=tensor.name, source=tensor.name, rows=rows, columns=columns, origin=origin)


def _tied(traced: TracedGraph, linear: Linear, tables: Sequence[Linear]) -> Linear:
    """The table itself, where the matrix is a copy of it: optimum stores a tied head once more, transposed."""
    tensors = traced.tensors
    for table in tables:
        if (table.rows, table.columns) != (linear.rows, linear.columns):
            continue
        values = traced.array(tensors[linear.source])
        if np.array_equal(values.T if linear.origin else values, traced.array(tensors[table.source])):
            return table
    return linear


def _cut_logits(traced: TracedGraph) -> None:
    """Lets the head see the wanted positions only: "logits_from" and those behind, by default the last."""
    graph = traced.model.graph
    makers = {output: node for node in graph.node for output in node.output}
    heads = {use.node.name: use for use in traced.uses if use.linear.rows == traced.vocabulary and not use.looks_up}
    node = makers.get("logits")
    while node is not None and node.name not in heads and node.op_type in _POINTWISE:
        node = next((makers[name] for name in node.input if name in makers), None)
    if node is None or node.name not in heads or node.op_type != "MatMul":
        return  # all logits are given
    bounds = {_LOGITS_FROM: [-1], "logits_end": [_END], "logits_axis": [1]}
    graph.initializer.extend(numpy_helper.from_array(np.array(value, np.int64), name) for name, value in bounds.items())
    graph.input.append(helper.make_tensor_value_info(_LOGITS_FROM, TensorProto.INT64, [1]))
    cut = helper.make_node("Slice", [node.input[0], *bounds], ["logits_from.positions"], name="logits_from.cut")
    graph.node.insert(list(graph.node).index(node), cut)
    node.input[0] = cut.output[0]
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[1].dim_param = "logits_length"


def _weight(use: Use) -> str:
    """The tensor that a node reads, which a tied head has a copy of."""
    return use.node.input[0 if use.looks_up else 1]


def _dims(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _named(model: onnx.ModelProto) -> str:
    return ", ".join(f"'{output.name}' {_dims(output)}" for output in model.graph.output[:3])
