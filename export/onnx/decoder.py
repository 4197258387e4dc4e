"""Decoder + layout + variant -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors.

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

from embedllm.export.layout import Layout
from embedllm.export.onnx.altup import AltUpWriter
from embedllm.export.onnx.attention import Attentions
from embedllm.export.onnx.builder import Graph
from embedllm.export.onnx.guess import write_guess
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.moe import feed_forward
from embedllm.export.onnx.norms import Norms
from embedllm.export.onnx.per_layer_embeddings import gated_input, per_layer_inputs
from embedllm.export.onnx.positions import Positions
from embedllm.export.onnx.recurrent import Recurrent
from embedllm.export.onnx.signature import signature
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.draft_head import Eagle, MultiTokenPrediction
from embedllm.package.architecture.layer import AltUp, Laurel, Layer, PerLayerEmbedding
from embedllm.package.architecture.recurrent import Mamba2
from embedllm.package.architecture.weights import Norm
from embedllm.package.graph_variants import (
    HIDDEN_FROM,
    HIDDEN_STATES,
    INPUTS_EMBEDS,
    LAST_HIDDEN_STATE,
    POSITION_IDS,
    GraphVariant,
)
from embedllm.package.packing import Packing
from embedllm.package.tensors import scale_name
from embedllm.package.wasm_floats import float_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray


def build(
    decoder: Decoder,
    layout: Layout,
    packing: Mapping[str, Packing],
    variant: GraphVariant,
    kv_scales: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]] = (),
    *,
    read_by: Eagle | None = None,
) -> onnx.ModelProto:
    """The graph of a whole model.

    packing: by the name of the matrix. kv_scales: by layer, what one step of a cached key and of a value stands for,
    [kv heads, D]; for a variant with kv_bits. Two values of 4 bits share a byte: past and present then end with D/2.
    read_by: the head whose `fc` gives the hidden states of a variant that has them; None: the model's own.
    Where the variant keeps latents there are keys alone, of one KV head, and past has room for all that present holds.
    Inputs: input_ids [B, T], attention_mask [B, past + T], past_key_values.N.key and .value [B, kv heads, past, D],
    logits_from [1]. Outputs: logits [B, T', V], present.N.key and .value. Of a recurrent layer N, past_KIND.N and
    present_KIND.N in place of keys and values: [B, as embedllm/package/recurrent_state.py says].
    A variant whose lengths do not come from the mask has, in place of attention_mask and logits_from: position_ids
    [B, T]; seqlens_k [B] i32, tokens held afterwards less one; total_sequence_length [1] i32, the KV's capacity;
    logits_at [T'], places among the T.
    """
    offsets = {name: placed.offset for name, placed in layout.placed.items()}
    floats = float_spans(decoder, offsets) if variant.float_matrices else {}
    return _Emitter(Graph(layout, variant.activations, floats), packing, variant, kv_scales, read_by).model(decoder)


class _Emitter:
    """Writes a decoder into a graph, in the operators of one variant."""

    def __init__(
        self,
        graph: Graph,
        packing: Mapping[str, Packing],
        variant: GraphVariant,
        kv_scales: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
        read_by: Eagle | None,
    ) -> None:
        self.graph = graph
        self.variant = variant
        self.kv_scales = kv_scales
        self.read_by = read_by
        self.streams: list[str] = []  # in front of each layer, [B, T, hidden]
        self.products = Products(graph, packing, variant)
        self.norms = Norms(graph)
        self.positions = Positions(graph, variant)
        self.mlps = Mlps(self.products)
        self.recurrent = Recurrent(self.products, self.norms, self.mlps)
        self.altup_streams = AltUpWriter(self.products, self.norms, self.mlps)
        self.deepstack: list[str] = []  # features of images that are added behind the first layers, [images, hidden]

    def model(self, decoder: Decoder) -> onnx.ModelProto:
        graph, keeps_latent = self.graph, self.variant.keeps_latent(decoder, self.products.packing)
        if self.variant.lengths_from_mask:
            graph.default("logits_from", -1)
            if self.variant.gives_hidden:
                graph.default(HIDDEN_FROM, -1)
            lengths, positions = self.positions.lengths(), self.positions.given_or_computed(decoder, keeps_latent)
        else:
            lengths, positions = ["seqlens_k", "total_sequence_length"], POSITION_IDS
        attentions = Attentions(decoder, self.products, self.norms, lengths, positions, self.kv_scales)
        graph.scope = "embedding"
        hidden, residual = self.embedding(decoder, positions), ""
        per_layer_inputs = (
            self.per_layer_inputs(decoder, decoder.per_layer_embedding, hidden) if decoder.per_layer_embedding else ""
        )
        if decoder.mtp is not None:
            hidden = self.with_hidden_states(decoder.mtp, hidden)
        if decoder.altup_streams is not None:
            graph.scope = "streams"
            hidden = self.altup_streams.begun(decoder.altup_streams, hidden)
        for index, layer in enumerate(decoder.layers):
            graph.scope = f"layers.{index}"
            if decoder.eagle is not None:
                hidden, residual = self.eagle_layer(decoder.eagle, layer, hidden, attentions)
                continue
            is_last = index == len(decoder.layers) - 1
            if layer.altup is not None:
                hidden = self.altup_layer(index, layer, layer.altup, hidden, attentions, per_layer_inputs)
                hidden = self.positions.selected(hidden, "streams") if is_last else hidden
                continue
            hidden, residual = self.layer(index, layer, hidden, residual, attentions, is_last=is_last)
            if index < len(self.deepstack):
                hidden = self.with_deepstack(hidden, self.deepstack[index])
            if layer.per_layer_input or layer.scale:
                hidden, residual = (
                    self.with_per_layer_input(index, layer, self.total(hidden, residual), per_layer_inputs, is_last),
                    "",
                )
        graph.scope = "head"
        if decoder.altup_streams is not None:
            hidden = self.altup_streams.ended(decoder.altup_streams, hidden)
        normed, stream = self.norms.stream(hidden, residual, decoder.norm, "norm")
        if self.variant.gives_hidden:
            states = self.read_states(self.read_by) if self.read_by is not None else normed
            states = stream if decoder.eagle is not None else states
            graph.node("Identity", [states], [LAST_HIDDEN_STATE], graph.named("hidden_states"))
            if not self.variant.guesses:  # which gives both of one position
                normed = graph.op("Slice", [normed, *self.positions.bounds("logits_from")], "norm.selected")
        self.head(decoder, normed)
        if self.variant.guesses:
            write_guess(graph, decoder, reads_mask_late=bool(positions))
        return graph.model(decoder.model_type, *signature(decoder, variant=self.variant, keeps_latent=keeps_latent))

    def embedding(self, decoder: Decoder, positions: str) -> str:
        if self.variant.takes_embeddings:
            x = self.given_embeddings(decoder)
        else:
            x = self.products.embedding(decoder.embedding)
            x = self.times(x, decoder.embedding_multiplier, "multiplied")
        if self.variant.takes_images(decoder):
            x = self.with_images(decoder, x)
        if decoder.position_embeddings is not None:
            table = self.graph.stored([f"{decoder.position_embeddings.name}.weight"])
            rows = self.graph.op("Gather", [self.graph.cast(table), positions], "positions", axis=0)
            x = self.graph.op("Add", [x, rows], "placed")
        return x if decoder.embedding_norm is None else self.norms.plain(x, decoder.embedding_norm, "normed")

    def with_hidden_states(self, mtp: MultiTokenPrediction, x: str) -> str:
        """What a multi-token prediction layer reads, of the embeddings x of the tokens that follow the hidden ones."""
        graph = self.graph
        graph.scope = "mtp"
        parts = [self.norms.plain(x, mtp.embedding_norm, "embedding_norm"),
                 self.norms.plain(HIDDEN_STATES, mtp.hidden_norm, "hidden_norm")]  # fmt: skip
        return self.products.linear(graph.op("Concat", parts, "both", axis=-1), [mtp.fc], "fc")

    def eagle_layer(self, eagle: Eagle, layer: Layer, x: str, attentions: Attentions) -> tuple[str, str]:
        """layer() of an EAGLE-3 head, of the embeddings x of the tokens that follow the hidden ones."""
        assert layer.attention_norm is not None  # as describe_head has it
        normed = self.norms.plain(HIDDEN_STATES, eagle.hidden_norm, "hidden_norm")
        parts = [self.norms.plain(x, layer.attention_norm, "attention_norm"), normed]
        both = self.graph.op("Concat", parts, "both", axis=-1)
        residual = normed if eagle.normed_residual else HIDDEN_STATES
        return self.mixed(0, layer, both, residual, attentions, is_last=True)

    def read_states(self, eagle: Eagle) -> str:
        """What an EAGLE-3 head reads of this model, of the positions whose hidden states are asked for."""
        graph = self.graph
        graph.scope = "eagle"
        parts = [self.positions.selected(self.streams[layer], f"streams.{at}") for at, layer in enumerate(eagle.layers)]
        states = self.products.linear(graph.op("Concat", parts, "streams", axis=-1), [eagle.fc], "fc")
        graph.scope = "head"
        return states

    def with_images(self, decoder: Decoder, x: str) -> str:
        """The rows x [B, T, hidden], those of images in their places; none by default."""
        graph = self.graph
        graph.default_array("image_features", np.zeros((0, decoder.image_width), graph.activations))
        graph.default_array("image_positions", np.zeros((0, 2), np.int64))
        features, *self.deepstack = self.apart(decoder, "image_features")
        return graph.op("ScatterND", [x, "image_positions", features], "seen")

    def given_embeddings(self, decoder: Decoder) -> str:
        """The rows [B, T, hidden] of an input, behind which it has those of DeepStack: zeros for tokens of text."""
        x, *self.deepstack = self.apart(decoder, INPUTS_EMBEDS)
        return x

    def apart(self, decoder: Decoder, features: str) -> list[str]:
        """[..., image_width] as parts of [..., hidden]."""
        graph, count = self.graph, decoder.image_width // decoder.hidden
        if count == 1:
            return [features]
        parts = [graph.named(f"features.{at}") for at in range(count)]
        graph.node("Split", [features], parts, graph.named("features"), axis=-1, num_outputs=count)
        return parts

    def with_deepstack(self, x: str, features: str) -> str:
        """x [B, T, hidden] with features added to the rows of images."""
        graph = self.graph
        if self.variant.takes_embeddings:
            return graph.op("Add", [x, features], "deepstack")
        if self.variant.scatters_sums:
            return graph.op("ScatterND", [x, "image_positions", features], "deepstack", reduction="add")
        zeros = graph.op("Sub", [x, x], "deepstack.zeros")
        placed = graph.op("ScatterND", [zeros, "image_positions", features], "deepstack.placed")
        return graph.op("Add", [x, placed], "deepstack")

    def per_layer_inputs(self, decoder: Decoder, inputs: PerLayerEmbedding, x: str) -> str:
        """The per-layer embeddings of the tokens, [B, T, layers, size]."""
        graph, products, table = self.graph, self.products, inputs.table
        assert table is not None  # as all decoders have
        graph.scope = "per_layer_embedding"
        tokens = "input_ids"
        if table.rows < decoder.vocabulary:
            is_known = graph.op("Less", [tokens, graph.constant(table.rows)], "known")
            tokens = graph.op("Where", [is_known, tokens, graph.constant(0)], "tokens")
        rows = self.times(products.embedding(table, tokens), inputs.table_multiplier, "rows.multiplied")
        return per_layer_inputs(self.norms, products, inputs, x, rows)

    def with_per_layer_input(self, index: int, layer: Layer, x: str, per_layer_inputs: str, is_last: bool) -> str:
        """The stream behind a layer of which more follows its mlp."""
        graph = self.graph
        if layer.per_layer_input is not None:
            own = graph.op("Gather", [per_layer_inputs, graph.constant(index, scalar=True)], "per_layer_input", axis=2)
            own = self.positions.selected(own, "per_layer_input") if is_last else own
            graph.scope = f"layers.{index}.per_layer_input"
            gated = gated_input(self.norms, self.mlps, layer.per_layer_input, x, own)
            graph.scope = f"layers.{index}"
            x = graph.op("Add", [x, gated], "per_layer_input.sum")
        return graph.op("Mul", [x, graph.cast(graph.stored([scale_name(index)]))], "scaled") if layer.scale else x

    def altup_layer(
        self, index: int, layer: Layer, altup: AltUp, x: str, attentions: Attentions, per_layer_inputs: str
    ) -> str:
        """The streams behind a layer that computes the first of them."""
        graph = self.graph
        x, first = self.altup_streams.predicted(altup, x)
        output = self.total(*self.layer(index, layer, first, "", attentions, is_last=False))
        x = self.altup_streams.corrected(altup, x, first, output)
        assert layer.per_layer_input is not None
        own = graph.op("Gather", [per_layer_inputs, graph.constant(index, scalar=True)], "per_layer_input", axis=2)
        graph.scope = f"layers.{index}.per_layer_input"
        more = gated_input(self.norms, self.mlps, layer.per_layer_input, self.altup_streams.read_first(index, x), own)
        x = self.altup_streams.with_others(x, more)
        graph.scope = f"layers.{index}"
        return x

    def with_laurel(self, laurel: Laurel, normed: str, x: str) -> str:
        """The stream behind attention with what goes beside it."""
        graph, products = self.graph, self.products
        graph.scope, scope = f"{graph.scope}.laurel", graph.scope
        way = products.linear(products.linear(normed, [laurel.down], "down"), [laurel.up], "up")
        total = graph.op("Add", [x, normed], "both")
        total = graph.op("Add", [total, self.norms.plain(way, laurel.norm, "norm")], "all")
        total = self.times(total, 0.5**0.5, "sum")
        graph.scope = scope
        return total

    def layer(
        self, index: int, layer: Layer, hidden: str, residual: str, attentions: Attentions, *, is_last: bool
    ) -> tuple[str, str]:
        """What is to be added to the stream behind a layer, and the stream.  hidden, residual: those in front of it."""
        normed, residual = self.norms.stream(hidden, residual, layer.attention_norm, "attention_norm")
        self.streams.append(residual)
        return self.mixed(index, layer, normed, residual, attentions, is_last=is_last)

    def mixed(
        self, index: int, layer: Layer, normed: str, residual: str, attentions: Attentions, *, is_last: bool
    ) -> tuple[str, str]:
        """layer() behind its first norm."""
        mixer = layer.attention
        if isinstance(mixer, Attention):
            context = attentions.attend(index, mixer, normed)
        else:
            context = self.recurrent.context(index, mixer, normed)
        beside = "" if layer.ssm is None else self.beside(index, layer.ssm, normed, is_last=is_last)
        if is_last:
            context = self.positions.selected(context, "context")
            residual = self.positions.selected(residual, "residual")
            if layer.parallel and layer.mlp_norm is None:
                normed = self.positions.selected(normed, "normed")
        attended = self.products.linear(context, [mixer.o], "o")
        attended = self.graph.op("Add", [attended, beside], "mixed") if beside else attended
        attended = self.added(layer, attended, layer.attention_post_norm, "attended")
        if layer.mlp is None:
            return attended, residual
        if layer.laurel is not None:
            normed = self.positions.selected(normed, "normed") if is_last else normed
            attended = self.with_laurel(layer.laurel, normed, self.total(attended, residual, "attended.sum"))
            residual = ""
        if not layer.parallel:
            normed, residual = self.norms.stream(attended, residual, layer.mlp_norm, "mlp_norm")
        elif layer.mlp_norm is not None:
            normed = self.norms.plain(residual, layer.mlp_norm, "mlp_norm")
        mlp_output = self.added(layer, feed_forward(self.mlps, index, layer.mlp, normed), layer.mlp_post_norm, "made")
        if layer.parallel:
            mlp_output = self.graph.op("Add", [attended, mlp_output], "both")
        return mlp_output, residual

    def beside(self, index: int, ssm: Mamba2, normed: str, *, is_last: bool) -> str:
        """What is added to the output of a layer's attention."""
        graph, scope = self.graph, self.graph.scope
        graph.scope = f"{scope}.ssm"
        context = self.recurrent.context(index, ssm, normed)
        context = self.positions.selected(context, "context") if is_last else context
        output = self.products.linear(context, [ssm.o], "o")
        graph.scope = scope
        return output

    def added(self, layer: Layer, x: str, norm: Norm | None, name: str) -> str:
        """What is added to the stream, of what a part of a layer made."""
        x = x if norm is None else self.norms.plain(x, norm, f"{name}.norm")
        return self.times(x, layer.residual_multiplier, f"{name}.multiplied")

    def head(self, decoder: Decoder, normed: str) -> None:
        cap, multiplier = decoder.logits_softcap, decoder.logits_multiplier
        if not cap and multiplier == 1:
            self.products.linear(normed, [decoder.head], "head", output="logits")
            return
        graph, x = self.graph, self.products.linear(normed, [decoder.head], "head")
        if not cap:
            graph.node("Mul", [x, graph.number(multiplier)], ["logits"], "head.multiplied")
            return
        bent = graph.op("Tanh", [self.times(x, multiplier / cap, "small")], "bent")
        graph.node("Mul", [bent, graph.number(cap)], ["logits"], "head.capped")

    def total(self, x: str, residual: str, name: str = "stream") -> str:
        return self.graph.op("Add", [residual, x], name)

    def times(self, x: str, multiplier: float, name: str) -> str:
        return x if multiplier == 1 else self.graph.op("Mul", [x, self.graph.number(multiplier)], name)
