"""Attention in an OpenVINO model: rotated queries and keys, keys and values as variables, and what queries find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from embedllm.export.openvino.elementwise import capped, multiplied, multiplied_by, normed
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.export.openvino.mla import absorbed_qkv, absorbed_values, latent_qkv, latent_values
from embedllm.package.architecture.attention import Attention, AttentionTemperature
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.weights import Norm
from embedllm.package.tensors import ATTENTION_GATE, rope_name, sinks_name

# adds to the scores of a layer, [B, heads, T, T]: made of its q and k, [B, heads, T, D]
AddedScores = Callable[[Attention, Value, Value], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the attention of all layers reads."""

    batch: Value  # [1]
    beams: Value | None  # [B]; None: nothing is remembered
    rope_tables: Sequence[tuple[Value, Value]]  # cos and sin [B, 1, T, rotated], by the numbers that Attention.rope has
    masks: Mapping[int | None, Value]  # by window
    temperatures: Mapping[AttentionTemperature, Value]  # of queries, [B, 1, T, 1]
    added_scores: AddedScores | None = None
    chunk_masks: Mapping[int, Value] = field(default_factory=dict[int, Value])  # of chunked attention, by its chunk


def rotations(ir: Ir, decoder: Decoder, positions: Value) -> list[tuple[Value, Value]]:
    """The rows of the rotary tables for the positions, for both halves of a head."""
    tables: list[tuple[Value, Value]] = []
    for number, rope in enumerate(decoder.ropes):
        both: list[Value] = []
        for part in ("cos", "sin"):
            name = rope_name(number, part)
            table = ir.stored([name], "f32", [decoder.context, rope.rotary_dim // 2])
            rows = ir.op("Gather", [table, positions, ir.constant(0)], f"{name}.rows", batch_dims=0)
            wide = ir.op("Concat", [rows, rows], f"{name}.both", axis=-1)
            both.append(ir.op("Unsqueeze", [wide, ir.constant(1)], f"{name}.by_head"))
        tables.append((both[0], both[1]))
    return tables


def temperatures(ir: Ir, decoder: Decoder, positions: Value) -> dict[AttentionTemperature, Value]:
    """What queries at the positions are multiplied by."""
    factors: dict[AttentionTemperature, Value] = {}
    kinds = dict.fromkeys(attention.temperature for attention in decoder.attentions)
    ir.is_precise = True  # positions are more than half precision can count
    for number, temperature in enumerate(kind for kind in kinds if kind is not None):
        name = f"temperature.{number}"
        at = positions
        if temperature.offset:
            at = ir.op("Add", [positions, ir.constant(temperature.offset)], f"{name}.moved", **BROADCAST)
        floats = ir.op("Convert", [at], f"{name}.positions", type="f32", destination_type="f32")
        trained = ir.constant(float(temperature.original_context), "f32")
        parts = ir.op("Divide", [floats, trained], f"{name}.parts", m_pythondiv=True, **BROADCAST)
        floor = ir.op("Floor", [parts], f"{name}.floor")
        plus_one = ir.op("Add", [floor, ir.constant(1.0, "f32")], f"{name}.plus_one", **BROADCAST)
        more = multiplied(ir, ir.op("Log", [plus_one], f"{name}.log"), temperature.beta, f"{name}.more")
        times = ir.op("Add", [more, ir.constant(1.0, "f32")], f"{name}.times", **BROADCAST)
        factors[temperature] = ir.op("Unsqueeze", [times, ir.constant([1, 3])], name)
    ir.is_precise = False
    return factors


class Attentions:
    """Writes the attention of a decoder's layers."""

    def __init__(self, products: Products, decoder: Decoder, shared: Shared, *, is_latent: bool = False) -> None:
        """is_latent: the KV holds the latents of MLA, which all layers have."""
        self.ir = products.ir
        self._products = products
        self._rotated = [rope.rotary_dim for rope in decoder.ropes]
        self._shared = shared
        self._decoder = decoder
        self._is_latent = is_latent
        self._kv_pairs: list[tuple[Value, Value]] = []  # keys and values of all tokens, by their numbers

    def context(self, index: int, attention: Attention, x: Value) -> Value:
        """q, k and v in one product; rotation; the KV as variables; attention. [B, T, heads * D]."""
        ir = self.ir
        if self._is_latent:
            q, key, value = self._appended_latents(index, attention, x)
        elif attention.kv_from is None:
            q, key, value = self._appended(index, attention, x)
        else:
            q = self._products.linear(x, [attention.q], "qkv")
            q = self._normed_and_rotated(attention, q, attention.heads, attention.q_norm, "q")
            kv_parts = zip(("key", "value"), self._kv_pairs[self._decoder.kv_number(index)], strict=True)
            key, value = (self._repeated(part, each, attention) for part, each in kv_parts)
        if attention.temperature is not None:
            q = ir.op("Multiply", [q, self._shared.temperatures[attention.temperature]], "q.temperature", **BROADCAST)
        output = self._attend(index, attention, q, key, value)
        if self._is_latent:
            output = absorbed_values(self._products, attention, output)
        merged = ir.op("Transpose", [output, ir.constant([0, 2, 1, 3])], "attention.tokens")
        if attention.mla is not None and not self._is_latent:
            merged = latent_values(ir, attention.mla, merged)
        columns = attention.heads * attention.head_dim if attention.mla is None else attention.o.columns
        if attention.gate is None:
            return ir.op("Reshape", [merged, ir.constant([0, 0, columns])], "context", special_zero=True)
        share = ir.op("Sigmoid", [self._products.linear(x, [attention.gate], ATTENTION_GATE)], "attention_share")
        if attention.gates_heads:
            share = ir.op("Unsqueeze", [share, ir.constant([3])], "attention_share.heads")
            merged = multiplied_by(ir, [merged, share], "context.heads")
            return ir.op("Reshape", [merged, ir.constant([0, 0, columns])], "context", special_zero=True)
        flat = ir.op("Reshape", [merged, ir.constant([0, 0, columns])], "context.open", special_zero=True)
        return multiplied_by(ir, [flat, share], "context")

    def _appended(self, index: int, attention: Attention, x: Value) -> tuple[Value, Value, Value]:
        """Queries, and keys and values of all tokens, [B, heads, T or total, D]."""
        q, k, v = self._qkv(attention, x)
        q = self._normed_and_rotated(attention, q, attention.heads, attention.q_norm, "q")
        k = self._normed_and_rotated(attention, k, attention.kv_heads, attention.k_norm, "k")
        v = self._heads(attention, v, attention.kv_heads, attention.v_norm, "v")
        number = self._decoder.kv_number(index)
        known_keys = self._remembered(number, "key", k, attention.kv_heads, attention.head_dim)
        keys = self._repeated("key", known_keys, attention)
        known_values = self._remembered(number, "value", v, attention.kv_heads, attention.head_dim)
        self._kv_pairs.append((known_keys, known_values))
        return q, keys, self._repeated("value", known_values, attention)

    def _appended_latents(self, index: int, attention: Attention, x: Value) -> tuple[Value, Value, Value]:
        """Queries for latents, and the latents of all tokens as keys and as values, which have one KV head."""
        assert attention.mla is not None  # as is_latent says
        q, key, value = absorbed_qkv(self._products, attention, attention.mla, x, self._rotation)
        number = self._decoder.kv_number(index)
        keys = self._remembered(number, "key", key, 1, attention.latent_dim)
        return q, keys, self._remembered(number, "value", value, 1, attention.mla.kv.rows)

    def _qkv(self, attention: Attention, x: Value) -> list[Value]:
        """Each [B, T, heads * D]."""
        ir = self.ir
        if attention.mla is not None:
            return latent_qkv(self._products, attention, attention.mla, x)
        parts = [attention.q, attention.k, attention.v]
        lengths = ir.constant([part.rows for part in parts])
        together = self._products.linear(x, parts, "qkv")
        return ir.split("VariadicSplit", [together, ir.constant(2), lengths], "qkv.split", 3)

    def _normed_and_rotated(self, attention: Attention, x: Value, heads: int, norm: Norm | None, name: str) -> Value:
        """[B, T, heads * D] as [B, heads, T, D], normed and rotated, in the order that the layer has."""
        if attention.norm_after_rope:
            rotated = self._rotation(attention, self._heads(attention, x, heads, None, name), name)
            return normed(self.ir, rotated, norm, f"{name}.norm", by_head=True)
        return self._rotation(attention, self._heads(attention, x, heads, norm, name), name)

    def _heads(self, attention: Attention, x: Value, heads: int, norm: Norm | None, name: str) -> Value:
        """[B, T, heads * D] as [B, heads, T, D], normed on the way: each head, or all of them together."""
        ir = self.ir
        if norm is not None and heads > 1 and norm.size == heads * attention.head_dim:
            x, norm = normed(ir, x, norm, f"{name}.norm"), None
        split = ir.op("Reshape", [x, ir.constant([0, 0, heads, attention.head_dim])], f"{name}.heads",
                      special_zero=True)  # fmt: skip
        split = normed(ir, split, norm, f"{name}.norm")
        return ir.op("Transpose", [split, ir.constant([0, 2, 1, 3])], f"{name}.by_head")

    def _rotation(self, attention: Attention, x: Value, name: str, *, head_dim: int = 0) -> Value:
        """The leading dimensions of every head rotated; the rest pass through. head_dim: 0: that of the attention."""
        ir, rope = self.ir, attention.rope
        if rope is None:
            return x
        rest = (head_dim or attention.head_dim) - self._rotated[rope]
        if not rest:
            return self._rotated_halves(x, rope, f"{name}.rotated", name)
        lengths = ir.constant([self._rotated[rope], rest])
        rotary, passthrough = ir.split("VariadicSplit", [x, ir.constant(3), lengths], f"{name}.parts", 2)
        rotated = self._rotated_halves(rotary, rope, f"{name}.rotary_part", name)
        return ir.op("Concat", [rotated, passthrough], f"{name}.rotated", axis=-1)

    def _rotated_halves(self, x: Value, rope: int, result: str, name: str) -> Value:
        """x * cos + (-second half, first half) * sin.

        The plugins see it only when the split names its axis 3 and the concatenation -1.
        """
        ir, (cos, sin) = self.ir, self._shared.rope_tables[rope]
        half = self._rotated[rope] // 2
        first, second = ir.split("VariadicSplit", [x, ir.constant(3), ir.constant([half, half])], f"{name}.halves", 2)
        minus = ir.op("Multiply", [second, ir.constant(-1.0, "f32")], f"{name}.minus", **BROADCAST)
        crossed = ir.op("Concat", [minus, first], f"{name}.crossed", axis=-1)
        straight = ir.op("Multiply", [x, cos], f"{name}.cos", **BROADCAST)
        across = ir.op("Multiply", [crossed, sin], f"{name}.sin", **BROADCAST)
        return ir.op("Add", [straight, across], result, **BROADCAST)

    def _attend(self, index: int, attention: Attention, q: Value, key: Value, value: Value) -> Value:
        """What the queries [B, heads, T, D] find among the keys."""
        ir, mask = self.ir, self._mask(attention)
        if attention.softcap:
            return self._by_scores(index, attention, q, key, value)
        if self._shared.added_scores is not None:
            mask = ir.op("Add", [self._shared.added_scores(attention, q, key), mask], "mask.with_scores", **BROADCAST)
        inputs = [q, key, value, mask]
        if attention.scale is not None or attention.sinks or self._is_latent:
            inputs.append(ir.constant(_scale(attention), "f32"))
        if attention.sinks:
            inputs.append(self._sinks(index, attention))
        return ir.op("ScaledDotProductAttention", inputs, "attention", causal=False)

    def _mask(self, attention: Attention) -> Value:
        chunk = self._decoder.chunk_of(attention)
        return self._shared.masks[attention.window] if chunk is None else self._shared.chunk_masks[chunk]

    def _by_scores(self, index: int, attention: Attention, q: Value, key: Value, value: Value) -> Value:
        """The same in single operations: ScaledDotProductAttention has no cap (OpenVINO 2026.4)."""
        ir, mask = self.ir, self._mask(attention)
        scores = ir.op("MatMul", [q, key], "scores.products", transpose_a=False, transpose_b=True)
        scores = multiplied(ir, scores, _scale(attention), "scores.scaled")
        scores = capped(ir, scores, attention.softcap, "scores.capped")
        scores = ir.op("Add", [scores, mask], "scores", **BROADCAST)
        if attention.sinks:
            scores = self._with_sinks(index, attention, scores)
        weights = ir.op("SoftMax", [scores], "attention.weights", axis=3)
        if attention.sinks:
            bounds = [ir.constant([at]) for at in (0, -1, 1, 3)]
            weights = ir.op("Slice", [weights, *bounds], "attention.weights.of_keys")
        return ir.op("MatMul", [weights, value], "attention", transpose_a=False, transpose_b=False)

    def _with_sinks(self, index: int, attention: Attention, scores: Value) -> Value:
        """A column more, [B, heads, T, total + 1]."""
        ir = self.ir
        sizes = [ir.size(scores, axis, f"sinks.size.{axis}") for axis in (0, 1, 2)]
        shape = ir.op("Concat", [*sizes, ir.constant([1])], "sinks.shape", axis=0)
        column = ir.op("Broadcast", [self._sinks(index, attention), shape], "sinks.column", mode="numpy")
        return ir.op("Concat", [scores, column], "scores.with_sinks", axis=-1)

    def _sinks(self, index: int, attention: Attention) -> Value:
        return self.ir.stored([sinks_name(index)], "f32", [1, attention.heads, 1, 1])

    def _remembered(self, number: int, part: str, new: Value, heads: int, size: int) -> Value:
        """What is known of all tokens, the new ones among them, [B, KV heads, total, D]."""
        if self._shared.beams is None:
            return new
        ir = self.ir
        # the name that optimum-intel gives, by which openvino-genai finds its way
        variable = f"past_key_values.{number}.{part}present.{number}.{part}"
        parts = [self._shared.batch, *(ir.constant([n]) for n in (heads, 0, size))]
        shape = ir.op("Concat", parts, f"{part}.none.shape", axis=0)
        none = ir.op("Broadcast", [ir.constant(0.0, "f32"), shape], f"{part}.none", mode="numpy")
        state = ir.op(
            "ReadValue",
            [none],
            f"{part}.held",
            variable_id=variable,
            variable_type="f32",
            variable_shape=f"?,{heads},?,{size}",
        )
        past = ir.op("Gather", [state, self._shared.beams, ir.constant(0)], f"{part}.past", batch_dims=0)
        present = ir.op("Concat", [past, new], f"{part}.known", axis=2)
        ir.split("Assign", [present], f"{part}.keep", 0, variable_id=variable)
        return present

    def _repeated(self, part: str, kv: Value, attention: Attention) -> Value:
        """[B, kv heads, total, D] as [B, heads, total, D]."""
        ir, heads, size = self.ir, attention.kv_heads, attention.head_dim
        shared = attention.heads // heads
        if shared == 1:
            return kv
        apart = ir.op("Unsqueeze", [kv, ir.constant(2)], f"{part}.apart")
        total = ir.size(kv, 2, f"{part}.total")
        each = [self._shared.batch, ir.constant([heads]), ir.constant([shared]), total, ir.constant([size])]
        target = ir.op("Concat", each, f"{part}.repeated.shape", axis=0)
        repeated = ir.op("Broadcast", [apart, target], f"{part}.repeated", mode="bidirectional")
        flat = ir.constant([0, attention.heads, -1, size])
        return ir.op("Reshape", [repeated, flat], f"{part}.by_head", special_zero=True)


def _scale(attention: Attention) -> float:
    return attention.head_dim**-0.5 if attention.scale is None else attention.scale
