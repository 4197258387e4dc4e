"""An encoder -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors; nothing is remembered.

Inputs: input_ids and attention_mask [B, T], which is 0 behind the end of a shorter text, and token_type_ids [B, T]
where the model has rows for them. Output: hidden [B, T, H], of which
backends/reference/encoder_layers.py makes vectors or scores.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from embedllm.export.layout import Layout
from embedllm.export.onnx.attention import Attentions
from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture import Attention, Decoder, Encoder, Layer, Linear, Norm
from embedllm.package.graph_variants import GraphVariant
from embedllm.package.packing import Packing

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

    def model(self) -> onnx.ModelProto:
        graph, decoder = self.graph, self.decoder
        graph.scope = "masks"
        self.masks()
        graph.scope = "embedding"
        x = self.embedding()
        for index, layer in enumerate(decoder.layers):
            graph.scope = f"layers.{index}"
            x = self.layer(index, layer, x)
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
        given = graph.op("Cast", ["attention_mask"], "given", to=TensorProto.BOOL)
        given = graph.op("Unsqueeze", [given, graph.constant(1, 2)], "given.keys")
        for window in dict.fromkeys(attention.window for attention in self.decoder.attentions):
            name = "all" if window is None else f"window.{window}"
            near = graph.op("Less", [apart, length if window is None else graph.constant(window)], f"{name}.near")
            if self.encoder.causal:
                before = graph.op("GreaterOrEqual", [earlier, zero], f"{name}.before")
                near = graph.op("And", [near, before], f"{name}.causal")
            seen = graph.op("And", [given, near], f"{name}.seen")
            numbers = [graph.number(value) for value in (0.0, _HIDDEN_SCORE)]
            self.biases[window] = graph.op("Where", [seen, *numbers], name)

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
        read = x if behind else self.normed(x, layer.attention_norm, "attention_norm")
        made = self.products.linear(self.context(attention, read), [attention.o], "o")
        x = self.added(layer, x, made, layer.attention_post_norm, "attended")
        if behind:
            x = read = self.normed(x, layer.attention_norm, "attention_norm")
        else:
            read = self.normed(x, layer.mlp_norm, "mlp_norm")
        made = self.mlps.write(index, layer.mlp, read)
        x = self.added(layer, x, made, layer.mlp_post_norm, "made")
        return self.normed(x, layer.mlp_norm, "mlp_norm") if behind else x

    def added(self, layer: Layer, x: str, made: str, norm: Norm | None, name: str) -> str:
        made = self.times(self.normed(made, norm, f"{name}.norm"), layer.residual_multiplier, f"{name}.multiplied")
        return self.graph.op("Add", [x, made], f"{name}.sum")

    def normed(self, x: str, norm: Norm | None, name: str) -> str:
        return x if norm is None else self.norms.plain(x, norm, name)

    def times(self, x: str, multiplier: float, name: str) -> str:
        return x if multiplier == 1 else self.graph.op("Mul", [x, self.graph.number(multiplier)], name)

    def context(self, attention: Attention, read: str) -> str:
        """What the tokens find, [B, T, heads * D]."""
        graph, parts = self.graph, [attention.q, attention.k, attention.v]
        product = self.products.linear(read, parts, "qkv")
        q, k, v = (graph.named(part) for part in ("q", "k", "v"))
        sizes = graph.constant(*(part.rows for part in parts))
        graph.node("Split", [product, sizes], [q, k, v], graph.named("split"), axis=-1)
        q, k = self.attentions.normed_and_rotated(attention, q, k)
        k, v = (self.for_each_head(attention, x) for x in (k, v))
        inputs = [q, k, v, "", "", self.biases[attention.window]]
        scale = {} if attention.scale is None else {"scale": attention.scale}
        return graph.op("MultiHeadAttention", inputs, "context", MICROSOFT, num_heads=attention.heads, **scale)

    def for_each_head(self, attention: Attention, x: str) -> str:
        """[B, T, kv heads * D] as [B, T, heads * D]: the operator has as many heads of keys as of queries."""
        graph, shared = self.graph, attention.heads // attention.kv_heads
        if shared == 1:
            return x
        shape = graph.constant(0, 0, attention.kv_heads, 1, attention.head_dim)
        apart = graph.op("Reshape", [x, shape], f"{x}.apart")
        repeated = graph.op("Concat", [apart] * shared, f"{x}.repeated", axis=3)
        return graph.op("Reshape", [repeated, graph.constant(0, 0, attention.heads * attention.head_dim)], f"{x}.each")
