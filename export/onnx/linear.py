"""The stored matrices in a graph: products with them, and rows of the embedding, in the operators of one variant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.package.architecture.weights import Linear
from embedllm.package.graph_variants import GraphVariant
from embedllm.package.packing import Packing
from embedllm.package.tensors import CLIPS, packed_alike


class Products:
    """Writes products and look-ups into a graph. packing: by the name of the matrix."""

    def __init__(self, graph: Graph, packing: Mapping[str, Packing], variant: GraphVariant) -> None:
        self.graph = graph
        self.packing = packing
        self.variant = variant
        self._ordered: set[str] = set()  # values of in_order() that there are

    def embedding(self, table: Linear, tokens: str = "input_ids") -> str:
        """Rows of a table. A quantized one is unpacked by rows; a tied one is the head's bytes in another shape.

        tokens: the value that says which.
        """
        graph, packing = self.graph, self.packing[table.name]
        if not packing.quantized:
            weight = graph.stored([f"{table.name}.weight"])
            if not self.variant.reads_halves:
                return graph.op("Gather", [graph.cast(weight), tokens], "rows", axis=0)
            return graph.cast(graph.op("Gather", [weight, tokens], "rows", axis=0), like=weight)
        stored_columns = packing.groups(table.columns) * packing.group_size
        if not self.variant.gathers_blocks:
            rows = self.unpacked_rows(table, packing, tokens)
            return rows if stored_columns == table.columns else self.first_columns(rows, table.columns, "columns")
        flat = [table.rows, stored_columns * packing.bits // 8]
        weight = graph.stored([f"{table.name}.weight"], shape=flat, name=f"{table.name}.rows.weight")
        zero = [] if packing.symmetric else [self.zeros([table], packing, beside_minimums=0)]
        rows = graph.op(
            "GatherBlockQuantized",
            [weight, tokens, self.scale([table]), *zero],
            "rows.raw" if packing.has_minimum else "rows",
            MICROSOFT,
            bits=packing.bits,
            block_size=packing.group_size,
            gather_axis=0,
            quantize_axis=1,
        )
        if packing.has_minimum:
            rows = self.add_row_minimums(table, packing, tokens, rows)
        return rows if stored_columns == table.columns else self.first_columns(rows, table.columns, "columns")

    def unpacked_rows(self, table: Linear, packing: Packing, tokens: str) -> str:
        """Rows of a quantized table by standard operators: packed rows are gathered, then unpacked."""
        graph, groups = self.graph, packing.groups(table.columns)

        def gathered(kind: str, shape: Sequence[int], *, name: str) -> str:
            """[B, T, ...]; under a name and shape of its own, because the head may read the same bytes otherwise."""
            entry = graph.stored([f"{table.name}.{kind}"], shape=[table.rows, *shape], name=f"{table.name}.rows.{kind}")
            return graph.op("Gather", [entry, tokens], name, axis=0)

        weight = gathered("weight", [groups, packing.group_size * packing.bits // 8], name="packed")
        values = self.nibbles(weight, packing, [0, 0, groups, packing.group_size], "values")
        zero = ""
        if packing.symmetric:
            zero = graph.cast(graph.constant(1 << packing.bits - 1))
        elif packing.stores_zeros:
            width = -(-groups * packing.bits // 8)
            row_groups = width * 8 // packing.bits  # a row ends with a whole byte
            zero = self.nibbles(gathered("zero", [width], name="packed_zero"), packing, [0, 0, row_groups, 1], "zeros")
            if row_groups > groups:
                bounds = [graph.constant(value) for value in (0, groups, 2)]
                zero = graph.op("Slice", [zero, *bounds], "zeros.given")

        def floats(kind: str) -> str:
            entry = gathered(kind, [groups, 1], name=f"packed_{kind}")
            return graph.op("Cast", [entry], f"{kind}s", to=FLOAT_TYPES[self.variant.activations])

        scale = floats("scale")
        centred = graph.op("Sub", [values, zero], "centred") if zero else values
        scaled = graph.op("Mul", [centred, scale], "scaled")
        if packing.has_minimum:
            scaled = graph.op("Add", [scaled, floats("minimum")], "dequantized")
        return graph.op("Reshape", [scaled, graph.constant(0, 0, groups * packing.group_size)], "rows")

    def add_row_minimums(self, table: Linear, packing: Packing, tokens: str, rows: str) -> str:
        """Gathered rows [B, T, stored columns] with the minimums of their groups."""
        graph, groups = self.graph, packing.groups(table.columns)
        entry = graph.cast(graph.stored([f"{table.name}.minimum"]))
        gathered = graph.op("Gather", [entry, tokens], "rows.minimums", axis=0)
        minimums = graph.op("Unsqueeze", [gathered, graph.constant(-1)], "rows.minimums.apart")
        grouped = graph.op("Reshape", [rows, graph.constant(0, 0, groups, packing.group_size)], "rows.groups")
        dequantized = graph.op("Add", [grouped, minimums], "rows.dequantized")
        return graph.op("Reshape", [dequantized, graph.constant(0, 0, groups * packing.group_size)], "rows")

    def nibbles(self, packed: str, packing: Packing, shape: Sequence[int], name: str) -> str:
        """Bytes as the numbers in them, the earlier one of two in the low bits, as floats of that shape.

        By float arithmetic, which is exact here: OpenVINO 2026.4 rounds a right shift of bytes.
        """
        graph = self.graph
        floats = graph.op("Cast", [packed], f"{name}.floats", to=FLOAT_TYPES[self.variant.activations])
        if packing.bits == 4:
            sixteenth = graph.op("Mul", [floats, graph.number(1 / 16)], f"{name}.sixteenth")
            high = graph.op("Floor", [sixteenth], f"{name}.high")
            low = graph.op("Sub", [floats, graph.op("Mul", [high, graph.number(16)], f"{name}.rest")], f"{name}.low")
            last = [graph.op("Unsqueeze", [part, graph.constant(-1)], f"{part}.apart") for part in (low, high)]
            floats = graph.op("Concat", last, f"{name}.pairs", axis=-1)
        return graph.op("Reshape", [floats, graph.constant(*shape)], name)

    def linear(self, x: str, parts: Sequence[Linear], name: str, *, output: str = "") -> str:
        """x @ weight.T + bias for neighbouring matrices as one product; outputs side by side.

        x: [B, T, columns]; where no matrix has minimums, any number of dimensions in front of the columns.
        Those that are packed in different ways are products of their own; the node of the first is called `name`.
        """
        graph = self.graph
        if any(part.clip for part in parts):
            return self.clipped(x, parts, name, output)
        name = graph.named(name)
        alike = list(packed_alike(parts, self.packing))
        if len(alike) > 1 and not self.variant.float_matrices:
            names = [name, *(f"{name}.{at}" for at in range(1, len(alike)))]
            products = [
                self.product(x, some, each, f"{name}.part.{at}")
                for at, (some, each) in enumerate(zip(alike, names, strict=True))
            ]
            graph.node("Concat", products, [output or name], f"{name}.parts", axis=-1)
            return output or name
        return self.product(x, parts, name, output or name)

    def clipped(self, x: str, parts: Sequence[Linear], name: str, output: str) -> str:
        """linear() of clipped linears: each clamps what it reads and what it makes to bounds of its own."""
        graph, results = self.graph, list[str]()
        for at, part in enumerate(parts):
            own = f"{name}.{at}" if len(parts) > 1 else name
            lowest, highest, least, most = (
                graph.op("Squeeze", [graph.cast(graph.stored([f"{part.name}.{end}"]))], f"{own}.{end}") for end in CLIPS
            )
            clipped_input = graph.op("Clip", [x, lowest, highest], f"{own}.input")
            product = self.linear(clipped_input, [dataclasses.replace(part, clip="")], f"{own}.product")
            result = output if output and len(parts) == 1 else graph.named(own)
            graph.node("Clip", [product, least, most], [result], graph.named(own))
            results.append(result)
        if len(results) == 1:
            return results[0]
        result = output or graph.named(name)
        graph.node("Concat", results, [result], graph.named(name), axis=-1)
        return result

    def split_linear(
        self, x: str, parts: Sequence[Linear], outputs: Sequence[str], name: str, *, split: str = "split"
    ) -> list[str]:
        """linear() with a Split behind it: one output for each matrix. split: the name of that node."""
        outputs = [self.graph.named(output) for output in outputs]
        product = self.linear(x, parts, name)
        sizes = self.graph.constant(*(part.rows for part in parts))
        self.graph.node("Split", [product, sizes], outputs, self.graph.named(split), axis=-1)
        return outputs

    def product(self, x: str, parts: Sequence[Linear], name: str, result: str) -> str:
        """linear() of matrices that are packed alike. name: of the node that reads x; result: the value."""
        graph, packing = self.graph, self.packing[parts[0].name]
        columns, groups = parts[0].columns, packing.groups(parts[0].columns)
        bias = self.biases(parts, name)
        if packing.column_order and not self.variant.float_matrices:  # whose floats lie as they are meant
            x = self.in_order(x, packing.column_order)
        zero_points = 0 if self._is_centred(packing) else groups
        in_integers = packing.quantized and self.variant.multiplies(packing.bits, zero_points=zero_points)
        added = bool(bias) and not (in_integers and self.variant.bias_in_matmul)
        adds_minimums = in_integers and packing.has_minimum
        total = f"{name}.product" if added else result  # without a bias that is added
        product = f"{name}.values" if adds_minimums else total
        if self.variant.float_matrices:
            graph.node("FusedMatMul", [x, graph.made_floats(parts)], [product], name, MICROSOFT, transB=1)
        elif in_integers:
            each = self._blocks_of_a_group(packing)
            weights = self._blocks(parts, packing, each)
            zero = ""
            if zero_points:
                zero = self._repeated(self.zeros(parts, packing, beside_minimums=packing.middle), groups, each)
            unpadded, stored = x, groups * packing.group_size
            if columns < stored and (each > 1 or not self.variant.ragged_blocks):
                x, columns = self.padded(x, columns, stored), stored
            graph.node(
                "MatMulNBits",
                [x, weights, self._repeated(self.scale(parts), groups, each), zero, "", "" if added else bias],
                [product],
                name,
                MICROSOFT,
                K=columns,
                N=sum(part.rows for part in parts),
                bits=packing.bits,
                block_size=packing.group_size // each,
                accuracy_level=self.variant.accuracy_level,
            )
            if adds_minimums:
                minimums = self.minimum_product(unpadded, parts, packing, name)
                graph.node("Add", [product, minimums], [total], f"{name}.with_minimums")
        else:
            floats = self.unpacked(parts, packing, name)
            transposed = graph.op("Transpose", [floats], f"{name}.transposed", perm=[1, 0])
            graph.node("MatMul", [x, transposed], [product], name)
        if added:
            graph.node("Add", [total, bias], [result], f"{name}.bias")
        return result

    def _blocks_of_a_group(self, packing: Packing) -> int:
        """By how many blocks MatMulNBits reads a group: larger ones than it takes well are several of one scale."""
        if not self.variant.block_of_8_bits or packing.bits != 8 or packing.has_minimum:
            return 1
        return max(1, packing.group_size // self.variant.block_of_8_bits)

    def _blocks(self, parts: Sequence[Linear], packing: Packing, each: int) -> str:
        """The weights of neighbouring matrices, [rows, blocks, bytes of a block]. each: blocks of a group."""
        names = [f"{part.name}.weight" for part in parts]
        if each == 1:
            return self.graph.stored(names)
        rows, blocks = sum(part.rows for part in parts), packing.groups(parts[0].columns) * each
        return self.graph.stored(names, shape=[rows, blocks, packing.group_size // each], name=f"{names[0]}.blocks")

    def _repeated(self, value: str, groups: int, each: int) -> str:
        """What a row has for each group, for each block: the runtime repeats it when it loads."""
        if each == 1:
            return value
        places = self.graph.table(np.repeat(np.arange(groups), each), f"constant.groups.{groups}.{each}")
        return self.graph.op("Gather", [value, places], f"{value}.blocks", axis=1)

    def in_order(self, x: str, order: str) -> str:
        """x with its last dimension in the order of a matrix's columns; written once for all that have it."""
        graph, name = self.graph, f"{x}.in_order.{order}"
        if name in self._ordered:
            return name
        self._ordered.add(name)
        places = graph.stored([f"{order}.order"])
        if not self.variant.gathers_elements:
            graph.node("Gather", [x, places], [name], name, axis=-1)
            return name
        shape, each = f"{name}.shape", f"{name}.places"
        graph.node("Shape", [x], [shape], shape)
        graph.node("Expand", [places, shape], [each], each)
        graph.node("GatherElements", [x, each], [name], name, axis=-1)
        return name

    def minimum_product(self, x: str, parts: Sequence[Linear], packing: Packing, name: str) -> str:
        """What the minimums of blocks add to a product: each times the sum of the inputs of its block.

        Never float zero points: 25 to 50 times slower on the CPU, and other providers do not take them. What has the
        same input shares the sums. The product itself is of integers around their middle: an input that is rounded,
        or a float16 sum, is wrong in proportion to them, while these sums are exact.
        """
        graph, columns, groups = self.graph, parts[0].columns, packing.groups(parts[0].columns)
        if columns < groups * packing.group_size:
            x = self.padded(x, columns, groups * packing.group_size)
        sums = f"{x}.block_sum.{packing.group_size}"
        if not graph.has(sums):
            grouped, added = f"{x}.groups.{packing.group_size}", f"{sums}.added"
            shape = graph.constant(0, 0, groups, packing.group_size)
            graph.node("Reshape", [x, shape], [grouped], grouped)
            graph.node("ReduceSum", [grouped, graph.constant(-1)], [added], added, keepdims=0)
            # ONNX Runtime (1.31, CPU) leaves the shape of no tokens as it is, which an expert often has
            graph.node("Reshape", [added, graph.constant(0, 0, groups)], [sums], sums)
        # in float32: the runtime has no float16 kernels to compute constants by when it loads
        minimum, scale = (
            graph.cast(graph.stored([f"{part.name}.{kind}" for part in parts]), to="float32")
            for kind in ("minimum", "scale")
        )
        middle = graph.op("Mul", [scale, graph.single(packing.middle)], f"{name}.middle")
        values = graph.op("Add", [minimum, middle], f"{name}.middle_values")
        if graph.activations != "float32":
            values = graph.op("Cast", [values], f"{name}.middle_values.rounded", to=FLOAT_TYPES[graph.activations])
        transposed = graph.op("Transpose", [values], f"{name}.minimums", perm=[1, 0])
        return graph.op("MatMul", [sums, transposed], f"{name}.minimum_product")

    @staticmethod
    def _is_centred(packing: Packing) -> bool:
        """Whether the middle of a matrix's integers is what MatMulNBits subtracts by itself."""
        return packing.symmetric or (packing.has_minimum and packing.middle == 1 << packing.bits - 1)

    def zeros(self, parts: Sequence[Linear], packing: Packing, *, beside_minimums: int) -> str:
        """The zero points of neighbouring matrices. Beside minimums none are stored: they are that number."""
        graph = self.graph
        if packing.stores_zeros:
            return graph.stored([f"{part.name}.zero" for part in parts])
        width = -(-packing.groups(parts[0].columns) * packing.bits // 8)
        value = beside_minimums * 17 if packing.bits == 4 else beside_minimums  # the same in both halves of a byte
        return graph.bytes_of(value, sum(part.rows for part in parts), width)

    def biases(self, parts: Sequence[Linear], name: str) -> str:
        """Those of neighbouring matrices side by side, zeros where one has none; empty where none has."""
        graph = self.graph
        if all(part.bias for part in parts):
            return graph.cast(graph.stored([f"{part.name}.bias" for part in parts]))
        if not any(part.bias for part in parts):
            return ""
        each = [graph.cast(graph.stored([f"{p.name}.bias"])) if p.bias else graph.zeros(p.rows) for p in parts]
        return graph.op("Concat", each, f"{name}.biases", axis=0)

    def padded(self, x: str, columns: int, stored: int) -> str:
        """x with zeros behind its last dimension, as the last group of each row of a matrix has them."""
        graph, name = self.graph, f"{x}.padded"
        if not graph.has(name):
            graph.node("Pad", [x, graph.constant(0, stored - columns), "", graph.constant(-1)], [name], name)
        return name

    def unpacked(self, parts: Sequence[Linear], packing: Packing, name: str) -> str:
        """Matrices as floats, which the runtime makes when it loads: for exact products of 8 bits, and per head."""
        graph = self.graph
        stored = graph.stored([f"{part.name}.weight" for part in parts])
        if not packing.quantized:
            return graph.cast(stored)
        rows, groups = sum(part.rows for part in parts), packing.groups(parts[0].columns)
        if packing.bits < 8:
            weights = self.nibbles(stored, packing, [rows, groups, packing.group_size], f"{name}.integers")
        else:
            weights = graph.cast(stored)

        def per_group(kind: str) -> str:
            names = [f"{part.name}.{kind}" for part in parts]
            return graph.cast(graph.stored(names, shape=[rows, groups, 1], name=f"{names[0]}.groups"))

        def zeros() -> str:
            if not packing.stores_zeros:
                return graph.cast(graph.constant(1 << packing.bits - 1))
            if packing.bits == 8:
                return per_group("zero")
            row_groups = groups + groups % 2  # a row ends with a whole byte
            stored_zeros = graph.stored([f"{part.name}.zero" for part in parts])
            zero = self.nibbles(stored_zeros, packing, [rows, row_groups, 1], f"{name}.zeros")
            bounds = [graph.constant(value) for value in (0, groups, 1)]
            return zero if row_groups == groups else graph.op("Slice", [zero, *bounds], f"{name}.zeros.given")

        centred = weights
        if not packing.has_minimum:
            zero = zeros()
            centred = graph.op("Sub", [weights, zero], f"{name}.centred")
        scaled = graph.op("Mul", [centred, per_group("scale")], f"{name}.scaled")
        if packing.has_minimum:
            scaled = graph.op("Add", [scaled, per_group("minimum")], f"{name}.dequantized")
        floats = graph.op("Reshape", [scaled, graph.constant(rows, groups * packing.group_size)], f"{name}.floats")
        columns = parts[0].columns
        whole = columns == groups * packing.group_size
        return floats if whole else self.first_columns(floats, columns, f"{name}.columns")

    def first_columns(self, x: str, count: int, name: str) -> str:
        """Without the zeros that fill up the last group of a row."""
        bounds = [self.graph.constant(value) for value in (0, count, -1)]
        return self.graph.op("Slice", [x, *bounds], name)

    def scale(self, parts: Sequence[Linear]) -> str:
        return self.graph.cast(self.graph.stored([f"{part.name}.scale" for part in parts]))
