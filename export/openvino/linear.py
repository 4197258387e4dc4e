"""Products with the matrices of an OpenVINO model, and rows of its tables: by the chain that keeps weights packed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.package.architecture.weights import Linear
from embedllm.package.packing import Packing
from embedllm.package.tensors import CLIPS, packed_alike


class Products:
    """Writes what reads matrices. packing: by the name of the matrix; those that have none are stored as float32."""

    def __init__(self, ir: Ir, packing: Mapping[str, Packing]) -> None:
        self.ir = ir
        self._packing = packing
        self._sums: dict[tuple[Value, int], Value] = {}  # by the input and the size of its groups
        self._ordered: dict[tuple[Value, str], Value] = {}  # by the input and the matrix whose order it is

    def rows(self, table: Linear, places: Value, name: str) -> Value:
        """Rows of a table, which stays packed: only what is gathered is unpacked. places: i32 or i64."""
        ir = self.ir
        packing = self._packing.get(table.name)
        has_minimums = packing is not None and packing.has_minimum
        raw = f"{name}.raw" if has_minimums else name
        rows = ir.op("Gather", [self._floats([table], name), places, ir.constant(0)], raw, batch_dims=0)
        if packing is not None and has_minimums:
            rows = self._add_row_minimums(table, packing, places, rows, name)
        if self._stored_columns(table) == table.columns:
            return rows
        bounds = [ir.constant([value]) for value in (0, table.columns, 1, 2)]
        return ir.op("Slice", [rows, *bounds], f"{name}.columns")

    def linear(self, x: Value, parts: Sequence[Linear], name: str, *, tensor: str = "") -> Value:
        """x @ weight.T + bias for neighbouring matrices as one product; x is [B, T, columns], outputs lie side by side.

        Where some have a bias and others have none, each is a product of its own; and so are those packed otherwise.
        """
        if any(part.clip for part in parts):
            return self.clipped(x, parts, name, tensor)
        ir, columns = self.ir, parts[0].columns
        has_bias = parts[0].bias
        alike = list(packed_alike(parts, self._packing))
        if any(part.bias != has_bias for part in parts):
            alike = [(part,) for part in parts]
        if len(alike) > 1:
            products = [self.linear(x, some, f"{name}.{at}") for at, some in enumerate(alike)]
            return ir.op("Concat", products, name, axis=-1)
        packing = self._packing.get(parts[0].name)
        if packing is not None and packing.column_order:
            x = self._in_order(x, packing.column_order, columns, name)
        surplus = self._stored_columns(parts[0]) - columns
        if surplus:  # of the input, which is small: a slice of the weights would unpack them
            pads = [ir.constant([0, 0, 0]), ir.constant([0, 0, surplus]), ir.constant(0.0, "f32")]
            x = ir.op("Pad", [x, *pads], f"{name}.padded", pad_mode="constant")
        floats = self._floats(parts, f"{name}.weight", is_centred=True)
        has_minimums = packing is not None and packing.has_minimum
        is_whole = not has_bias and not has_minimums
        product = ir.op(
            "MatMul",
            [x, floats],
            name if is_whole else f"{name}.product",
            tensor=tensor if is_whole else "",
            transpose_a=False,
            transpose_b=True,
        )
        if packing is not None and has_minimums:
            minimums = self._minimum_product(x, parts, packing, name)
            where, called = (f"{name}.with_minimums", "") if has_bias else (name, tensor)
            product = ir.op("Add", [product, minimums], where, tensor=called, **BROADCAST)
        if not has_bias:
            return product
        bias = ir.stored([f"{part.name}.bias" for part in parts], "f32", [sum(part.rows for part in parts)])
        return ir.op("Add", [product, bias], name, tensor=tensor, **BROADCAST)

    def clipped(self, x: Value, parts: Sequence[Linear], name: str, tensor: str) -> Value:
        """linear() of clipped linears: each clamps what it reads and what it makes to bounds of its own."""
        ir, outputs = self.ir, list[Value]()
        for at, part in enumerate(parts):
            own = f"{name}.{at}" if len(parts) > 1 else name
            lowest, highest, least, most = (ir.stored([f"{part.name}.{end}"], "f32", [1]) for end in CLIPS)
            clipped_input = ir.op("Maximum", [x, lowest], f"{own}.input.least", **BROADCAST)
            clipped_input = ir.op("Minimum", [clipped_input, highest], f"{own}.input", **BROADCAST)
            product = self.linear(clipped_input, [dataclasses.replace(part, clip="")], f"{own}.product")
            product = ir.op("Maximum", [product, least], f"{own}.least", **BROADCAST)
            called = tensor if len(parts) == 1 else ""
            outputs.append(ir.op("Minimum", [product, most], own, tensor=called, **BROADCAST))
        return outputs[0] if len(outputs) == 1 else ir.op("Concat", outputs, name, tensor=tensor, axis=-1)

    def of_experts(self, x: Value, matrices: Sequence[Linear], name: str) -> Value:
        """x [experts, T, columns] times the matrix of each expert, [experts, T, rows]. Where stacks() says so."""
        weights = self._floats(matrices, f"{name}.weight", experts=len(matrices))
        return self.ir.op("MatMul", [x, weights], name, transpose_a=False, transpose_b=True)

    def stacks(self, matrices: Sequence[Linear]) -> bool:
        """Whether the matrices of experts, packed as they are, can be one constant of a dimension more."""
        packing = self._packing.get(matrices[0].name)
        if packing is None or not packing.quantized or packing.has_minimum or packing.column_order:
            return False
        groups = packing.groups(matrices[0].columns)
        kinds = ["weight", "scale", *["zero"] * packing.stores_zeros]
        return (
            len(list(packed_alike(matrices, self._packing))) == 1
            and not matrices[0].bias
            and self._stored_columns(matrices[0]) == matrices[0].columns
            # rows of zero points that end with half a byte would have to be cut
            and not (packing.stores_zeros and packing.bits == 4 and groups % 2)
            and all(self.ir.are_neighbours([f"{matrix.name}.{kind}" for matrix in matrices]) for kind in kinds)
        )

    def unpacked(self, matrix: Linear, name: str) -> Value:
        """A matrix [rows, columns] as floats, which the plugin makes when it compiles: no chain that stays packed."""
        ir, packing, columns = self.ir, self._packing.get(matrix.name), self._stored_columns(matrix)
        floats = self._floats([matrix], name, is_single=True)
        if packing is not None and packing.has_minimum:
            minimums = ir.op("Unsqueeze", [self._minimums([matrix], packing, name), ir.constant(-1)],
                             f"{name}.minimums.apart")  # fmt: skip
            shape = ir.constant([matrix.rows, packing.groups(matrix.columns), packing.group_size])
            groups = ir.op("Reshape", [floats, shape], f"{name}.groups", special_zero=False)
            added = ir.op("Add", [groups, minimums], f"{name}.dequantized", **BROADCAST)
            floats = ir.op("Reshape", [added, ir.constant([matrix.rows, columns])], f"{name}.rows", special_zero=False)
        if columns == matrix.columns:
            return floats
        bounds = [ir.constant([value]) for value in (0, matrix.columns, 1, 1)]
        return ir.op("Slice", [floats, *bounds], f"{name}.columns")

    def _in_order(self, x: Value, order: str, columns: int, name: str) -> Value:
        """x with its last dimension in the order of a matrix's columns."""
        ir, key = self.ir, (x, order)
        if key not in self._ordered:
            places = ir.stored([f"{order}.order"], "i32", [columns])
            self._ordered[key] = ir.op("Gather", [x, places, ir.constant(-1)], f"{name}.in_order", batch_dims=0)
        return self._ordered[key]

    def _floats(
        self, parts: Sequence[Linear], name: str, *, experts: int = 0, is_single: bool = False, is_centred: bool = False
    ) -> Value:
        """The float weights of neighbouring matrices, [rows, stored columns], by the chain that plugins keep packed.

        experts: their number where the matrices are of one each: [experts, rows, stored columns].
        is_single: in float32 throughout, as a plugin may compute what it does not keep packed as it is written.
        is_centred: beside minimums, without which these are not yet the weights, integers around their middle.
        """
        ir, packing = self.ir, self._packing.get(parts[0].name)
        rows = [experts, parts[0].rows] if experts else [sum(part.rows for part in parts)]
        columns = self._stored_columns(parts[0])
        weights = [f"{part.name}.weight" for part in parts]
        if packing is None or packing.bits == 32:
            return ir.stored(weights, "f32", [*rows, columns])
        if packing.bits == 16:
            halves = ir.stored(weights, "f16", [*rows, columns])
            return ir.op("Convert", [halves], f"{name}.floats", type="f32", destination_type="f32")
        groups = packing.groups(columns)
        kind, wide = f"u{packing.bits}", packing.scale_bits == 32 or is_single
        floats = "f32" if wide else "f16"

        def converted(value: Value, what: str) -> Value:
            end = "single" if wide else "half"
            return ir.op("Convert", [value], f"{name}.{what}.{end}", type=floats, destination_type=floats)

        values = converted(ir.stored(weights, kind, [*rows, groups, packing.group_size]), "values")
        zero = None
        if packing.symmetric or (packing.has_minimum and is_centred):
            zero = ir.packed_number(packing.middle, kind)
        elif packing.stores_zeros:
            row_groups = groups + groups % (8 // packing.bits)  # a row ends with a whole byte
            zero = ir.stored([f"{part.name}.zero" for part in parts], kind, [*rows, row_groups, 1])
            if row_groups > groups:
                bounds = [ir.constant([value]) for value in (0, groups, 1, 1)]
                zero = ir.op("Slice", [zero, *bounds], f"{name}.zero.given")
        if zero is not None:
            values = ir.op("Subtract", [values, converted(zero, "zero")], f"{name}.centred", **BROADCAST)
        scale = ir.stored([f"{part.name}.scale" for part in parts], f"f{packing.scale_bits}", [*rows, groups, 1])
        if scale.type != floats:
            scale = converted(scale, "scale")
        scaled = ir.op("Multiply", [values, scale], f"{name}.scaled", **BROADCAST)
        flat = ir.op("Reshape", [scaled, ir.constant([*rows, columns])], f"{name}.flat", special_zero=False)
        return flat if wide else ir.op("Convert", [flat], f"{name}.floats", type="f32", destination_type="f32")

    def _add_row_minimums(self, table: Linear, packing: Packing, places: Value, rows: Value, name: str) -> Value:
        """Rows [..., stored columns] with the minimums of their groups, which no chain that stays packed adds."""
        ir, groups = self.ir, packing.groups(table.columns)
        gathered = ir.op("Gather", [self._minimums([table], packing, name), places, ir.constant(0)], f"{name}.minimums",
                         batch_dims=0)  # fmt: skip
        minimums = ir.op("Unsqueeze", [gathered, ir.constant(-1)], f"{name}.minimums.apart")
        shape = ir.constant([0, 0, groups, packing.group_size])
        grouped = ir.op("Reshape", [rows, shape], f"{name}.groups", special_zero=True)
        dequantized = ir.op("Add", [grouped, minimums], f"{name}.dequantized", **BROADCAST)
        return ir.op(
            "Reshape", [dequantized, ir.constant([0, 0, groups * packing.group_size])], name, special_zero=True
        )

    def _minimum_product(self, x: Value, parts: Sequence[Linear], packing: Packing, name: str) -> Value:
        """What the minimums of groups add to a product: each times the sum of the inputs of its group.

        The product itself is of integers around their middle: a rounded input is wrong in proportion to them.
        """
        ir, key = self.ir, (x, packing.group_size)
        if key not in self._sums:
            shape = ir.constant([0, 0, packing.groups(parts[0].columns), packing.group_size])
            grouped = ir.op("Reshape", [x, shape], f"{name}.groups", special_zero=True)
            self._sums[key] = ir.op("ReduceSum", [grouped, ir.constant([-1])], f"{name}.block_sum", keep_dims=False)
        minimums = self._minimums(parts, packing, name)
        scale = self._per_group(parts, "scale", packing, f"{name}.scales")
        middle = ir.op("Multiply", [scale, ir.constant(float(packing.middle), "f32")], f"{name}.middle", **BROADCAST)
        factors = [self._sums[key], ir.op("Add", [minimums, middle], f"{name}.middle_values", **BROADCAST)]
        return ir.op("MatMul", factors, f"{name}.minimum_product", transpose_a=False, transpose_b=True)

    def _minimums(self, parts: Sequence[Linear], packing: Packing, name: str) -> Value:
        return self._per_group(parts, "minimum", packing, f"{name}.minimums")

    def _per_group(self, parts: Sequence[Linear], what: str, packing: Packing, name: str) -> Value:
        """What neighbouring matrices have for each group, as float32 [rows, groups]."""
        ir, kind = self.ir, f"f{packing.scale_bits}"
        shape = [sum(part.rows for part in parts), packing.groups(parts[0].columns)]
        stored = ir.stored([f"{part.name}.{what}" for part in parts], kind, shape)
        if kind == "f32":
            return stored
        return ir.op("Convert", [stored], f"{name}.floats", type="f32", destination_type="f32")

    def _stored_columns(self, linear: Linear) -> int:
        packing = self._packing.get(linear.name)
        return packing.groups(linear.columns) * packing.group_size if packing and packing.quantized else linear.columns
