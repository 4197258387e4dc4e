"""The parts of a decoder in an OpenVINO model: its embedding, its layers, and its head.

Every chain is written in the form that OpenVINO's plugins recognise: packed weights that stay packed, RMS, RoPE, and
attention that owns its KV cache (docs/openvino.md says how that was seen).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedllm.export.openvino import altup as streams
from embedllm.export.openvino.attention import Attentions, Shared
from embedllm.export.openvino.elementwise import capped, multiplied, normed
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.masks import masks
from embedllm.export.openvino.mlp import mixture, mlp
from embedllm.export.openvino.per_layer_embeddings import gated_input, per_layer_inputs, with_per_layer_input
from embedllm.export.openvino.recurrent import Recurrent
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import AltUp, Laurel, Layer, PerLayerEmbedding
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.recurrent import Mamba2
from embedllm.package.architecture.weights import Norm
from embedllm.package.packing import Packing


class DecoderParts:
    """Writes the parts of a decoder. is_latent: its KV holds latents."""

    def __init__(self, ir: Ir, decoder: Decoder, packing: Mapping[str, Packing], *, is_latent: bool = False) -> None:
        self.ir = ir
        self.is_latent = is_latent
        self.decoder = decoder
        self.products = Products(ir, packing)

    def masks(
        self, mask: Value, positions: Value, length: Value, image_blocks: Value | None = None
    ) -> tuple[dict[int | None, Value], dict[int, Value]]:
        """Those of all windows and chunks that the decoder has; see masks.py."""
        decoder = self.decoder
        chunks = [chunk for attention in decoder.attentions if (chunk := decoder.chunk_of(attention))]
        windows = dict.fromkeys(each.window for each in decoder.attentions if decoder.chunk_of(each) is None)
        return masks(self.ir, mask, positions, length, list(windows), chunks, image_blocks=image_blocks,
                     in_windows_only=decoder.images_are_whole_in_windows_only)  # fmt: skip

    def write(
        self,
        x: Value,
        shared: Shared,
        per_layer_inputs: Value | None = None,
        after_layer: Callable[[int, Value], Value] | None = None,
    ) -> None:
        """All behind the embedding, up to the output.

        after_layer: what takes the place of a layer's output, by the layer.
        """
        ir, decoder = self.ir, self.decoder
        assert shared.beams is not None  # a decoder has a KV cache
        attentions = Attentions(self.products, decoder, shared, is_latent=self.is_latent)
        recurrent = Recurrent(self.products, batch=shared.batch, beams=shared.beams)
        if decoder.altup_streams is not None:
            ir.scope = "streams"
            x = streams.begun(self.products, decoder.altup_streams, x)
        for index, layer in enumerate(decoder.layers):
            ir.scope = f"layers.{index}"
            if layer.altup is None:
                x = self.layer(index, layer, x, attentions, recurrent, per_layer_inputs)
            else:
                x = self.altup_layer(index, layer, layer.altup, x, attentions, recurrent, per_layer_inputs)
            x = x if after_layer is None else after_layer(index, x)
        if decoder.altup_streams is not None:
            ir.scope = "streams.end"
            x = streams.ended(self.products, decoder.altup_streams, x)
        ir.scope = ""
        ir.split("Result", [self.logits(normed(ir, x, decoder.norm, decoder.norm.name))], "logits.result", 0)

    def embedded(self, ids: Value, positions: Value) -> Value:
        """What the first layer is given, [B, T, hidden]."""
        ir, decoder = self.ir, self.decoder
        ids = ir.op("Convert", [ids], "ids", type="i32", destination_type="i32")
        x = self.products.rows(decoder.embedding, ids, "embedding")
        x = multiplied(ir, x, decoder.embedding_multiplier, "embedding.multiplied")
        if decoder.position_embeddings is not None:
            learned = self.products.rows(decoder.position_embeddings, positions, "positions")
            x = ir.op("Add", [x, learned], "embedding.with_positions", **BROADCAST)
        return normed(ir, x, decoder.embedding_norm, "embedding.normed")

    def per_layer_rows(self, inputs: PerLayerEmbedding, ids: Value) -> Value:
        """The rows of the table of per-layer embeddings, [B, T, layers * size]."""
        ir, table = self.ir, inputs.table
        assert table is not None  # as all decoders have
        ir.scope = "per_layer_embedding"
        if table.rows < self.decoder.vocabulary:
            is_known = ir.op("Less", [ids, ir.constant(table.rows)], "known", type="boolean", **BROADCAST)
            ids = ir.op("Select", [is_known, ids, ir.constant(0)], "ids", type="i64", **BROADCAST)
        rows = self.products.rows(table, ids, "rows")
        rows = multiplied(ir, rows, inputs.table_multiplier, "rows.multiplied")
        ir.scope = ""
        return rows

    def per_layer_inputs(self, inputs: PerLayerEmbedding, rows: Value, x: Value) -> Value:
        """The per-layer embeddings of the tokens, [B, T, layers, size]. x: what the first layer is given."""
        self.ir.scope = "per_layer_embedding"
        both = per_layer_inputs(self.products, inputs, x, rows)
        self.ir.scope = ""
        return both

    def altup_layer(
        self,
        index: int,
        layer: Layer,
        altup: AltUp,
        x: Value,
        attentions: Attentions,
        recurrent: Recurrent,
        per_layer_inputs: Value | None,
    ) -> Value:
        """The streams behind a layer that computes the first of them."""
        ir = self.ir
        ir.scope = f"layers.{index}.predict"
        x, first = streams.predicted(self.products, altup, x)
        ir.scope = f"layers.{index}"
        output = self.computed(index, layer, first, attentions, recurrent, "stream")
        ir.scope = f"layers.{index}.correct"
        x = streams.corrected(self.products, altup, x, first, output)
        assert layer.per_layer_input is not None
        assert per_layer_inputs is not None
        ir.scope = f"layers.{index}.per_layer_input"
        own = ir.op("Gather", [per_layer_inputs, ir.constant(index), ir.constant(2)], "own", batch_dims=0)
        gated = gated_input(
            self.products, layer.per_layer_input, streams.read_first(ir, index, x, self.decoder.hidden), own
        )
        ir.scope = f"layers.{index}"
        return streams.with_others(ir, x, gated, altup.correct.rows, "output")

    def with_laurel(self, laurel: Laurel, first: Value, x: Value) -> Value:
        """The stream behind attention with what goes beside it."""
        ir, products = self.ir, self.products
        ir.scope, scope = f"{ir.scope}.laurel", ir.scope
        way = products.linear(products.linear(first, [laurel.down], "down"), [laurel.up], "up")
        both = ir.op("Add", [x, first], "both", **BROADCAST)
        both = ir.op("Add", [both, normed(ir, way, laurel.norm, "norm")], "all", **BROADCAST)
        both = multiplied(ir, both, 0.5**0.5, "sum")
        ir.scope = scope
        return both

    def layer(
        self,
        index: int,
        layer: Layer,
        x: Value,
        attentions: Attentions,
        recurrent: Recurrent,
        per_layer_inputs: Value | None,
    ) -> Value:
        """The stream [B, T, hidden] after a layer."""
        if layer.per_layer_input is None and not layer.scale:
            return self.computed(index, layer, x, attentions, recurrent, "output")
        return with_per_layer_input(
            self.products,
            index,
            layer,
            self.computed(index, layer, x, attentions, recurrent, "stream"),
            per_layer_inputs,
        )

    def computed(
        self, index: int, layer: Layer, x: Value, attentions: Attentions, recurrent: Recurrent, name: str
    ) -> Value:
        """What a layer's attention and mlp make of a stream."""
        ir = self.ir
        first = normed(ir, x, layer.attention_norm, "norm")
        mixer = layer.attention
        if isinstance(mixer, Attention):
            context = attentions.context(index, mixer, first)
        else:
            context = recurrent.context(index, mixer, first)
        attended = self.products.linear(context, [mixer.o], "o")
        if layer.ssm is not None:
            attended = ir.op("Add", [attended, self.beside(index, layer.ssm, first, recurrent)], "mixed", **BROADCAST)
        total_name = name if layer.mlp is None else "sum"
        total = self.added(layer, x, attended, layer.attention_post_norm, "attention", total_name)
        if layer.mlp is None:
            return total
        if layer.laurel is not None:
            total = self.with_laurel(layer.laurel, first, total)
        if layer.parallel:
            mlp_input = first if layer.mlp_norm is None else normed(ir, x, layer.mlp_norm, "mlp.norm")
        else:
            mlp_input = normed(ir, total, layer.mlp_norm, "mlp.norm")
        if isinstance(layer.mlp, Mlp):
            mlp_output = mlp(self.products, layer.mlp, mlp_input)
        else:
            mlp_output = mixture(self.products, index, layer.mlp, mlp_input)
        return self.added(layer, total, mlp_output, layer.mlp_post_norm, "mlp", name)

    def beside(self, index: int, ssm: Mamba2, x: Value, recurrent: Recurrent) -> Value:
        """What is added to the output of a layer's attention. x: what both read."""
        self.ir.scope, scope = f"{self.ir.scope}.ssm", self.ir.scope
        output = self.products.linear(recurrent.context(index, ssm, x), [ssm.o], "o")
        self.ir.scope = scope
        return output

    def added(self, layer: Layer, x: Value, more: Value, norm: Norm | None, part: str, name: str) -> Value:
        """The stream with what its attention or its mlp adds to it."""
        ir = self.ir
        more = normed(ir, more, norm, f"{part}.post_norm")
        more = multiplied(ir, more, layer.residual_multiplier, f"{part}.multiplied")
        return ir.op("Add", [x, more], name, **BROADCAST)

    def logits(self, x: Value) -> Value:
        """The output of the model: the head's products, multiplied and capped."""
        ir, decoder = self.ir, self.decoder
        multiplier, limit = decoder.logits_multiplier, decoder.logits_softcap
        is_bare = multiplier == 1 and not limit
        logits = self.products.linear(x, [decoder.head], "logits" if is_bare else "head",
                                      tensor="logits" if is_bare else "")  # fmt: skip
        logits = multiplied(
            ir, logits, multiplier, "head.multiplied" if limit else "logits", tensor="" if limit else "logits"
        )
        return capped(ir, logits, limit, "logits", tensor="logits")
