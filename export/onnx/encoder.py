"""An encoder -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors; nothing is remembered.

Inputs: input_ids and attention_mask [B, T], which is 0 behind the end of a shorter text, and token_type_ids [B, T]
where the model has rows for them. Output: hidden [B, T, H], of which
backends/reference/encoder_layers.py makes vectors or scores.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from embedllm.export.layout import Layout
from embedllm.export.onnx.attention import Attentions
from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.moe import feed_forward
from embedllm.export.onnx.norms import Norms
from embedllm.export.onnx.per_layer_embeddings import gated_input, per_layer_inputs
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.position_bias import Alibi, DisentangledAttention
from embedllm.package.architecture.weights import Linear, Norm
from embedllm.package.graph_variants import GraphVariant
from embedllm.package.packing import Packing
from embedllm.package.position_bias import alibi_slopes, buckets
from embedllm.package.tensors import scale_name

_HIDDEN_SCORE = -30000.0  # what a hidden key's score is lowered by: the sum of two stays finite in float16
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing], variant: GraphVariant) -> onnx.ModelProto:
    """The graph of a whole encoder. packing: by the name of the matrix."""
    return _Emitter(decoder, Graph(layout, variant.activations), packing, variant).model()


class _Emitter:
    """Writes an encoder into a graph, in the operators of one variant."""

    def __init__(self, decoder: Decoder, graph: Graph, packing: Mapping[str, Packing], variant: GraphVariant) -> None:
        assert decoder.encoder is not None
        self.decoder, self.graph = decoder, graph
        self.encoder: Encoder = decoder.encoder
        self.products = Products(graph, packing, variant)
        self.norms = Norms(graph)
        self.mlps = Mlps(self.products)
        # the places of all tokens begin with 0
        self.attentions = Attentions(decoder, self.products, self.norms, [], graph.constant(0), ())
        self.biases: dict[int | None, str] = {}  # by window
        self.buckets = ""  # the row of the position bias' table for each query and key, [T, T] or [B, H, T, T]

    def model(self) -> onnx.ModelProto:
        graph, decoder = self.graph, self.decoder
        graph.scope = "masks"
        self.masks()
        graph.scope = "embedding"
        x = self.embedding()
        own = ""
        if decoder.per_layer_embedding is not None:
            graph.scope = "per_layer_embedding"
            own = per_layer_inputs(self.norms, self.products, decoder.per_layer_embedding, x)
        for index, layer in enumerate(decoder.layers):
            graph.scope = f"layers.{index}"
            x = self.with_per_layer_input(index, layer, self.layer(index, layer, x), own)
        graph.scope = "last"
        graph.node("Identity", [self.norms.plain(x, decoder.norm, "norm")], ["hidden"], "hidden")
        kind = FLOAT_TYPES[graph.activations]
        names = _INPUTS if self.encoder.token_types is not None else _INPUTS[:2]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in names]
        output = helper.make_tensor_value_info("hidden", kind, ["batch", "tokens", decoder.hidden])
        return graph.model(decoder.model_type, inputs, [output])

    def masks(self) -> None:
        """What is added to the scores, [B, 1, T, T], by window."""
        graph = self.graph
        shape = graph.op("Shape", ["input_ids"], "shape")
        length = graph.op("Gather", [shape, graph.constant(1, scalar=True)], "length", axis=0)
        zero, one = graph.constant(0, scalar=True), graph.constant(1, scalar=True)
        places = graph.op("Range", [zero, length, one], "places")
        at = [graph.op("Unsqueeze", [places, graph.constant(axis)], f"places.{axis}") for axis in (1, 0)]
        earlier = graph.op("Sub", at, "earlier")  # how many tokens a key is before a query
        apart = graph.op("Abs", [earlier], "apart")
        by_distance = self.position_bias(earlier, apart)
        is_token = graph.op("Cast", ["attention_mask"], "given", to=TensorProto.BOOL)
        is_token = graph.op("Unsqueeze", [is_token, graph.constant(1, 2)], "given.keys")
        for window in dict.fromkeys(attention.window for attention in self.decoder.attentions):
            name = "all" if window is None else f"window.{window}"
            near = graph.op("Less", [apart, length if window is None else graph.constant(window)], f"{name}.near")
            if self.encoder.causal:
                before = graph.op("GreaterOrEqual", [earlier, zero], f"{name}.before")
                near = graph.op("And", [near, before], f"{name}.causal")
            is_visible = graph.op("And", [is_token, near], f"{name}.seen")
            numbers = [graph.number(value) for value in (0.0, _HIDDEN_SCORE)]
            hidden = graph.op("Where", [is_visible, *numbers], name)
            self.biases[window] = graph.op("Add", [hidden, by_distance], f"{name}.biased") if by_distance else hidden

    def position_bias(self, earlier: str, apart: str) -> str:
        """What scores of all layers have added, [1, H, T, T]; empty where there is nothing that all share.

        earlier: how many tokens a key is before a query, [T, T]; apart: its absolute value.
        """
        graph, bias = self.graph, self.encoder.position_bias
        if isinstance(bias, Alibi):
            heads = self.decoder.attentions[0].heads
            slopes = -alibi_slopes(heads, bias.max_bias).reshape(1, heads, 1, 1)
            kind = FLOAT_TYPES[graph.activations]
            distance = graph.op("Cast", [apart], "apart.float", to=kind)
            return graph.op("Mul", [distance, graph.table(slopes.astype(graph.activations), "alibi.slopes")], "alibi")
        if bias is None:
            return ""
        rows = graph.table(buckets(bias, self.decoder.context).astype(np.int32), "position_bias.buckets")
        first = graph.constant(self.decoder.context - 1, scalar=True)
        places = graph.op("Add", [earlier, first], "earlier.from_first")
        self.buckets = graph.op("Gather", [rows, places], "buckets", axis=0)
        if isinstance(bias, DisentangledAttention):
            batch, length = (graph.op("Shape", ["input_ids"], f"shape.{axis}", start=axis, end=axis + 1)
                             for axis in (0, 1))  # fmt: skip
            heads = graph.constant(self.decoder.attentions[0].heads)
            shape = graph.op("Concat", [batch, heads, length, length], "buckets.shape", axis=0)
            self.buckets = graph.op("Expand", [self.buckets, shape], "buckets.by_head")
            return ""
        each = graph.op("Gather", [self.small(bias.table), self.buckets], "position_bias.last", axis=0)  # [T, T, H]
        each = graph.op("Transpose", [each], "position_bias.first", perm=[2, 0, 1])
        return graph.op("Unsqueeze", [each, graph.constant(0)], "position_bias")

    def disentangled(self, attention: Attention, q: str, k: str) -> str:
        """The mask of a layer with the scores of positions, [B, H, T, T]. q, k: [B, T, H * D]."""
        graph, bias, mask = self.graph, self.encoder.position_bias, self.biases[attention.window]
        if not isinstance(bias, DisentangledAttention):
            return mask
        rows = graph.op("Unsqueeze", [self.small(bias.table), graph.constant(0)], "places.rows")
        rows = self.normed(rows, bias.norm, "places.normed")
        shape = graph.constant(0, 0, attention.heads, attention.head_dim)
        terms: list[str] = []
        for x, linear, name in ((q, attention.k, "c2p"), (k, attention.q, "p2c")):
            places = graph.op("Reshape", [self.products.linear(rows, [linear], f"{name}.rows"), shape], f"{name}.heads")
            places = graph.op("Transpose", [places], f"{name}.columns", perm=[0, 2, 3, 1])
            x = graph.op("Reshape", [x, shape], f"{name}.tokens")
            x = graph.op("Transpose", [x], f"{name}.by_head", perm=[0, 2, 1, 3])
            terms.append(graph.op("MatMul", [x, places], f"{name}.places"))  # [B, H, T, 2 * buckets]
        across = graph.op("Transpose", [self.buckets], "buckets.across", perm=[0, 1, 3, 2])
        of_query = graph.op("GatherElements", [terms[0], self.buckets], "c2p", axis=3)
        of_key = graph.op("GatherElements", [terms[1], across], "p2c.across", axis=3)
        of_key = graph.op("Transpose", [of_key], "p2c", perm=[0, 1, 3, 2])
        total = graph.op("Add", [of_query, of_key], "places.sum")
        scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
        return graph.op("Add", [self.times(total, scale, "places.scaled"), mask], "places.masked")

    def embedding(self) -> str:
        graph, decoder = self.graph, self.decoder
        x = self.times(self.products.embedding(decoder.embedding), decoder.embedding_multiplier, "multiplied")
        if self.encoder.token_types is not None:
            rows = graph.op("Gather", [self.small(self.encoder.token_types), "token_type_ids"], "types", axis=0)
            x = graph.op("Add", [x, rows], "typed")
        if decoder.position_embeddings is not None:
            shape = graph.op("Shape", ["input_ids"], "shape", start=1)
            bounds = [graph.constant(0), shape, graph.constant(0)]
            rows = graph.op("Slice", [self.small(decoder.position_embeddings), *bounds], "positions")
            x = graph.op("Add", [x, rows], "placed")
        return x if decoder.embedding_norm is None else self.norms.plain(x, decoder.embedding_norm, "normed")

    def small(self, table: Linear) -> str:
        return self.graph.cast(self.graph.stored([f"{table.name}.weight"]))

    def layer(self, index: int, layer: Layer, x: str) -> str:
        """The stream behind a layer."""
        behind, attention = self.encoder.post_norm, layer.attention
        assert isinstance(attention, Attention)  # of all that export/encoders describes
        attention_input = x if behind else self.normed(x, layer.attention_norm, "attention_norm")
        output = self.products.linear(self.context(attention, attention_input), [attention.o], "o")
        x = self.added(layer, x, output, layer.attention_post_norm, "attended")
        if behind:
            x = mlp_input = self.normed(x, layer.attention_norm, "attention_norm")
        else:
            mlp_input = self.normed(x, layer.mlp_norm, "mlp_norm")
        assert layer.mlp is not None, "layers of encoders have one"
        output = feed_forward(self.mlps, index, layer.mlp, mlp_input)
        x = self.added(layer, x, output, layer.mlp_post_norm, "made")
        return self.normed(x, layer.mlp_norm, "mlp_norm") if behind else x

    def with_per_layer_input(self, index: int, layer: Layer, x: str, per_layer_inputs: str) -> str:
        """The stream behind a layer with what follows its mlp in some."""
        graph = self.graph
        if layer.per_layer_input is not None:
            own = graph.op("Gather", [per_layer_inputs, graph.constant(index, scalar=True)], "per_layer_input", axis=2)
            graph.scope = f"layers.{index}.per_layer_input"
            gated = gated_input(self.norms, self.mlps, layer.per_layer_input, x, own)
            graph.scope = f"layers.{index}"
            x = graph.op("Add", [x, gated], "per_layer_input.sum")
        return graph.op("Mul", [x, graph.cast(graph.stored([scale_name(index)]))], "scaled") if layer.scale else x

    def added(self, layer: Layer, x: str, more: str, norm: Norm | None, name: str) -> str:
        more = self.times(self.normed(more, norm, f"{name}.norm"), layer.residual_multiplier, f"{name}.multiplied")
        return self.graph.op("Add", [x, more], f"{name}.sum")

    def normed(self, x: str, norm: Norm | None, name: str) -> str:
        return x if norm is None else self.norms.plain(x, norm, name)

    def times(self, x: str, multiplier: float, name: str) -> str:
        return x if multiplier == 1 else self.graph.op("Mul", [x, self.graph.number(multiplier)], name)

    def context(self, attention: Attention, attention_input: str) -> str:
        """What the tokens find, [B, T, heads * D]."""
        q, k, v = self.products.split_linear(attention_input, [attention.q, attention.k, attention.v], "qkv", "qkv")
        q, k = self.attentions.normed_and_rotated(attention, q, k)
        v = self.attentions.normed_heads(v, attention.v_norm, attention.kv_heads, attention)
        k, v = (self.for_each_head(attention, x) for x in (k, v))
        inputs = [q, k, v, "", "", self.disentangled(attention, q, k)]
        scale = {} if attention.scale is None else {"scale": attention.scale}
        return self.graph.op("MultiHeadAttention", inputs, "context", MICROSOFT, num_heads=attention.heads, **scale)

    def for_each_head(self, attention: Attention, x: str) -> str:
        """[B, T, kv heads * D] as [B, T, heads * D]: the operator has as many heads of keys as of queries."""
        graph, shared = self.graph, attention.heads // attention.kv_heads
        if shared == 1:
            return x
        shape = graph.constant(0, 0, attention.kv_heads, 1, attention.head_dim)
        apart = graph.op("Reshape", [x, shape], f"{x}.apart")
        repeated = graph.op("Concat", [apart] * shared, f"{x}.repeated", axis=3)
        return graph.op("Reshape", [repeated, graph.constant(0, 0, attention.heads * attention.head_dim)], f"{x}.each")
