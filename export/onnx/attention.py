"""Attention in an ONNX graph, in the operators of one variant: GroupQueryAttention, and what it does not do itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.export.onnx.attention_gate import gated_context
from embedllm.export.onnx.builder import FLOAT_TYPES, KV_PREFIXES, MICROSOFT, Graph
from embedllm.export.onnx.image_attention import attend_plainly, same_image
from embedllm.export.onnx.latent_attention import LatentAttentions
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mla import latent_qkv, latent_values
from embedllm.export.onnx.mrope import mrope_tables
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.attention import Attention, AttentionTemperature
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Norm
from embedllm.package.graph_variants import KV_SCALES, GraphVariant
from embedllm.package.packing import Packing
from embedllm.package.tensors import rope_name, sinks_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HIDDEN = {"float32": -3e38, "float16": -3e4}  # added to the score of a key that is not seen
_FUSED = Packing(bits=4)
_ROTARY_MULTIPLE = 16  # dimensions: GroupQueryAttention rotates, of heads of a multiple of these, only such a multiple


def rotates_inside(attention: Attention, decoder: Decoder, variant: GraphVariant) -> bool:
    """Whether GroupQueryAttention can rotate q and k itself: they are normed before, and it takes that rotary_dim."""
    if attention.rope is None or attention.norm_after_rope or variant.computes_mrope(decoder):
        return False
    rotated = decoder.ropes[attention.rope].rotary_dim
    return not rotated % _ROTARY_MULTIPLE and not attention.head_dim % _ROTARY_MULTIPLE


def masks_window(attention: Attention, variant: GraphVariant) -> bool:
    """Whether a window is in what is added to scores, since the operator does not keep to it."""
    return attention.window is not None and attention.kv_from is not None and not variant.shared_kv_in_windows


class Attentions:
    """Writes attention into a graph.

    lengths: seqlens_k, total_sequence_length. positions: of the tokens, [B, T]; where nothing reads them, empty.
    kv_scales: by layer, for a variant with kv_bits.
    """

    def __init__(
        self,
        decoder: Decoder,
        products: Products,
        norms: Norms,
        lengths: Sequence[str],
        positions: str,
        kv_scales: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
    ) -> None:
        self.graph: Graph = products.graph
        self.variant: GraphVariant = products.variant
        self.decoder, self.products, self.norms = decoder, products, norms
        self.lengths, self.positions, self.kv_scales = lengths, positions, kv_scales
        self._temperatures: dict[AttentionTemperature, str] = {}
        self._chunk_masks: dict[int, str] = {}
        self._window_masks: dict[tuple[int, bool], str] = {}  # by window, and whether later keys are hidden
        numbers = range(len(decoder.ropes))
        self.tables = [
            [self.graph.cast(self.graph.stored([rope_name(number, part)])) for part in ("cos", "sin")]
            for number in numbers
        ]
        if self.variant.computes_mrope(decoder):
            assert decoder.rope.mrope is not None
            self.tables[0] = mrope_tables(self.graph, decoder.rope, decoder.rope.mrope, self.tables[0])
        self.latents: LatentAttentions | None = None  # where the KV holds latents
        if self.variant.keeps_latent(decoder, products.packing):
            self.latents = LatentAttentions(products, norms, self.lengths, positions, self.rotated_heads)

    def attend(self, index: int, attention: Attention, normed: str) -> str:
        """Appends to the KV and attends: [B, T, heads * D]."""
        if attention.mla is not None and self.latents is not None:
            return self.latents.attend(self.decoder.kv_number(index), attention, attention.mla, normed)
        if self.variant.appends_only:
            number, qkv = self.decoder.kv_number(index), self.separate_qkv(attention, normed)
            bias = self.bias(attention)
            return attend_plainly(self.graph, attention, number, qkv, self.lengths, self.total(), bias)
        graph = self.graph
        scales, attributes = self.kv_quantization(self.decoder.kv_number(index))
        by_run = self.differs_by_run(attention)
        sees_whole = self.variant.bidirectional and self.decoder.sees_images_whole(attention) and not by_run
        tables, rows, inside = ["", ""], "", ["", ""]
        number = self.decoder.kv_number(index)
        past, present = ([f"{prefix}.{number}.{part}" for part in ("key", "value")] for prefix in KV_PREFIXES)
        if attention.kv_from is not None:  # what layer has made them has them, new ones too
            # with a quantized KV the operator wants to give them once more (ONNX Runtime 1.31)
            again = [graph.named(f"kv.{part}") for part in ("key", "value")] if self.variant.kv_bits else []
            past, present = present, again
        if self.variant.whole_attention:
            inputs = self.inputs(attention, normed)
            if attention.rope is not None and rotates_inside(attention, self.decoder, self.variant):
                tables, attributes["do_rotary"] = self.tables[attention.rope], 1
                rows = self.positions if self.variant.takes_positions(self.decoder) else ""
            if sees_whole or self.has_images_inside(attention):
                attributes["causal"] = 0
            elif attention.window is not None and not masks_window(attention, self.variant):
                attributes["local_window_size"] = attention.window
            if attention.kv_from is None and self.norms_inside(attention):
                assert attention.q_norm is not None
                assert attention.k_norm is not None
                inside = [self.norms.weight(attention.q_norm), self.norms.weight(attention.k_norm)]
                attributes["qk_norm_epsilon"] = attention.q_norm.epsilon
        else:
            inputs = self.separate_qkv(attention, normed)
        if attention.temperature is not None:
            inputs[0] = graph.op("Mul", [inputs[0], self.temperature(attention.temperature)], "q.temperature")
        if attention.scale is not None:
            attributes["scale"] = attention.scale
        if attention.softcap:
            attributes["softcap"] = attention.softcap
        bias = self.bias(attention)
        sinks = graph.cast(graph.stored([sinks_name(index)])) if attention.sinks else ""
        output = graph.named("context" if attention.mla is None else "context.filled_up")
        outputs, name = [output, *present], graph.named("attention")

        def write(outputs: Sequence[str], name: str, bias: str, attributes: Mapping[str, float | str]) -> None:
            node_inputs = [*inputs, *past, *self.lengths, *tables, rows, bias, sinks, *scales, *inside]
            graph.node("GroupQueryAttention", node_inputs, outputs, name, MICROSOFT, num_heads=attention.heads,
                       kv_num_heads=attention.kv_heads, **attributes)  # fmt: skip

        def branch(kind: str, bias: str, attributes: Mapping[str, float | str]) -> list[str]:
            named = [f"{each}.{kind}" for each in outputs]
            write(named, f"{name}.{kind}", bias, attributes)
            return named

        if not by_run:
            write(outputs, name, bias, attributes)
        else:
            mask = self.mask_of_image(attention)
            of_image = {key: value for key, value in attributes.items() if key != "local_window_size"} | {"causal": 0}
            graph.choices(self.has_image(), outputs, name, then=lambda: branch("image", mask, of_image),
                          otherwise=lambda: branch("text", bias, attributes))  # fmt: skip
        if attention.mla is not None:
            return latent_values(graph, attention, attention.mla, output)
        return gated_context(self.products, attention, normed, output)

    def kv_quantization(self, number: int) -> tuple[list[str], dict[str, float | str]]:
        """Scales of keys and values, and the attributes that say so; none for a cache of floats."""
        if not self.variant.kv_bits:
            return ["", ""], {}
        names = [self.graph.named(name) for name in KV_SCALES]
        for name, scale in zip(names, self.kv_scales[number], strict=True):
            self.graph.floats(scale[None, :, None], name)  # [1, kv heads, 1, D]
        kinds = {f"{part}_quant_type": "PER_CHANNEL" for part in ("k", "v")}
        return names, {**kinds, "kv_cache_bit_width": self.variant.kv_bits}

    def norms_inside(self, attention: Attention) -> bool:
        """Whether the operator applies the norms of q and k: those over each head, before it rotates them."""
        norms = attention.q_norm, attention.k_norm
        return (
            self.variant.norm_in_attention
            and rotates_inside(attention, self.decoder, self.variant)
            and attention.temperature is None  # which is behind the norms
            and all(n is not None and (n.kind, n.size, n.groups) == ("rms", attention.head_dim, 1) for n in norms)
        )

    def inputs(self, attention: Attention, normed: str) -> list[str]:
        """q, k and v for an operator that rotates them itself where it can."""
        if attention.mla is None:
            return self.fused_qkv(attention, normed)
        q, k, v = latent_qkv(self.products, self.norms, attention, attention.mla, normed)
        if attention.rope is not None and not rotates_inside(attention, self.decoder, self.variant):
            q, k = self.rotated(attention, q, k)
        return [q, k, v]

    def fused_qkv(self, attention: Attention, normed: str) -> list[str]:
        """q, k and v of one product: [B, T, (heads + 2 * kv_heads) * D] as q, and no names for k and v.

        As q [B, T, heads * D], k and v [B, T, kv_heads * D] where they are normed or rotated before the operator, or
        where it takes no other. As q_only() where the keys and values are another layer's.
        """
        if attention.kv_from is not None:
            return self.q_only(attention, normed)
        parts = [attention.q, attention.k, attention.v]
        has_norms = attention.q_norm is not None or attention.k_norm is not None
        norms_here = has_norms and not self.norms_inside(attention)
        rotates_here = attention.rope is not None and not rotates_inside(attention, self.decoder, self.variant)
        if (
            attention.v_norm is None
            and not norms_here
            and not rotates_here
            and attention.temperature is None
            and not (self.variant.splits_qkv and (has_norms or attention.window is not None))
        ):
            return [self.products.linear(normed, parts, "qkv"), "", ""]
        if self.are_fused_with_norm(attention):
            q, k, v = (self.products.linear(normed, [part], name) for name, part in zip("qkv", parts, strict=True))
        else:
            q, k, v = self.products.split_linear(normed, parts, "qkv", "qkv")
        v = self.normed_heads(v, attention.v_norm, attention.kv_heads, attention)
        if rotates_here:
            return [*self.normed_and_rotated(attention, q, k), v]
        return [*self.normed(attention, q, k), v] if norms_here else [q, k, v]

    def are_fused_with_norm(self, attention: Attention) -> bool:
        """Whether the WebGPU provider makes one kernel of the norm and three products (MatMulNBitsQkv).

        Its optimizer asks for these packings, and tells q by its number of rows (onnxruntime 1.32,
        matmul_nbits_qkv_fusion.cc). Apart and not fused, three products take longer than one and a Split.
        """
        parts = [attention.q, attention.k, attention.v]
        return (
            self.variant.splits_qkv
            and attention.gate is None
            and attention.q.rows != attention.k.rows == attention.v.rows
            and all(not part.bias and self.products.packing[part.name] == _FUSED for part in parts)
        )

    def q_only(self, attention: Attention, normed: str) -> list[str]:
        """q [B, T, heads * D]; k and v without new tokens, [B, 0, kv_heads * D]."""
        graph = self.graph
        q = self.products.linear(normed, [attention.q], "qkv")
        bounds = graph.constant(0, 0), graph.constant(0, attention.k.rows), graph.constant(1, 2)
        none = graph.op("Slice", [q, *bounds], "none")
        q = self.normed_heads(q, attention.q_norm, attention.heads, attention)
        if attention.rope is not None and not rotates_inside(attention, self.decoder, self.variant):
            q = self.rotated_heads(q, attention, attention.heads)
        return [q, none, none]

    def separate_qkv(self, attention: Attention, normed: str) -> list[str]:
        """q [B, T, heads * D], k and v [B, T, kv_heads * D] of a product each, normed and rotated by operators.

        q alone where the keys and values are another layer's.
        """
        q = self.products.linear(normed, [attention.q], "q")
        if attention.kv_from is not None:
            q = self.normed_heads(q, attention.q_norm, attention.heads, attention)
            return [self.rotated_heads(q, attention, attention.heads)]
        k, v = (self.products.linear(normed, [part], name) for name, part in (("k", attention.k), ("v", attention.v)))
        v = self.normed_heads(v, attention.v_norm, attention.kv_heads, attention)
        return [*self.normed_and_rotated(attention, q, k), v]

    def temperature(self, temperature: AttentionTemperature) -> str:
        """What queries are multiplied by, [B, T, 1]; made once for all layers that have the same."""
        graph = self.graph
        if temperature not in self._temperatures:
            with_scope, graph.scope = graph.scope, f"temperature.{len(self._temperatures)}"
            positions = self.positions
            if temperature.offset:
                positions = graph.op("Add", [positions, graph.constant(temperature.offset)], "moved")
            floats = graph.op("Cast", [positions], "positions", to=FLOAT_TYPES["float32"])
            times = graph.op(
                "Floor", [graph.op("Div", [floats, graph.single(temperature.original_context)], "parts")], "floor"
            )
            later = graph.op("Log", [graph.op("Add", [times, graph.single(1.0)], "plus_one")], "log")
            more = graph.op("Mul", [later, graph.single(temperature.beta)], "more")
            single = graph.op("Add", [more, graph.single(1.0)], "single")
            factor = single
            if graph.activations != "float32":
                factor = graph.op("Cast", [single], "times", to=FLOAT_TYPES[graph.activations])
            self._temperatures[temperature] = graph.op("Unsqueeze", [factor, graph.constant(-1)], "of_each")
            graph.scope = with_scope
        return self._temperatures[temperature]

    def chunk_mask(self, chunk: int) -> str:
        """What is added to scores, [B, 1, T, total]: little for keys of other chunks; once for all layers."""
        graph = self.graph
        if chunk not in self._chunk_masks:
            with_scope, graph.scope = graph.scope, f"chunks.{len(self._chunk_masks)}"
            size, axes = graph.constant(chunk), graph.constant(1, 3)
            keys = graph.op("Div", [self.places(), size], "keys")
            queries = graph.op("Unsqueeze", [graph.op("Div", [self.positions, size], "of_tokens"), axes], "queries")
            same = graph.op("Equal", [queries, keys], "same")
            self._chunk_masks[chunk] = self.mask_of(same)
            graph.scope = with_scope
        return self._chunk_masks[chunk]

    def bias(self, attention: Attention) -> str:
        """What is added to scores where a token does not see all that its operator would let it see; or empty."""
        if (chunk := self.decoder.chunk_of(attention)) is not None:
            return self.chunk_mask(chunk)
        window = attention.window if attention.window and attention.window < self.decoder.context else 0
        sees_whole = self.variant.bidirectional and self.decoder.sees_images_whole(attention)
        if self.differs_by_run(attention):
            return ""
        if self.has_images_inside(attention):
            return self.window_mask(window, causal=True)
        if self.variant.appends_only:
            return self.window_mask(window, causal=not sees_whole) if window or not sees_whole else ""
        is_masked = window and (sees_whole or masks_window(attention, self.variant))
        return self.window_mask(window, causal=False) if is_masked else ""

    def differs_by_run(self, attention: Attention) -> bool:
        """Whether tokens see later ones in a run with features of an image, and no others do."""
        return (
            self.variant.images_by_run
            and self.variant.takes_images(self.decoder)
            and self.decoder.sees_images_whole(attention)
        )

    def has_image(self) -> str:
        """Whether the run is of an image's tokens."""
        graph, name = self.graph, "image.is_there"
        if not graph.has(name):
            count = "image.count"
            graph.node("Shape", ["image_positions"], [count], count, start=0, end=1)
            graph.node("Greater", [count, graph.constant(0)], [name], name)
        return name

    def mask_of_image(self, attention: Attention) -> str:
        """bias() of a run with an image, where a window hides keys; made once for all layers of that window."""
        window = attention.window if attention.window and attention.window < self.decoder.context else 0
        if not window:
            return ""
        graph, kind = self.graph, (window, False)
        if kind not in self._window_masks:
            self.total()  # out here: a value of a branch is not for others
            none = graph.floats(np.zeros((1, 1, 1, 1), graph.activations), "constant.no_mask")
            name = f"image.window.{window}"
            graph.choices(self.has_image(), [name], name, then=lambda: [self.window_mask(window, causal=False)],
                          otherwise=lambda: [graph.op("Identity", [none], f"{name}.none")])  # fmt: skip
            self._window_masks[kind] = name
        return self._window_masks[kind]

    def has_images_inside(self, attention: Attention) -> bool:
        """Whether a run has tokens of text beside those of images that attend to one another."""
        return self.variant.takes_embeddings and self.decoder.sees_images_whole(attention)

    def window_mask(self, window: int, *, causal: bool) -> str:
        """The same of keys that are out of a window (0: there is none), and of later ones: once for all layers.

        Where a run has images inside, later keys of the same image are seen.
        """
        graph, kind = self.graph, (window, causal)
        if kind not in self._window_masks:
            with_scope, graph.scope = graph.scope, f"windows.{len(self._window_masks)}"
            keys, axes, masks = self.places(), graph.constant(1, 3), list[str]()
            if window:
                oldest = graph.op("Sub", [self.positions, graph.constant(window)], "before")
                masks.append(graph.op("Greater", [keys, graph.op("Unsqueeze", [oldest, axes], "queries")], "near"))
            if causal:
                queries = graph.op("Unsqueeze", [self.positions, axes], "queries.own")
                earlier = graph.op("LessOrEqual", [keys, queries], "earlier")
                if self.variant.takes_embeddings:
                    same = same_image(graph, self.decoder, self.total())
                    earlier = graph.op("Or", [earlier, same], "earlier_or_same")
                masks.append(earlier)
            self._window_masks[kind] = self.mask_of(masks[0] if len(masks) == 1 else graph.op("And", masks, "both"))
            graph.scope = with_scope
        return self._window_masks[kind]

    def mask_of(self, is_visible: str) -> str:
        graph = self.graph
        return graph.op("Where", [is_visible, graph.number(0.0), graph.number(_HIDDEN[graph.activations])], "mask")

    def places(self) -> str:
        """The positions of all keys, [total]."""
        graph = self.graph
        total = graph.op("Squeeze", [self.total()], "total")
        zero, one = (graph.constant(each, scalar=True) for each in (0, 1))
        return graph.op("Range", [zero, total, one], "places")

    def total(self) -> str:
        """How many tokens are held with the new ones, [1]."""
        name = "held.total"
        if not self.graph.has(name):
            self.graph.node("Shape", ["attention_mask"], [name], name, start=1)
        return name

    def normed_and_rotated(self, attention: Attention, q: str, k: str) -> list[str]:
        if attention.norm_after_rope:
            return self.normed(attention, *self.rotated(attention, q, k))
        return self.rotated(attention, *self.normed(attention, q, k))

    def normed(self, attention: Attention, q: str, k: str) -> list[str]:
        pairs = (q, attention.q_norm, attention.heads), (k, attention.k_norm, attention.kv_heads)
        return [self.normed_heads(x, norm, heads, attention) for x, norm, heads in pairs]

    def normed_heads(self, x: str, norm: Norm | None, heads: int, attention: Attention) -> str:
        return x if norm is None else self.norms.heads(x, norm, heads, attention.head_dim)

    def rotated(self, attention: Attention, q: str, k: str) -> list[str]:
        """q and k, rotated by an operator of its own."""
        pairs = (q, attention.heads), (k, attention.kv_heads)
        return [self.rotated_heads(x, attention, heads) for x, heads in pairs]

    def rotated_heads(self, x: str, attention: Attention, heads: int, *, head_dim: int = 0) -> str:
        """head_dim: of x; 0: that of the attention."""
        if attention.rope is None:
            return x
        inputs = [self.positions, *self.tables[attention.rope]]
        rotated = self.decoder.ropes[attention.rope].rotary_dim
        is_part = rotated < (head_dim or attention.head_dim)
        partly = {"num_heads": heads, "rotary_embedding_dim": rotated} if is_part else {}
        return self.graph.op("RotaryEmbedding", [x, *inputs], f"{x}.rotated", MICROSOFT, **partly)
