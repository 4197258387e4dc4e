"""An encoder -> an OpenVINO model whose weights lie in weights.safetensors; nothing is remembered.

Inputs and output are those of export/onnx/encoder.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.layout import Layout
from embedllm.export.openvino.attention import AddedScores, Attentions, Shared, rotations
from embedllm.export.openvino.elementwise import multiplied, normed
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.mlp import mixture, mlp
from embedllm.export.openvino.per_layer_embeddings import per_layer_inputs, with_per_layer_input
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.encoder import Encoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.position_bias import Alibi, DisentangledAttention
from embedllm.package.architecture.weights import Norm
from embedllm.package.packing import Packing
from embedllm.package.position_bias import alibi_slopes, buckets

_HIDDEN_SCORE = -30000.0  # as export/onnx/encoder.py has it


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing]) -> str:
    """The model of an encoder, as the text of an IR file. packing: by the name of the matrix."""
    return _Emitter(Ir(layout), decoder, packing).model().xml(decoder.model_type)


def constants(decoder: Decoder, packing: Mapping[str, Packing]) -> bytes:
    """The small constants that the model needs, to be stored as one entry of the weights file."""
    return _Emitter(Ir(None), decoder, packing).model().pool


class _Emitter:
    """Writes the parts of an encoder."""

    def __init__(self, ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
        assert decoder.encoder is not None
        self.ir, self.decoder = ir, decoder
        self.encoder: Encoder = decoder.encoder
        self.products = Products(ir, packing)
        self.buckets: Value | None = None  # [T, T], the row of the position bias' table for each query and key

    def model(self) -> Ir:
        ir, decoder = self.ir, self.decoder
        ids, mask = ir.parameter("input_ids", "i64", 2), ir.parameter("attention_mask", "i64", 2)
        batch, length = ir.size(ids, 0, "batch"), ir.size(ids, 1, "length")
        number = ir.op("Squeeze", [length, ir.constant(0)], "length.number")
        places = ir.op("Range", [ir.constant(0), number, ir.constant(1)], "places", output_type="i64")
        in_row = ir.op("Unsqueeze", [places, ir.constant(0)], "places.in_row")  # [1, T]
        masks = self.masks(mask, places, in_row)
        shared = Shared(batch=batch, beams=None, rope_tables=rotations(ir, decoder, in_row), temperatures={},
                        masks=masks, added_scores=self.disentangled(batch, length))  # fmt: skip
        attentions = Attentions(self.products, decoder, shared)
        x = self.embedded(ids, in_row)
        own = None
        if decoder.per_layer_embedding is not None:
            ir.scope = "per_layer_embedding"
            own = per_layer_inputs(self.products, decoder.per_layer_embedding, x)
        for index, layer in enumerate(decoder.layers):
            ir.scope = f"layers.{index}"
            x = with_per_layer_input(self.products, index, layer, self.layer(index, layer, x, attentions), own)
        ir.scope = ""
        last = normed(ir, x, decoder.norm, decoder.norm.name)
        named = ir.op("Convert", [last], "hidden", tensor="hidden", type="f32", destination_type="f32")
        ir.split("Result", [named], "hidden.result", 0)
        return ir

    def masks(self, mask: Value, places: Value, in_row: Value) -> dict[int | None, Value]:
        """What is added to the scores, [B, 1, T, T], by window."""
        ir = self.ir
        queries = ir.op("Unsqueeze", [places, ir.constant(1)], "queries")  # [T, 1]
        earlier = ir.op("Subtract", [queries, in_row], "earlier", **BROADCAST)  # how many tokens before a query
        apart = ir.op("Abs", [earlier], "apart")
        is_token = ir.op("NotEqual", [mask, ir.constant(0)], "given.flat", type="boolean", **BROADCAST)
        is_token = ir.op("Unsqueeze", [is_token, ir.constant([1, 2])], "given")
        by_distance = self.position_bias(earlier, apart)
        order = earlier if self.encoder.causal else apart
        is_visible = ir.op("GreaterEqual", [order, ir.constant(0)], "seen", type="boolean", **BROADCAST)
        is_visible = ir.op("LogicalAnd", [is_token, is_visible], "seen.given", **BROADCAST)
        masks: dict[int | None, Value] = {}
        for window in dict.fromkeys(attention.window for attention in self.decoder.attentions):
            name, here = "mask.all", is_visible
            if window is not None:
                name = f"mask.window.{window}"
                near = ir.op("Less", [apart, ir.constant(window)], f"{name}.near", type="boolean", **BROADCAST)
                here = ir.op("LogicalAnd", [is_visible, near], f"{name}.seen", **BROADCAST)
            numbers = [ir.constant(0.0, "f32"), ir.constant(_HIDDEN_SCORE, "f32")]
            masks[window] = ir.op("Select", [here, *numbers], name, type="f32", **BROADCAST)
            if by_distance is not None:
                masks[window] = ir.op("Add", [masks[window], by_distance], f"{name}.biased", **BROADCAST)
        return masks

    def position_bias(self, earlier: Value, apart: Value) -> Value | None:
        """What scores of all layers have added, [1, H, T, T]; None where there is nothing that all share.

        earlier: how many tokens a key is before a query, [T, T]; apart: its absolute value.
        """
        ir, bias = self.ir, self.encoder.position_bias
        if isinstance(bias, Alibi):
            slopes = (-alibi_slopes(self.decoder.attentions[0].heads, bias.max_bias)).tolist()
            by_head = ir.op("Unsqueeze", [ir.constant(slopes, "f32"), ir.constant([0, 2, 3])], "alibi.slopes")
            distance = ir.op("Convert", [apart], "apart.float", type="f32", destination_type="f32")
            return ir.op("Multiply", [by_head, distance], "alibi", **BROADCAST)
        if bias is None:
            return None
        first = ir.constant(self.decoder.context - 1)
        places = ir.op("Add", [earlier, first], "earlier.from_first", **BROADCAST)
        rows = ir.constant(buckets(bias, self.decoder.context).tolist())
        self.buckets = ir.op("Gather", [rows, places, ir.constant(0)], "buckets", batch_dims=0)
        if isinstance(bias, DisentangledAttention):
            return None
        each = self.products.rows(bias.table, self.buckets, "position_bias.last")  # [T, T, H]
        first_heads = ir.op("Transpose", [each, ir.constant([2, 0, 1])], "position_bias.first")
        return ir.op("Unsqueeze", [first_heads, ir.constant(0)], "position_bias")

    def disentangled(self, batch: Value, length: Value) -> AddedScores | None:
        """What gives a layer the scores of positions, [B, H, T, T], of its q and k, [B, H, T, D]."""
        ir, bias = self.ir, self.encoder.position_bias
        if not isinstance(bias, DisentangledAttention) or self.buckets is None:
            return None
        heads = ir.constant([self.decoder.attentions[0].heads])
        shape = ir.op("Concat", [batch, heads, length, length], "buckets.shape", axis=0)
        along = ir.op("Broadcast", [self.buckets, shape], "buckets.by_head", mode="numpy")
        across = ir.op("Transpose", [along, ir.constant([0, 1, 3, 2])], "buckets.across")
        table = ir.stored([f"{bias.table.name}.weight"], "f32", [1, bias.table.rows, bias.table.columns])
        rows = normed(ir, table, bias.norm, "places.normed")

        def scores(attention: Attention, q: Value, k: Value) -> Value:
            terms: list[Value] = []
            for x, linear, name, at in ((q, attention.k, "c2p", along), (k, attention.q, "p2c", across)):
                of_places = self.products.linear(rows, [linear], f"{name}.rows")
                split = ir.constant([0, 0, attention.heads, attention.head_dim])
                columns = ir.op("Reshape", [of_places, split], f"{name}.heads", special_zero=True)
                columns = ir.op("Transpose", [columns, ir.constant([0, 2, 3, 1])], f"{name}.columns")
                every = ir.op("MatMul", [x, columns], f"{name}.places", transpose_a=False, transpose_b=False)
                terms.append(ir.op("GatherElements", [every, at], name, axis=3))
            of_key = ir.op("Transpose", [terms[1], ir.constant([0, 1, 3, 2])], "p2c.by_query")
            total = ir.op("Add", [terms[0], of_key], "places.sum", **BROADCAST)
            scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
            return multiplied(ir, total, scale, "places.scaled")

        return scores

    def embedded(self, ids: Value, in_row: Value) -> Value:
        """What the first layer is given, [B, T, hidden]."""
        ir, decoder = self.ir, self.decoder
        x = self.products.rows(decoder.embedding, ids, "embedding")
        x = multiplied(ir, x, decoder.embedding_multiplier, "embedding.multiplied")
        if self.encoder.token_types is not None:
            rows = self.products.rows(self.encoder.token_types, ir.parameter("token_type_ids", "i64", 2), "types")
            x = ir.op("Add", [x, rows], "embedding.with_types", **BROADCAST)
        if decoder.position_embeddings is not None:
            learned = self.products.rows(decoder.position_embeddings, in_row, "positions")
            x = ir.op("Add", [x, learned], "embedding.with_positions", **BROADCAST)
        return normed(ir, x, decoder.embedding_norm, "embedding.normed")

    def layer(self, index: int, layer: Layer, x: Value, attentions: Attentions) -> Value:
        """The stream [B, T, hidden] after a layer."""
        ir, behind, attention = self.ir, self.encoder.post_norm, layer.attention
        assert isinstance(attention, Attention)  # of all that export/encoders describes
        attention_input = x if behind else normed(ir, x, layer.attention_norm, "norm")
        context = attentions.context(index, attention, attention_input)
        output = self.products.linear(context, [attention.o], "o")
        x = self.added(layer, x, output, layer.attention_post_norm, "attention")
        if behind:
            x = mlp_input = normed(ir, x, layer.attention_norm, "norm")
        else:
            mlp_input = normed(ir, x, layer.mlp_norm, "mlp.norm")
        assert layer.mlp is not None, "layers of encoders have one"
        output = mlp(self.products, layer.mlp, mlp_input) if isinstance(layer.mlp, Mlp) else mixture(
            self.products, index, layer.mlp, mlp_input)  # fmt: skip
        x = self.added(layer, x, output, layer.mlp_post_norm, "mlp")
        return normed(ir, x, layer.mlp_norm, "mlp.norm") if behind else x

    def added(self, layer: Layer, x: Value, more: Value, norm: Norm | None, part: str) -> Value:
        more = multiplied(self.ir, normed(self.ir, more, norm, f"{part}.post_norm"), layer.residual_multiplier,
                          f"{part}.multiplied")  # fmt: skip
        return self.ir.op("Add", [x, more], f"{part}.sum", **BROADCAST)
