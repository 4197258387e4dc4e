"""What an ONNX file declares, read without its tensors: inputs, outputs, operators, the files its weights lie in.

A reader of our own, as protobuf parses whole messages: of a graph with 0.6 GB of weights in it, onnx.load takes 1.2 GB
of memory and ten times as long (docs/dependencies.md). Here the file is mapped, and of a tensor only its head is looked
at. Field numbers: onnx.proto (ONNX 1.17). Standard library only.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from embedllm.errors import PackageError

FLOAT, INT32, INT64, BOOL, FLOAT16 = 1, 6, 7, 9, 10  # TensorProto.DataType
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MOST = 2**63  # values of a tensor
_FLOAT_BYTES = 4
_EXTERNAL = 1  # the value of TensorProto.data_location
_DECLARED_1, _UNDECLARED = b"\x08\x01", b"\x12\x00"  # a Dimension: a value of 1, an empty name; of one length
Span: TypeAlias = tuple[int, int]  # of bytes of the file
_Fields: TypeAlias = "Iterator[tuple[int, int, Span]]"  # number, the value of a varint, where bytes lie


class _Model:
    """Field numbers of ModelProto."""

    GRAPH, FUNCTIONS = 7, 25


class _Graph:
    """Of GraphProto."""

    NODE, INITIALIZER, INPUT, OUTPUT = 1, 5, 11, 12


class _Function:
    """Of FunctionProto."""

    NODE = 7


class _Node:
    """Of NodeProto."""

    INPUT, OUTPUT, NAME, OP_TYPE, ATTRIBUTE = 1, 2, 3, 4, 5


class _Attribute:
    """Of AttributeProto."""

    NAME, FLOAT, INT, GRAPH, GRAPHS = 1, 2, 3, 6, 11


class _Tensor:
    """Of TensorProto."""

    DIMS, NAME, EXTERNAL_DATA, DATA_LOCATION = 1, 8, 13, 14


class _Entry:
    """Of StringStringEntryProto."""

    KEY, VALUE = 1, 2


class _Value:
    """Of ValueInfoProto."""

    NAME, TYPE = 1, 2


class _Type:
    """Of TypeProto, and of the TypeProto.Tensor in it."""

    TENSOR_TYPE = 1
    ELEM_TYPE, SHAPE = 1, 2


class _Shape:
    """Of TensorShapeProto, and of the Dimension in it."""

    DIM = 1
    DIM_VALUE, DIM_PARAM = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInfo:
    """An input or an output, as ValueInfoProto declares it."""

    name: str
    kind: int  # TensorProto.DataType; 0: no tensor
    dims: tuple[int | str, ...]  # a name for a size that is not fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)  # its attributes that are one number each


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """The node that makes a value, to be written into another graph."""

    node: Node
    operator: bytes  # as the file has it: what it computes, and its attributes; without names and values


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """A file's graph."""

    inputs: tuple[ValueInfo, ...]  # without those that have a default
    outputs: tuple[ValueInfo, ...]
    nodes: tuple[Node, ...]
    branches: tuple[Node, ...] = ()  # those of the graphs that nodes hold (If), at any depth, and of functions
    files: tuple[str, ...]  # beside it, that its tensors lie in
    stored: int  # values of its tensors; packed ones count as the bytes that they lie in
    widths: Mapping[str, int]  # the last dimension of each tensor that has any


