"""Decoder + layout + dialect -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors.

    input_ids -> embedding -> x
    each layer:  a = norm(x) -> qkv -> attention with KV -> o;  x += o;  m = norm(x) -> mlp;  x += m
    norm(x) -> head -> logits

The residual sum and the next norm are one operator (SkipSimplifiedLayerNormalization). Only the positions whose
logits are asked for pass the last layer's output projection and mlp, the final norm and the head: `logits_from` is
the first of them, an input with the default -1, the last position; or `logits_at` are all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper

from embedllm.export.decoder import Attention, Decoder, Mlp, Norm
from embedllm.export.dialects import KV_SCALES, Dialect
from embedllm.export.floats import float_spans
from embedllm.export.graph import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.onnx_products import Products
from embedllm.export.quantize import Packing
from embedllm.export.weights import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TO_END = int(np.iinfo(np.int64).max)


def build(
    decoder: Decoder,
    layout: Layout,
    packing: Mapping[str, Packing],
    dialect: Dialect,
    kv_scales: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]] = (),
) -> onnx.ModelProto:
    """The graph of a whole model.

    packing: by the name of the matrix. kv_scales: by layer, what one step of a cached key and of a value stands for,
    [kv heads, D]; for a dialect with kv_bits. Two values of 4 bits share a byte: past and present then end with D/2.
    Inputs: input_ids [B, T], attention_mask [B, past + T], past_key_values.N.key and .value [B, kv heads, past, D],
    logits_from [1]. Outputs: logits [B, T', V], present.N.key and .value.
    A dialect whose lengths do not come from the mask has, in place of attention_mask and logits_from: position_ids
    [B, T]; seqlens_k [B] i32, tokens held afterwards less one; total_sequence_length [1] i32, the KV's capacity;
    logits_at [T'], places among the T.
    """
    offsets = {name: placed.offset for name, placed in layout.placed.items()}
    floats = float_spans(decoder, offsets) if dialect.float_matrices else {}
    return _Emitter(Graph(layout, dialect.activations, floats), packing, dialect, kv_scales).model(decoder)


class _Emitter:
    """Writes the parts of a decoder into a graph, in the operators of one dialect."""

    def __init__(
        self,
        graph: Graph,
        packing: Mapping[str, Packing],
        dialect: Dialect,
        kv_scales: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
    ) -> None:
        self.graph = graph
        self.dialect = dialect
        self.kv_scales = kv_scales
        self.products = Products(graph, packing, dialect)

    def model(self, decoder: Decoder) -> onnx.ModelProto:
        graph = self.graph
        lengths = ["seqlens_k", "total_sequence_length"]
        if self.dialect.lengths_from_mask:
            graph.default("logits_from", -1)
            lengths = self.lengths()
        tables = [graph.cast(graph.stored([f"rope.{part}"])) for part in ("cos", "sin")]
        graph.scope = "embedding"
        hidden, residual = self.products.embedding(decoder.embedding), ""
        for index, layer in enumerate(decoder.layers):
            graph.scope = f"layers.{index}"
            normed, residual = self.norm(hidden, residual, layer.attention_norm)
            context = self.attention(index, layer.attention, normed, lengths, tables)
            if index == len(decoder.layers) - 1:
                context, residual = self.wanted(context, "context"), self.wanted(residual, "residual")
            hidden = self.products.linear(context, [layer.attention.o], "o")
            normed, residual = self.norm(hidden, residual, layer.mlp_norm)
            hidden = self.mlp(layer.mlp, normed)
        graph.scope = "head"
        normed, _ = self.norm(hidden, residual, decoder.norm)
        self.products.linear(normed, [decoder.head], "head", output="logits")
        return graph.model(decoder.model_type, *_signature(decoder, dialect=self.dialect))

    def lengths(self) -> list[str]:
        """seqlens_k [B] and total_sequence_length [] from the attention mask, once for all layers."""
        graph = self.graph
        graph.scope = "lengths"
        held = graph.op("ReduceSum", ["attention_mask", graph.constant(1)], "sum", keepdims=0)
        last = graph.op("Sub", [held, graph.constant(1)], "last")
        shape = graph.op("Shape", ["attention_mask"], "shape")
        total = graph.op("Gather", [shape, graph.constant(1, scalar=True)], "total", axis=0)
        return [graph.op("Cast", [name], f"{name}.int32", to=TensorProto.INT32) for name in (last, total)]

    def attention(
        self, index: int, attention: Attention, normed: str, lengths: Sequence[str], tables: Sequence[str]
    ) -> str:
        """GroupQueryAttention, which appends to the KV and attends.

        lengths: seqlens_k, total_sequence_length. tables: cos and sin of the rotation.
        """
        graph = self.graph
        inside = ["", ""]
        scales, attributes = self.kv_quantization(index)
        if self.dialect.whole_attention:
            inputs = self.side_by_side(attention, normed)
            lengths = [*lengths, *tables]
            attributes["do_rotary"] = 1
            if attention.window is not None:
                attributes["local_window_size"] = attention.window
            if self.dialect.norm_in_attention and attention.q_norm is not None and attention.k_norm is not None:
                inside = [self.norm_weight(attention.q_norm), self.norm_weight(attention.k_norm)]
                attributes["qk_norm_epsilon"] = attention.q_norm.epsilon
        else:
            inputs = self.apart(attention, normed, tables)
        past, present = ([f"{prefix}.{index}.{part}" for part in ("key", "value")] for prefix in _KV_PREFIXES)
        output = graph.named("context")
        graph.node(
            "GroupQueryAttention",
            [*inputs, *past, *lengths, "", "", "", *scales, *inside],
            [output, *present],
            graph.named("attention"),
            MICROSOFT,
            num_heads=attention.heads,
            kv_num_heads=attention.kv_heads,
            **attributes,
        )
        return output

    def kv_quantization(self, index: int) -> tuple[list[str], dict[str, float | str]]:
        """Scales of keys and values, and the attributes that say so; none for a cache of floats."""
        if not self.dialect.kv_bits:
            return ["", ""], {}
        names = [self.graph.named(name) for name in KV_SCALES]
        for name, scale in zip(names, self.kv_scales[index], strict=True):
            self.graph.floats(scale[None, :, None], name)  # [1, kv heads, 1, D]
        kinds = {f"{part}_quant_type": "PER_CHANNEL" for part in ("k", "v")}
        return names, {**kinds, "kv_cache_bit_width": self.dialect.kv_bits}

    def side_by_side(self, attention: Attention, normed: str) -> list[str]:
        """q, k and v in one product, apart for norms that the attention does not apply, or where it takes no other."""
        graph, parts = self.graph, [attention.q, attention.k, attention.v]
        product = self.products.linear(normed, parts, "qkv")
        q_norm, k_norm = attention.q_norm, attention.k_norm
        has_norms = q_norm is not None and k_norm is not None
        norms_here = has_norms and not self.dialect.norm_in_attention
        if not norms_here and not (self.dialect.splits_qkv and (has_norms or attention.window is not None)):
            return [product, "", ""]
        q, k, v = (graph.named(part) for part in ("q", "k", "v"))
        sizes = graph.constant(*(part.rows for part in parts))
        graph.node("Split", [product, sizes], [q, k, v], graph.named("split"), axis=-1)
        if not norms_here:
            return [q, k, v]
        assert q_norm is not None
        assert k_norm is not None
        return [self.head_norm(q, q_norm, attention.heads), self.head_norm(k, k_norm, attention.kv_heads), v]

    def apart(self, attention: Attention, normed: str, tables: Sequence[str]) -> list[str]:
        """q, k and v in products of their own; q and k normed and rotated by operators of their own."""
        q, k, v = (
            self.products.linear(normed, [part], name)
            for name, part in (("q", attention.q), ("k", attention.k), ("v", attention.v))
        )
        if attention.q_norm is not None and attention.k_norm is not None:
            q = self.head_norm(q, attention.q_norm, attention.heads)
            k = self.head_norm(k, attention.k_norm, attention.kv_heads)
        q, k = (
            self.graph.op("RotaryEmbedding", [x, "position_ids", *tables], f"{x}.turned", MICROSOFT) for x in (q, k)
        )
        return [q, k, v]

    def mlp(self, mlp: Mlp, x: str) -> str:
        gate, up = self.products.linear(x, [mlp.gate], "gate"), self.products.linear(x, [mlp.up], "up")
        active = self.graph.op("QuickGelu", [gate], "silu", MICROSOFT, alpha=1.0)
        return self.products.linear(self.graph.op("Mul", [active, up], "gated"), [mlp.down], "down")

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
        """The positions from `logits_from` on, or those that `logits_at` names."""
        graph = self.graph
        if not self.dialect.lengths_from_mask:
            return graph.op("Gather", [x, "logits_at"], f"{name}.wanted", axis=1)
        bounds = ["logits_from", graph.constant(_TO_END), graph.constant(1)]
        return graph.op("Slice", [x, *bounds], f"{name}.wanted")

    def norm_weight(self, norm: Norm) -> str:
        return self.graph.cast(self.graph.stored([f"{norm.name}.weight"]))


_KV_PREFIXES = ("past_key_values", "present")


def _signature(decoder: Decoder, *, dialect: Dialect) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Inputs and outputs, under the names that onnxruntime-genai and optimum use."""
    kind, integer = FLOAT_TYPES[dialect.activations], TensorProto.INT64
    held, per_element = {8: (TensorProto.INT8, 1), 4: (TensorProto.UINT8, 2)}.get(dialect.kv_bits, (kind, 1))
    inputs = [_info("input_ids", integer, ["batch", "tokens"])]
    if dialect.lengths_from_mask:
        inputs += [_info("attention_mask", integer, ["batch", "total"])]
        asked = [_info("logits_from", integer, [1])]
        # 1: onnxruntime-genai makes room for every position of a prompt unless this says that only the last one comes
        wanted, before = 1, "past"
    else:
        inputs += [
            _info("position_ids", integer, ["batch", "tokens"]),
            _info("seqlens_k", TensorProto.INT32, ["batch"]),
            _info("total_sequence_length", TensorProto.INT32, [1]),
        ]
        asked = [_info("logits_at", integer, ["wanted"])]
        wanted, before = "wanted", "capacity"
    outputs = [_info("logits", kind, ["batch", wanted, decoder.vocabulary])]
    for index, layer in enumerate(decoder.layers):
        for infos, prefix, length in zip((inputs, outputs), _KV_PREFIXES, (before, "capacity"), strict=True):
            shape = ["batch", layer.attention.kv_heads, length, layer.attention.head_dim // per_element]
            infos += [_info(f"{prefix}.{index}.{part}", held, shape) for part in ("key", "value")]
    return [*inputs, *asked], outputs


def _info(name: str, kind: int, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
