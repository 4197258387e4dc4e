"""Collects the layers of an OpenVINO model in IR version 11, whose constants all lie in weights.safetensors.

Written as text, so that an export needs no OpenVINO: the reader infers every shape itself, and wants of an edge no more
than the element type. Source: OpenVINO's documentation of the IR, and what its 2026.4 writes for the same operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import numpy as np

from embedllm.export.layout import CONSTANTS, Layout

# element type -> how a port names it
_PRECISIONS = {"f32": "FP32", "f16": "FP16", "i64": "I64", "i32": "I32", "u8": "U8", "u4": "U4", "boolean": "BOOL"}
_NUMPY = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "u8": np.uint8, "boolean": np.bool_}
_ALIGNMENT = 8  # bytes; the widest element of a small constant
# the version of an operation that is meant; "opset1" where it has only one that we know
_VERSIONS = {
    "Assign": "opset6", "BitwiseAnd": "opset13", "Broadcast": "opset3", "CumSum": "opset3", "Gather": "opset8",
    "GatherElements": "opset6", "Gelu": "opset7", "MVN": "opset6", "NonZero": "opset3", "Range": "opset4",
    "ReadValue": "opset6", "ScaledDotProductAttention": "opset13", "ScatterElementsUpdate": "opset3",
    "ShapeOf": "opset3", "Slice": "opset8", "SoftPlus": "opset4", "Swish": "opset4", "TopK": "opset11",
}  # fmt: skip
# by this a plugin knows a layer that is to be computed in float32, though the others are in bf16 or float16
_PRECISE = '<rt_info><attribute name="precise" version="0"/></rt_info>'
BROADCAST = {"auto_broadcast": "numpy"}  # of operations on two tensors, value by value


@dataclass(frozen=True, slots=True)
class Value:
    """An output of a layer."""

    layer: int
    port: int
    type: str  # element type


class Ir:
    """A model in the making. Layers are named by their place in the model: `scope` is the present one.

    is_precise: what is added meanwhile is computed in float32, whatever the precision of the rest.
    layout: where the weights lie; None to learn which small constants the model needs. constants: their entry.
    """

    def __init__(self, layout: Layout | None, constants: str = CONSTANTS) -> None:
        self.scope = ""
        self.is_precise = False
        self._layout = layout
        self._entry = constants
        self._layers: list[str] = []
        self._edges: list[str] = []
        self._pool = bytearray()
        self._constants: dict[tuple[object, ...], Value] = {}
        self._names: set[str] = set()
        self._uses: Counter[str] = Counter()

    def op(
        self,
        kind: str,
        inputs: Sequence[Value],
        name: str,
        *,
        type: str = "",
        tensor: str = "",
        **attributes: str | int | float | bool,
    ) -> Value:
        """A layer of one output. type: of that; left out, as the first input. tensor: what callers know it by."""
        return self.split(kind, inputs, name, 1, type=type, types=(), tensor=tensor, inside="", **attributes)[0]

    def split(
        self,
        kind: str,
        inputs: Sequence[Value],
        name: str,
        outputs: int,
        *,
        type: str = "",
        types: Sequence[str] = (),
        tensor: str = "",
        inside: str = "",
        **attributes: str | int | float | bool,
    ) -> list[Value]:
        """A layer of several outputs, or of none. types: where they differ. inside: of a loop, its body."""
        layer = len(self._layers)
        name = f"{self.scope}.{name}" if self.scope else name
        if name in self._names:
            raise ValueError(f"there are two layers '{name}'")
        self._names.add(name)
        data = "".join(f" {key}={quoteattr(_text(value))}" for key, value in attributes.items())
        ports = "".join(f'<port id="{at}" precision="{_PRECISIONS[x.type]}"/>' for at, x in enumerate(inputs))
        names = f" names={quoteattr(tensor)}" if tensor else ""
        kinds = types or [type or inputs[0].type for _ in range(outputs)]
        values = [Value(layer, len(inputs) + at, kind_of_output) for at, kind_of_output in enumerate(kinds)]
        results = "".join(f'<port id="{x.port}" precision="{_PRECISIONS[x.type]}"{names}/>' for x in values)
        self._layers.append(
            f'<layer id="{layer}" name={quoteattr(name)} type="{kind}" version="{_VERSIONS.get(kind, "opset1")}">'
            + (f"<data{data}/>" if data else "")
            + (_PRECISE if self.is_precise and kind != "Const" else "")
            + (f"<input>{ports}</input>" if inputs else "")
            + (f"<output>{results}</output>" if outputs else "")
            + f"{inside}</layer>"
        )
        for at, x in enumerate(inputs):
            self._edges.append(f'<edge from-layer="{x.layer}" from-port="{x.port}" to-layer="{layer}" to-port="{at}"/>')
        return values

    def parameter(self, name: str, type: str, shape: int | Sequence[int]) -> Value:
        """An input of the model. shape: how many dimensions, all of them open, or each of them, -1 where it is open."""
        sizes = [-1] * shape if isinstance(shape, int) else shape
        text = ",".join("?" if size < 0 else str(size) for size in sizes)
        return self.op("Parameter", [], name, type=type, tensor=name, shape=text, element_type=type)

    def result(self, value: Value, name: str) -> int:
        """An output of the body of a loop; the number of its layer."""
        self.split("Result", [value], name, 0)
        return len(self._layers) - 1

    def constant(self, values: float | Sequence[int] | Sequence[float], type: str = "i64") -> Value:
        """A small constant, one for equal ones: a number as a scalar, a sequence as a vector."""
        array = np.array(values, _NUMPY[type])
        return self._small(array.tobytes(), type, array.shape)

    def size(self, x: Value, axis: int, name: str) -> Value:
        """One dimension of a tensor, [1]."""
        shape = self.op("ShapeOf", [x], f"{name}.shape", type="i64", output_type="i64")
        return self.op("Gather", [shape, self.constant([axis]), self.constant(0)], name, batch_dims=0)

    def packed_number(self, value: int, type: str) -> Value:
        """One number of four or eight bits, [1, 1, 1]."""
        return self._small(bytes([value]), type, (1, 1, 1))

    def stored(self, entries: Sequence[str], type: str, shape: Sequence[int]) -> Value:
        """Neighbouring entries of the weights file as one tensor.

        A layer of its own at every call: the NPU plugin cannot cut a model in two through a constant that both need.
        """
        offset, length = self._layout.span(entries) if self._layout else (0, 0)
        name = "+".join([entries[0], *(str(len(entries) - 1),) * (len(entries) > 1)])
        self._uses[name] += 1
        name += f"#{self._uses[name]}" if self._uses[name] > 1 else ""
        return self._constant(name, type, shape, offset, length)

    def are_neighbours(self, entries: Sequence[str]) -> bool:
        """Whether stored() can join them; of a layout that is still to be made they will be."""
        return self._layout is None or self._layout.are_neighbours(entries)

    @property
    def pool(self) -> bytes:
        """The small constants, to be stored as one entry."""
        return bytes(self._pool)

    def xml(self, name: str) -> str:
        """The whole document; a layer or edge a line."""
        return "\n".join(
            [
                '<?xml version="1.0"?>',
                f'<net name={quoteattr(name)} version="11">',
                *self.parts(),
                "<rt_info/>",
                "</net>\n",
            ]
        )

    def parts(self) -> list[str]:
        """The layers and edges, as they stand in a document or in the body of a loop."""
        return ["<layers>", *self._layers, "</layers>", "<edges>", *self._edges, "</edges>"]

    def _small(self, data: bytes, type: str, shape: Sequence[int]) -> Value:
        key = (data, type, *shape)
        if key not in self._constants:
            self._pool += bytes(-len(self._pool) % _ALIGNMENT)
            start = self._layout.placed[self._entry].offset if self._layout else 0
            place = start + len(self._pool)
            self._pool += data
            self._constants[key] = self._constant(f"constant.{len(self._constants)}", type, shape, place, len(data))
        return self._constants[key]

    def _constant(self, name: str, type: str, shape: Sequence[int], offset: int, size: int) -> Value:
        scope, self.scope = self.scope, ""
        shape_text = ", ".join(map(str, shape))
        value = self.op("Const", [], name, type=type, element_type=type, shape=shape_text, offset=offset, size=size)
        self.scope = scope
        return value


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
