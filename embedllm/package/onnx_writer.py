"""Parts of ONNX graphs as bytes. Two messages one behind the other are one message that has the fields of both.

So a graph takes more nodes, inputs and outputs behind its own without being parsed. Not by the package onnx, as it
takes 0.2 s to import.
Field numbers: onnx.proto (ONNX 1.17). Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from embedllm.package.onnx_reader import FLOAT, INT64

_BYTES = 2  # wire type


def more_of_graph(parts: Iterable[bytes]) -> bytes:
    """A model of these parts of a graph: behind another model, they are parts of its graph."""
    return _field(7, b"".join(parts))


def node(operator: str | bytes, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """A node, called as its last output. operator: of ONNX's own; or as Maker has it."""
    names = [_field(number, name) for number, values in ((1, inputs), (2, outputs)) for name in values]
    kind = _field(4, operator) if isinstance(operator, str) else operator
    return _field(1, b"".join([*names, _field(3, outputs[-1]), kind]))


def constant(name: str, value: int) -> bytes:
    """An initializer, int64 [1]; where it is an input as well, the default of that."""
    dims, data = _number(1, 1), _field(9, value.to_bytes(8, "little", signed=True))
    return _field(5, dims + _number(2, INT64) + _field(8, name) + data)


def graph_input(name: str, kind: int = FLOAT) -> bytes:
    return _field(11, _value_info(name, kind))


def graph_output(name: str, kind: int = FLOAT) -> bytes:
    return _field(12, _value_info(name, kind))


def _value_info(name: str, kind: int) -> bytes:
    """Of any shape."""
    return _field(1, name) + _field(2, _field(1, _number(1, kind)))


def _field(number: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