def read_graph_summary(path: Path) -> GraphSummary:
    """Raises PackageError for what is no ONNX file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).summary()
    except (OSError, ValueError) as error:  # ValueError: an empty file, or what the reader found
        raise PackageError(f"'{path}' is no ONNX model that can be read: {error}. Fetch the file again.") from error


def with_any_size(data: bytes, output: str, axis: int) -> bytes:
    """The same graph, where the size of an output along an axis, declared as 1, is not declared.

    ONNX Runtime refuses to write more into a buffer than is declared, though the graph computes it. As it was where
    another size is declared or none. Raises ValueError for what is no ONNX file.
    """
    at = _Reader(data).dimension_of(output, axis)
    return data if at is None or data[slice(*at)] != _DECLARED_1 else data[: at[0]] + _UNDECLARED + data[at[1] :]


def read_makers(data: bytes, values: Collection[str]) -> dict[str, Maker]:
    """What makes some values of a graph, by value, without those that no node makes; nothing else is looked at.

    Raises ValueError for what is no ONNX file.
    """
    return _Reader(data).makers(values)


def read_versions(data: bytes) -> bytes:
    """A model without its graph and its functions: versions of the format and of the operators, who wrote it."""
    return _Reader(data).without((0, len(data)), {_Model.GRAPH, _Model.FUNCTIONS})


def _signed(value: int) -> int:
    """An int64 of the varint that it is written as."""
    return value - 2**64 if value >= 2**63 else value


class _Reader:
    """Messages of protocol buffers in a mapped file. Raises ValueError for lengths that lead out of their message."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data

    def summary(self) -> GraphSummary:
        parts = [(number, span) for number, _, span in self._fields((0, len(self._data)))]
        graphs = [span for number, span in parts if number == _Model.GRAPH][-1:]
        if not graphs:
            raise ValueError("it has no graph")
        inputs: list[ValueInfo] = []
        outputs: list[ValueInfo] = []
        nodes: list[Node] = []
        branches: list[Node] = []
        files: dict[str, None] = {}
        defaults: set[str] = set()
        stored = 0
        widths: dict[str, int] = {}
        for function in (span for number, span in parts if number == _Model.FUNCTIONS):
            nodes_of = (span for number, _, span in self._fields(function) if number == _Function.NODE)
            branches += [self._node(span, graphs) for span in nodes_of]
        for graph in graphs:  # which grow by those that are found within
            is_inner = graph is not graphs[0]
            for number, _, span in self._fields(graph):
                if number == _Graph.NODE:
                    (branches if is_inner else nodes).append(self._node(span, graphs))
                elif number == _Graph.INITIALIZER:
                    name, sizes, file = self._tensor(span)
                    defaults.add(name)
                    stored += math.prod(sizes)
                    if sizes:
                        widths[name] = sizes[-1]
                    if file is not None:
                        files[file] = None
                elif number in (_Graph.INPUT, _Graph.OUTPUT) and not is_inner:
                    (inputs if number == _Graph.INPUT else outputs).append(self._value_info(span))
        return GraphSummary(
            inputs=tuple(one for one in inputs if one.name not in defaults),
            outputs=tuple(outputs),
            nodes=tuple(nodes),
            branches=tuple(branches),
            files=tuple(files),
            stored=stored,
            widths=widths,
        )

    def dimension_of(self, output: str, axis: int) -> Span | None:
        """Where the size of an output along an axis lies; None: it declares no such one."""
        path = (_Model.GRAPH, _Graph.OUTPUT, _Value.TYPE, _Type.TENSOR_TYPE, _Type.SHAPE, _Shape.DIM)
        spans: list[Span] = [(0, len(self._data))]
        for number in path:
            spans = [part for span in spans for each, _, part in self._fields(span) if each == number]
            if number == _Graph.OUTPUT:
                spans = [span for span in spans if self._value_info(span).name == output]
        return spans[axis] if axis < len(spans) else None

    def makers(self, values: Collection[str]) -> dict[str, Maker]:
        found: dict[str, Maker] = {}
        names = re.compile(b"|".join(re.escape(value.encode()) for value in values))
        for number, _, graph in self._fields((0, len(self._data))):
            for part, _, span in self._fields(graph) if number == _Model.GRAPH else ():
                if part == _Graph.NODE and names.search(self._data, *span):
                    node = self._node(span, [])
                    operator = self.without(span, {_Node.INPUT, _Node.OUTPUT, _Node.NAME})
                    found |= {value: Maker(node=node, operator=operator) for value in values if value in node.outputs}
        return found

    def without(self, span: Span, numbers: Collection[int]) -> bytes:
        """A message without its fields of these numbers."""
        kept, start = [], span[0]
        for number, _, (_, end) in self._fields(span):
            if number not in numbers:
                kept.append(self._data[start:end])
            start = end
        return b"".join(kept)

    def _node(self, span: Span, graphs: list[Span]) -> Node:
        """graphs: takes those that it holds."""
        inputs, outputs, operator = [], [], ""
        numbers: dict[str, float] = {}
        for number, _, part in self._fields(span):
            if number == _Node.INPUT:
                inputs.append(self._text(part))
            elif number == _Node.OUTPUT:
                outputs.append(self._text(part))
            elif number == _Node.OP_TYPE:
                operator = self._text(part)
            elif number == _Node.ATTRIBUTE:
                fields = list(self._fields(part))
                graphs += [at for key, _, at in fields if key in (_Attribute.GRAPH, _Attribute.GRAPHS)]
                values = {key: (value, at) for key, value, at in fields}
                if _Attribute.NAME in values and _Attribute.INT in values:
                    numbers[self._text(values[_Attribute.NAME][1])] = _signed(values[_Attribute.INT][0])
                elif _Attribute.NAME in values and _Attribute.FLOAT in values:
                    numbers[self._text(values[_Attribute.NAME][1])] = self._float(values[_Attribute.FLOAT][1])
        return Node(operator=operator, inputs=tuple(inputs), outputs=tuple(outputs), numbers=numbers)

    def _tensor(self, span: Span) -> tuple[str, list[int], str | None]:
        """Name, dimensions, and the file that its values lie in."""
        name, sizes, file, is_outside = "", [], None, False
        for number, value, part in self._fields(span):
            if number == _Tensor.DIMS:
                sizes += self._sizes(value, part)
                if math.prod(sizes) > _MOST:
                    raise ValueError(f"a tensor of more than {_MOST} values")
            elif number == _Tensor.NAME:
                name = self._text(part)
            elif number == _Tensor.EXTERNAL_DATA:
                entry = {key: self._text(at) for key, _, at in self._fields(part)}
                file = entry.get(_Entry.VALUE, "") if entry.get(_Entry.KEY) == "location" else file
            elif number == _Tensor.DATA_LOCATION:
                is_outside = value == _EXTERNAL
        return name, sizes, file if is_outside else None

    def _sizes(self, value: int, part: Span) -> Iterator[int]:
        """Of one field of dims: a number, or several packed."""
        at, end = part
        if at == end:
            yield value
        while at < end:
            size, at = self._varint(at, end)
            yield size

    def _value_info(self, span: Span) -> ValueInfo:
        name, kind, dims = "", 0, ()
        for number, _, part in self._fields(span):
            if number == _Value.NAME:
                name = self._text(part)
            elif number == _Value.TYPE:
                for of_type, _, tensor in self._fields(part):
                    if of_type == _Type.TENSOR_TYPE:
                        kind, dims = self._type(tensor)
        return ValueInfo(name=name, kind=kind, dims=dims)

    def _type(self, span: Span) -> tuple[int, tuple[int | str, ...]]:
        kind, dims = 0, []
        for number, value, part in self._fields(span):
            if number == _Type.ELEM_TYPE:
                kind = value
            elif number == _Type.SHAPE:
                dims = [self._dim(dim) for each, _, dim in self._fields(part) if each == _Shape.DIM]
        return kind, tuple(dims)

    def _dim(self, span: Span) -> int | str:
        for number, value, part in self._fields(span):
            if number == _Shape.DIM_VALUE:
                return value
            if number == _Shape.DIM_PARAM:
                return self._text(part)
        return ""

    def _float(self, span: Span) -> float:
        if span[1] - span[0] != _FLOAT_BYTES:
            raise ValueError(f"a float of {span[1] - span[0]} bytes")
        return struct.unpack("<f", self._data[span[0] : span[1]])[0]

    def _text(self, span: Span) -> str:
        return self._data[span[0] : span[1]].decode()

    def _fields(self, span: Span) -> _Fields:
        at, end = span
        data = self._data
        while at < end:
            key, at = (data[at], at + 1) if data[at] < 128 else self._varint(at, end)
            wire, value, part = key & 7, 0, (at, at)
            if wire == _VARINT:
                value, at = self._varint(at, end)
                part = at, at
            elif wire == _BYTES:
                length, at = (data[at], at + 1) if at < end and data[at] < 128 else self._varint(at, end)
                part = at, at + length
                at += length
            elif wire in (_FIXED64, _FIXED32):
                part = at, at + (8 if wire == _FIXED64 else 4)
                at = part[1]
            else:
                raise ValueError(f"byte {at} begins no field")
            if at > end:
                raise ValueError(f"a field ends at byte {at}, its message at {end}")
            yield key >> 3, value, part

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number that begins there, and where it ends."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise ValueError(f"it ends at byte {end}, in the middle of a number")
            byte = self._data[at]
            value, at = value | (byte & 127) << shift, at + 1
            if byte < 128:
                return value, at
        raise ValueError(f"the number before byte {at} does not end")
