"""Decoder + layout + dialect -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors.

    input_ids -> embedding -> x
    each layer:  a = norm(x) -> qkv -> attention with KV -> o;  x += o;  m = norm(x) -> mlp;  x += m
    norm(x) -> head -> logits

The residual sum and the next norm are one operator (SkipSimplifiedLayerNormalization). Only the positions whose
logits are asked for pass the last layer's output projection and mlp, the final norm and the head: `logits_from` is
the first of them, an input with the default -1, the last position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from embedllm.export.decoder import Attention, Decoder, Linear, Mlp, Norm
from embedllm.export.dialects import Dialect
from embedllm.export.graph import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.quantize import Packing
from embedllm.export.weights import Layout

_TO_END = int(np.iinfo(np.int64).max)


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing], dialect: Dialect) -> onnx.ModelProto:
    """The graph of a whole model.

    packing: by the name of the matrix.
    Inputs: input_ids [B, T], attention_mask [B, past + T], past_key_values.N.key and .value [B, kv heads, past, D],
    logits_from [1]. Outputs: logits [B, T', V], present.N.key and .value.
    """
    return _Emitter(Graph(layout, dialect.activations), packing, dialect).model(decoder)


class _Emitter:
    """Writes the parts of a decoder into a graph, in the operators of one dialect."""

    def __init__(self, graph: Graph, packing: Mapping[str, Packing], dialect: Dialect) -> None:
        self.graph = graph
        self.packing = packing
        self.dialect = dialect

    def model(self, decoder: Decoder) -> onnx.ModelProto:
        graph = self.graph
        graph.default("logits_from", -1)
        shared = [*self.lengths(), *(graph.cast(graph.stored([f"rope.{part}"])) for part in ("cos", "sin"))]
        hidden, residual = self.embedding(decoder.embedding), ""
        for index, layer in enumerate(decoder.layers):
            graph.scope = f"layers.{index}"
            normed, residual = self.norm(hidden, residual, layer.attention_norm)
            context = self.attention(index, layer.attention, normed, shared)
            if index == len(decoder.layers) - 1:
                context, residual = self.wanted(context, "context"), self.wanted(residual, "residual")
            hidden = self.linear(context, [layer.attention.o], "o")
            normed, residual = self.norm(hidden, residual, layer.mlp_norm)
            hidden = self.mlp(layer.mlp, normed)
        graph.scope = "head"
        normed, _ = self.norm(hidden, residual, decoder.norm)
        self.linear(normed, [decoder.head], "head", output="logits")
        return graph.model(decoder.model_type, *_signature(decoder, dialect=self.dialect))

    def embedding(self, table: Linear) -> str:
        """Rows of the table. A quantized one is unpacked by rows; a tied one is the head's bytes in another shape."""
        graph, packing = self.graph, self.packing[table.name]
        graph.scope = "embedding"
        if not packing.quantized:
            weight = graph.stored([f"{table.name}.weight"])
            return graph.cast(graph.op("Gather", [weight, "input_ids"], "rows", axis=0), like=weight)
        stored_columns = packing.groups(table.columns) * packing.group
        if not self.dialect.gathers_blocks:
            rows = self.unpacked_rows(table, packing)
            return rows if stored_columns == table.columns else self.first_columns(rows, table.columns, "columns")
        flat = [table.rows, stored_columns * packing.bits // 8]
        weight = graph.stored([f"{table.name}.weight"], shape=flat, name="embedding.rows.weight")
        zero = [] if packing.symmetric else [graph.stored([f"{table.name}.zero"])]
        rows = graph.op(
            "GatherBlockQuantized",
            [weight, "input_ids", self.scale([table]), *zero],
            "rows",
            MICROSOFT,
            bits=packing.bits,
            block_size=packing.group,
            gather_axis=0,
            quantize_axis=1,
        )
        return rows if stored_columns == table.columns else self.first_columns(rows, table.columns, "columns")

    def unpacked_rows(self, table: Linear, packing: Packing) -> str:
        """Rows of a quantized table by standard operators: packed rows are gathered, then unpacked."""
        graph, groups = self.graph, packing.groups(table.columns)

        def gathered(kind: str, shape: Sequence[int], *, name: str) -> str:
            """[B, T, ...]; under a name and shape of its own, because the head may read the same bytes otherwise."""
            entry = graph.stored([f"{table.name}.{kind}"], shape=[table.rows, *shape], name=f"embedding.rows.{kind}")
            return graph.op("Gather", [entry, "input_ids"], name, axis=0)

        weight = gathered("weight", [groups, packing.group * packing.bits // 8], name="packed")
        values = self.nibbles(weight, packing, [0, 0, groups, packing.group], "values")
        if packing.symmetric:
            zero = graph.cast(graph.constant(1 << packing.bits - 1))
        else:
            width = -(-groups * packing.bits // 8)
            held = width * 8 // packing.bits  # a row ends with a whole byte
            zero = self.nibbles(gathered("zero", [width], name="packed_zero"), packing, [0, 0, held, 1], "zeros")
            if held > groups:
                bounds = [graph.constant(value) for value in (0, groups, 2)]
                zero = graph.op("Slice", [zero, *bounds], "zeros.given")
        scale = gathered("scale", [groups, 1], name="packed_scale")
        scale = graph.op("Cast", [scale], "scales", to=FLOAT_TYPES[self.dialect.activations])
        scaled = graph.op("Mul", [graph.op("Sub", [values, zero], "centred"), scale], "scaled")
        return graph.op("Reshape", [scaled, graph.constant(0, 0, groups * packing.group)], "rows")

    def nibbles(self, packed: str, packing: Packing, shape: Sequence[int], name: str) -> str:
        """Bytes as the numbers in them, the earlier one of two in the low bits, as floats of that shape.

        By float arithmetic, which is exact here: OpenVINO 2026.4 rounds a right shift of bytes.
        """
        graph = self.graph
        floats = graph.op("Cast", [packed], f"{name}.floats", to=FLOAT_TYPES[self.dialect.activations])
        if packing.bits == 4:
            sixteenth = graph.op("Mul", [floats, graph.number(1 / 16)], f"{name}.sixteenth")
            high = graph.op("Floor", [sixteenth], f"{name}.high")
            low = graph.op("Sub", [floats, graph.op("Mul", [high, graph.number(16)], f"{name}.rest")], f"{name}.low")
            last = [graph.op("Unsqueeze", [part, graph.constant(-1)], f"{part}.apart") for part in (low, high)]
            floats = graph.op("Concat", last, f"{name}.pairs", axis=-1)
        return graph.op("Reshape", [floats, graph.constant(*shape)], name)

    def lengths(self) -> list[str]:
        """seqlens_k [B] and total_sequence_length [] from the attention mask, once for all layers."""
        graph = self.graph
        graph.scope = "lengths"
        held = graph.op("ReduceSum", ["attention_mask", graph.constant(1)], "sum", keepdims=0)
        last = graph.op("Sub", [held, graph.constant(1)], "last")
        shape = graph.op("Shape", ["attention_mask"], "shape")
        total = graph.op("Gather", [shape, graph.constant(1, scalar=True)], "total", axis=0)
        return [graph.op("Cast", [name], f"{name}.int32", to=TensorProto.INT32) for name in (last, total)]

    def attention(self, index: int, attention: Attention, normed: str, shared: Sequence[str]) -> str:
        """q, k and v in one product, then GroupQueryAttention, which rotates, appends to the KV and attends."""
        graph = self.graph
        parts = [attention.q, attention.k, attention.v]
        inputs = [self.linear(normed, parts, "qkv"), "", ""]
        inside = ["", ""]
        attributes: dict[str, float] = {}
        q_norm, k_norm = attention.q_norm, attention.k_norm
        if q_norm is not None and k_norm is not None:
            if self.dialect.norm_in_attention:
                inside = [self.norm_weight(q_norm), self.norm_weight(k_norm)]
                attributes["qk_norm_epsilon"] = q_norm.epsilon
            else:
                q, k, v = (graph.named(part) for part in ("q", "k", "v"))
                sizes = graph.constant(*(part.rows for part in parts))
                graph.node("Split", [inputs[0], sizes], [q, k, v], graph.named("split"), axis=-1)
                inputs = [self.head_norm(q, q_norm, attention.heads), self.head_norm(k, k_norm, attention.kv_heads), v]
        if attention.window is not None:
            attributes["local_window_size"] = attention.window
        past, present = ([f"{prefix}.{index}.{part}" for part in ("key", "value")] for prefix in _KV_PREFIXES)
        output = graph.named("context")
        graph.node(
            "GroupQueryAttention",
            [*inputs, *past, *shared, "", "", "", "", "", *inside],
            [output, *present],
            graph.named("attention"),
            MICROSOFT,
            num_heads=attention.heads,
            kv_num_heads=attention.kv_heads,
            do_rotary=1,
            **attributes,
        )
        return output

    def mlp(self, mlp: Mlp, x: str) -> str:
        gate, up = self.linear(x, [mlp.gate], "gate"), self.linear(x, [mlp.up], "up")
        active = self.graph.op("QuickGelu", [gate], "silu", MICROSOFT, alpha=1.0)
        return self.linear(self.graph.op("Mul", [active, up], "gated"), [mlp.down], "down")

    def linear(self, x: str, parts: Sequence[Linear], name: str, *, output: str = "") -> str:
        """x @ weight.T + bias for neighbouring matrices as one product; outputs side by side."""
        graph, packing = self.graph, self.packing[parts[0].name]
        name = graph.named(name)
        result = output or name
        bias = graph.cast(graph.stored([f"{part.name}.bias" for part in parts])) if parts[0].bias else ""
        in_integers = packing.quantized and self.dialect.multiplies(packing.bits)
        added = bool(bias) and not (in_integers and self.dialect.bias_in_matmul)
        product = f"{name}.product" if added else result
        weights = graph.stored([f"{part.name}.weight" for part in parts])
        if in_integers:
            zero = "" if packing.symmetric else graph.stored([f"{part.name}.zero" for part in parts])
            graph.node(
                "MatMulNBits",
                [x, weights, self.scale(parts), zero, "", "" if added else bias],
                [product],
                name,
                MICROSOFT,
                K=parts[0].columns,
                N=sum(part.rows for part in parts),
                bits=packing.bits,
                block_size=packing.group,
                accuracy_level=self.dialect.accuracy_level,
            )
        else:
            floats = self.unpacked(parts, packing, name) if packing.quantized else graph.cast(weights)
            turned = graph.op("Transpose", [floats], f"{name}.transposed", perm=[1, 0])
            graph.node("MatMul", [x, turned], [product], name)
        if added:
            graph.node("Add", [product, bias], [result], f"{name}.bias")
        return result

    def unpacked(self, parts: Sequence[Linear], packing: Packing, name: str) -> str:
        """8-bit matrices as floats, which the runtime folds when it loads: for exact products."""
        graph = self.graph
        rows, groups = sum(part.rows for part in parts), packing.groups(parts[0].columns)

        def per_group(kind: str) -> str:
            names = [f"{part.name}.{kind}" for part in parts]
            return graph.cast(graph.stored(names, shape=[rows, groups, 1], name=f"{names[0]}.groups"))

        values = graph.cast(graph.stored([f"{part.name}.weight" for part in parts]))
        zero = per_group("zero") if not packing.symmetric else graph.cast(graph.constant(128))
        centred = graph.op("Sub", [values, zero], f"{name}.centred")
        scaled = graph.op("Mul", [centred, per_group("scale")], f"{name}.scaled")
        floats = graph.op("Reshape", [scaled, graph.constant(rows, groups * packing.group)], f"{name}.floats")
        columns = parts[0].columns
        whole = columns == groups * packing.group
        return floats if whole else self.first_columns(floats, columns, f"{name}.columns")

    def norm(self, x: str, residual: str, norm: Norm) -> tuple[str, str]:
        """(norm(x + residual), x + residual)."""
        graph, weight = self.graph, self.norm_weight(norm)
        name = graph.named(norm.name.rsplit(".", 1)[-1])
        if not residual:
            return self.plain_norm(x, norm, name), x
        total = f"{name}.sum"
        outputs = [name, "", "", total]
        graph.node(
            "SkipSimplifiedLayerNormalization", [x, residual, weight], outputs, name, MICROSOFT, epsilon=norm.epsilon
        )
        return name, total

    def head_norm(self, x: str, norm: Norm, heads: int) -> str:
        """The norm over each head of x [B, T, heads * D]."""
        graph = self.graph
        split = graph.op("Reshape", [x, graph.constant(0, 0, heads, norm.size)], f"{x}.heads")
        normed = self.plain_norm(split, norm, f"{x}.norm")
        return graph.op("Reshape", [normed, graph.constant(0, 0, heads * norm.size)], f"{x}.flat")

    def plain_norm(self, x: str, norm: Norm, name: str) -> str:
        inputs = [x, self.norm_weight(norm)]
        return self.graph.op("SimplifiedLayerNormalization", inputs, name, axis=-1, epsilon=norm.epsilon, stash_type=1)

    def wanted(self, x: str, name: str) -> str:
        """The positions from `logits_from` on."""
        graph = self.graph
        bounds = ["logits_from", graph.constant(_TO_END), graph.constant(1)]
        return graph.op("Slice", [x, *bounds], f"{name}.wanted")

    def first_columns(self, x: str, count: int, name: str) -> str:
        """Without the zeros that fill up the last group of a row."""
        bounds = [self.graph.constant(value) for value in (0, count, -1)]
        return self.graph.op("Slice", [x, *bounds], name)

    def scale(self, parts: Sequence[Linear]) -> str:
        return self.graph.cast(self.graph.stored([f"{part.name}.scale" for part in parts]))

    def norm_weight(self, norm: Norm) -> str:
        return self.graph.cast(self.graph.stored([f"{norm.name}.weight"]))


_KV_PREFIXES = ("past_key_values", "present")


def _signature(decoder: Decoder, *, dialect: Dialect) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Inputs and outputs, under the names that onnxruntime-genai and optimum use."""
    kind, integer = FLOAT_TYPES[dialect.activations], TensorProto.INT64
    inputs = [
        helper.make_tensor_value_info("input_ids", integer, ["batch", "tokens"]),
        helper.make_tensor_value_info("attention_mask", integer, ["batch", "total"]),
    ]
    # 1: onnxruntime-genai makes room for every position of a prompt unless this says that only the last one comes
    outputs = [helper.make_tensor_value_info("logits", kind, ["batch", 1, decoder.vocabulary])]
    for index, layer in enumerate(decoder.layers):
        for infos, prefix, length in zip((inputs, outputs), _KV_PREFIXES, ("past", "capacity"), strict=True):
            shape = ["batch", layer.attention.kv_heads, length, layer.attention.head_dim]
            infos += [helper.make_tensor_value_info(f"{prefix}.{index}.{p}", kind, shape) for p in ("key", "value")]
    inputs.append(helper.make_tensor_value_info("logits_from", integer, [1]))
    return inputs, outputs
