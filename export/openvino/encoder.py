"""An encoder -> an OpenVINO model whose weights lie in weights.safetensors; nothing is remembered.

Inputs and output are those of export/onnx/encoder.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.export.layout import Layout
from embedllm.export.openvino.attention import Attentions, Shared, rotations
from embedllm.export.openvino.elementwise import multiplied, normed
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.mlp import mixture, mlp
from embedllm.package.architecture import Attention, Decoder, Encoder, Layer, Mlp, Norm
from embedllm.package.packing import Packing

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

    def model(self) -> Ir:
        ir, decoder = self.ir, self.decoder
        ids, mask = ir.parameter("input_ids", "i64", 2), ir.parameter("attention_mask", "i64", 2)
        batch, length = ir.size(ids, 0, "batch"), ir.size(ids, 1, "length")
        number = ir.op("Squeeze", [length, ir.constant(0)], "length.number")
        places = ir.op("Range", [ir.constant(0), number, ir.constant(1)], "places", output_type="i64")
        in_row = ir.op("Unsqueeze", [places, ir.constant(0)], "places.in_row")  # [1, T]
        shared = Shared(batch=batch, beams=None, rope_tables=rotations(ir, decoder, in_row), temperatures={},
                        masks=self.masks(mask, places, in_row))  # fmt: skip
        attentions = Attentions(self.products, decoder, shared)
        x = self.embedded(ids, in_row)
        for index, layer in enumerate(decoder.layers):
            ir.scope = f"layers.{index}"
            x = self.layer(index, layer, x, attentions)
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
        given = ir.op("NotEqual", [mask, ir.constant(0)], "given.flat", type="boolean", **BROADCAST)
        given = ir.op("Unsqueeze", [given, ir.constant([1, 2])], "given")
        order = earlier if self.encoder.causal else apart
        seen = ir.op("GreaterEqual", [order, ir.constant(0)], "seen", type="boolean", **BROADCAST)
        seen = ir.op("LogicalAnd", [given, seen], "seen.given", **BROADCAST)
        found: dict[int | None, Value] = {}
        for window in dict.fromkeys(attention.window for attention in self.decoder.attentions):
            name, here = "mask.all", seen
            if window is not None:
                name = f"mask.window.{window}"
                near = ir.op("Less", [apart, ir.constant(window)], f"{name}.near", type="boolean", **BROADCAST)
                here = ir.op("LogicalAnd", [seen, near], f"{name}.seen", **BROADCAST)
            numbers = [ir.constant(0.0, "f32"), ir.constant(_HIDDEN_SCORE, "f32")]
            found[window] = ir.op("Select", [here, *numbers], name, type="f32", **BROADCAST)
        return found

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
        read = x if behind else normed(ir, x, layer.attention_norm, "norm")
        context = attentions.context(index, attention, read)
        made = self.products.linear(context, [attention.o], "o")
        x = self.added(layer, x, made, layer.attention_post_norm, "attention")
        if behind:
            x = read = normed(ir, x, layer.attention_norm, "norm")
        else:
            read = normed(ir, x, layer.mlp_norm, "mlp.norm")
        made = mlp(self.products, layer.mlp, read) if isinstance(layer.mlp, Mlp) else mixture(
            self.products, index, layer.mlp, read)  # fmt: skip
        x = self.added(layer, x, made, layer.mlp_post_norm, "mlp")
        return normed(ir, x, layer.mlp_norm, "mlp.norm") if behind else x

    def added(self, layer: Layer, x: Value, made: Value, norm: Norm | None, part: str) -> Value:
        made = multiplied(self.ir, normed(self.ir, made, norm, f"{part}.post_norm"), layer.residual_multiplier,
                          f"{part}.multiplied")  # fmt: skip
        return self.ir.op("Add", [x, made], f"{part}.sum", **BROADCAST)
