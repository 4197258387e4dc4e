"""Collects the nodes and initializers of an ONNX graph whose large tensors lie in weights.safetensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedllm.export.layout import Layout
from embedllm.package.architecture.weights import Linear
from embedllm.package.wasm_floats import FLOATS, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

MICROSOFT = "com.microsoft"
KV_PREFIXES = ("past_key_values", "present")
FLOAT_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
_OPSET = 21
_IR_VERSION = 10
_STORED_TYPES = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "U8": TensorProto.UINT8,
                 "I32": TensorProto.INT32}  # fmt: skip


class Graph:
    """A graph in the making. Values are named by their place in the model: `scope` is the present one.

    activations: "float32" or "float16". floats: (offset, length) of matrices, as embedllm/package/wasm_floats.py has
    them.
    """

    def __init__(self, layout: Layout, activations: str, floats: Mapping[str, tuple[int, int]] | None = None) -> None:
        self.scope = ""
        self.activations = activations
        self._floats = floats or {}
        self._layout = layout
        self._names: set[str] = set()  # of the nodes
        self._nodes: list[onnx.NodeProto] = []
        self._node_outputs: set[str] = set()  # outputs of the nodes
        self._initializers: dict[str, TensorProto] = {}

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        name: str,
        domain: str = "",
        **attributes: float | str | Sequence[int] | onnx.GraphProto,
    ) -> None:
        """Adds a node; empty names are inputs left out."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        assert name not in self._names, f"two nodes are called '{name}'"  # which ONNX Runtime does not load
        self._names.add(name)
        node = helper.make_node(
            kind, inputs, outputs, name=name, doc_string=None, domain=domain, overload=None, **attributes
        )
        self._append(node)

    def _append(self, node: onnx.NodeProto) -> None:
        self._nodes.append(node)
        self._node_outputs.update(node.output)

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        name: str,
        domain: str = "",
        **attributes: float | str | Sequence[int] | onnx.GraphProto,
    ) -> str:
        """A node of one output, named in the present scope; gives the output."""
        name = self.named(name)
        self.node(kind, inputs, [name], name, domain, **attributes)
        return name

    def choice(self, condition: str, name: str, *, then: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """What one of two branches gives, in the type of the activations. They may read every value before them."""
        name = self.named(name)
        self.choices(condition, [name], name, then=lambda: [then()], otherwise=lambda: [otherwise()])
        return name

    def choices(
        self,
        condition: str,
        outputs: Sequence[str],
        name: str,
        *,
        then: Callable[[], Sequence[str]],
        otherwise: Callable[[], Sequence[str]],
    ) -> None:
        """As choice(), of branches that give several values."""
        kind, branches = FLOAT_TYPES[self.activations], {}
        for attribute, write in (("then_branch", then), ("else_branch", otherwise)):
            nodes, node_outputs = self._nodes, set(self._node_outputs)
            self._nodes = []
            infos = [helper.make_tensor_value_info(output, kind, None) for output in write()]
            branches[attribute] = helper.make_graph(self._nodes, f"{name}.{attribute}", [], infos)
            self._nodes, self._node_outputs = nodes, node_outputs  # nothing outside may read what is inside
        self.node("If", [condition], outputs, name, **branches)

    def named(self, name: str) -> str:
        """A name inside the present scope, unless it is already."""
        return name if name.startswith(f"{self.scope}.") else f"{self.scope}.{name}"

    def constant(self, *values: int, scalar: bool = False) -> str:
        """Small int64 values, one initializer for equal ones."""
        name = f"constant.{'scalar.' if scalar else ''}{'_'.join(map(str, values))}"
        if name not in self._initializers:
            array = np.array(values[0] if scalar else values, np.int64)
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def number(self, value: float) -> str:
        """One number in the type of the activations."""
        return self.floats(np.array(value, self.activations), f"constant.number.{value:.9g}")

    def single(self, value: float) -> str:
        """One number as float32, whatever the activations are."""
        return self.floats(np.array(value, np.float32), f"constant.single.{value:.9g}")

    def ones(self, size: int) -> str:
        """A vector of ones in the type of the activations."""
        return self.floats(np.ones(size, self.activations), f"constant.ones.{size}")

    def zeros(self, size: int) -> str:
        """A vector of zeros in the type of the activations."""
        return self.floats(np.zeros(size, self.activations), f"constant.zeros.{size}")

    def bytes_of(self, value: int, rows: int, columns: int) -> str:
        """A matrix of one byte, which the runtime makes when it loads."""
        name = f"constant.bytes.{value}.{rows}.{columns}"
        if not self.has(name):
            kind = numpy_helper.from_array(np.array([value], np.uint8))
            self._append(helper.make_node("ConstantOfShape", [self.constant(rows, columns)], [name], name, value=kind))
        return name

    def floats(self, values: NDArray[np.floating], name: str) -> str:
        """Numbers that are stored in the graph itself."""
        self._initializers[name] = numpy_helper.from_array(values, name)
        return name

    def table(self, values: NDArray[np.generic], name: str) -> str:
        """An array that is stored in the graph itself."""
        self._initializers[name] = numpy_helper.from_array(values, name)
        return name

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        return self._nodes

    @property
    def initializers(self) -> Sequence[TensorProto]:
        return list(self._initializers.values())

    def has(self, name: str) -> bool:
        """Whether a node gives this value."""
        return name in self._node_outputs

    def stored(self, entries: Sequence[str], *, shape: Sequence[int] = (), name: str = "") -> str:
        """An initializer over neighbouring entries of the weights file, joined along their first axis.

        shape: read the same bytes under another one; then the initializer needs a name of its own.
        """
        name = name or entries[0] + (f"+{len(entries) - 1}" if len(entries) > 1 else "")
        if name in self._initializers:
            return name
        first = self._layout.placed[entries[0]].entry
        rows = sum(self._layout.placed[entry].entry.shape[0] for entry in entries)
        tensor = TensorProto(name=name, data_type=_STORED_TYPES[first.dtype], dims=shape or [rows, *first.shape[1:]])
        return self._external(tensor, self._layout.placed[entries[0]].file, self._layout.span(entries))

    def stored_flat(self, entries: Sequence[str], *rows: int) -> str:
        """As stored() of entries of one width, [*rows, width]; of vectors [*rows]."""
        width = self._layout.placed[entries[0]].entry.shape[1:]
        return self.stored(entries, shape=[*rows, math.prod(width)] if width else rows, name=f"{entries[0]}...")

    def are_neighbours(self, entries: Sequence[str]) -> bool:
        """Whether stored() can join them."""
        return self._layout.are_neighbours(entries)

    def outer_sum(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> str:
        """one[i] + other[j], which the runtime computes when it loads: a graph has the tables alone."""
        digest = hashlib.sha256(one.tobytes() + other.tobytes()).hexdigest()[:16]
        name = f"constant.sum.{len(one)}.{len(other)}.{digest}"
        if not self.has(name):
            column = self.table(one[:, None], f"{name}.column")
            self.node("Add", [column, self.table(other[None], f"{name}.row")], [name], name)
        return name

    def size(self, entry: str) -> int:
        """Values of an entry of the weights file."""
        return math.prod(self._layout.placed[entry].entry.shape)

    def made_floats(self, parts: Sequence[Linear]) -> str:
        """An initializer over neighbouring matrices of the file of floats, joined along their first axis."""
        name = f"{parts[0].name}.floats" + (f"+{len(parts) - 1}" if len(parts) > 1 else "")
        dims = [sum(part.rows for part in parts), parts[0].columns]
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
        return self._external(tensor, FLOATS, joined([part.name for part in parts], self._floats))

    def _external(self, tensor: TensorProto, location: str, span: tuple[int, int]) -> str:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", str(span[0])), ("length", str(span[1]))):
            tensor.external_data.add(key=key, value=value)
        self._initializers[tensor.name] = tensor
        return tensor.name

    def cast(self, value: str, *, like: str = "", to: str = "") -> str:
        """The value in a type, that of the activations if none is said; of an initializer the runtime folds this.

        like: an initializer of the value's type; left out, the value is an initializer itself.
        """
        to = to or self.activations
        if self._initializers[like or value].data_type == FLOAT_TYPES[to]:
            return value
        name = f"{value}.{to}"
        if not self.has(name):
            self.node("Cast", [value], [name], name, to=FLOAT_TYPES[to])
        return name

    def default(self, name: str, *values: int) -> None:
        """An initializer that is an input too, so that a caller may override it."""
        self.default_array(name, np.array(values, np.int64))

    def default_array(self, name: str, values: NDArray[np.generic]) -> None:
        """As default, of any array."""
        self._initializers[name] = numpy_helper.from_array(values, name)

    def model(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self._nodes, name, inputs, outputs, list(self._initializers.values()))
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="embedllm")
