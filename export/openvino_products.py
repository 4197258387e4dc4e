"""Products with the matrices of an OpenVINO model, and rows of its tables: by the chain that keeps weights packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedllm.export.decoder import Linear
from embedllm.export.openvino_ir import BROADCAST, Ir, Value
from embedllm.export.quantize import Packing


class Products:
    """Writes what reads matrices. packing: by the name of the matrix; those that have none are stored as float32."""

    def __init__(self, ir: Ir, packing: Mapping[str, Packing]) -> None:
        self.ir = ir
        self._packing = packing

    def rows(self, table: Linear, places: Value, name: str) -> Value:
        """Rows of a table, which stays packed: only what is gathered is unpacked. places: i32 or i64."""
        ir = self.ir
        rows = ir.op("Gather", [self._floats([table], name), places, ir.constant(0)], name, batch_dims=0)
        if self._stored_columns(table) == table.columns:
            return rows
        bounds = [ir.constant([value]) for value in (0, table.columns, 1, 2)]
        return ir.op("Slice", [rows, *bounds], f"{name}.columns")

    def linear(self, x: Value, parts: Sequence[Linear], name: str, *, tensor: str = "") -> Value:
        """x @ weight.T + bias for neighbouring matrices as one product; x is [B, T, columns], outputs lie side by side.

        Where some have a bias and others have none, each is a product of its own.
        """
        ir, columns = self.ir, parts[0].columns
        has_bias = parts[0].bias
        if any(part.bias != has_bias for part in parts):
            products = [self.linear(x, [part], f"{name}.{at}") for at, part in enumerate(parts)]
            return ir.op("Concat", products, name, axis=-1)
        surplus = self._stored_columns(parts[0]) - columns
        if surplus:  # of the input, which is small: a slice of the weights would unpack them
            pads = [ir.constant([0, 0, 0]), ir.constant([0, 0, surplus]), ir.constant(0.0, "f32")]
            x = ir.op("Pad", [x, *pads], f"{name}.padded", pad_mode="constant")
        floats = self._floats(parts, f"{name}.weight")
        product = ir.op(
            "MatMul",
            [x, floats],
            f"{name}.product" if has_bias else name,
            tensor="" if has_bias else tensor,
            transpose_a=False,
            transpose_b=True,
        )
        if not has_bias:
            return product
        bias = ir.stored([f"{part.name}.bias" for part in parts], "f32", [sum(part.rows for part in parts)])
        return ir.op("Add", [product, bias], name, tensor=tensor, **BROADCAST)

    def _floats(self, parts: Sequence[Linear], name: str) -> Value:
        """The float weights of neighbouring matrices, [rows, stored columns], by the chain that plugins keep packed."""
        ir, packing = self.ir, self._packing.get(parts[0].name)
        rows = sum(part.rows for part in parts)
        columns = self._stored_columns(parts[0])
        weights = [f"{part.name}.weight" for part in parts]
        if packing is None or packing.bits == 32:
            return ir.stored(weights, "f32", [rows, columns])
        if packing.bits == 16:
            halves = ir.stored(weights, "f16", [rows, columns])
            return ir.op("Convert", [halves], f"{name}.floats", type="f32", destination_type="f32")
        groups = packing.groups(columns)
        kind = f"u{packing.bits}"

        def half(value: Value, what: str) -> Value:
            return ir.op("Convert", [value], f"{name}.{what}.half", type="f16", destination_type="f16")

        values = half(ir.stored(weights, kind, [rows, groups, packing.group]), "values")
        if packing.symmetric:
            zero = ir.packed_number(1 << packing.bits - 1, kind)
        else:
            held = groups + groups % (8 // packing.bits)  # a row ends with a whole byte
            zero = ir.stored([f"{part.name}.zero" for part in parts], kind, [rows, held, 1])
            if held > groups:
                bounds = [ir.constant([value]) for value in (0, groups, 1, 1)]
                zero = ir.op("Slice", [zero, *bounds], f"{name}.zero.given")
        centred = ir.op("Subtract", [values, half(zero, "zero")], f"{name}.centred", **BROADCAST)
        scale = ir.stored([f"{part.name}.scale" for part in parts], "f16", [rows, groups, 1])
        scaled = ir.op("Multiply", [centred, scale], f"{name}.scaled", **BROADCAST)
        flat = ir.op("Reshape", [scaled, ir.constant([rows, columns])], f"{name}.flat", special_zero=False)
        return ir.op("Convert", [flat], f"{name}.floats", type="f32", destination_type="f32")

    def _stored_columns(self, linear: Linear) -> int:
        packing = self._packing.get(linear.name)
        return packing.groups(linear.columns) * packing.group if packing and packing.quantized else linear.columns
