"""Decoder + layout -> a stateful OpenVINO model of a few hundred kilobytes whose weights lie in weights.safetensors.

Inputs: input_ids, attention_mask, position_ids [B, T] i64 (the mask: [B, past + T]) and beam_idx [B] i32, the four that
openvino-genai expects. Output: logits [B, T, V] of every position; a session cuts to the last at `OPENVINO_CONTEXT`
and `OPENVINO_SUM` (backends/ov.py), as openvino-genai does at the head. Keys and values are
variables [B, kv heads, T, D].

Every chain is written in the form that OpenVINO's plugins recognise: packed weights that stay packed, RMS, RoPE, and
attention that owns its KV cache (docs/openvino.md says how that was seen).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedllm.export.decoder import Attention, Decoder, Linear, Mlp, Norm
from embedllm.export.openvino_ir import Ir, Value
from embedllm.export.quantize import Packing
from embedllm.export.weights import Layout

FILE = "openvino_model.xml"
_BROADCAST = {"auto_broadcast": "numpy"}
_TO_END = (1 << 63) - 1
_HIDDEN_SCORE = -65504.0  # the smallest float16: what a hidden key's score is lowered by


def build(decoder: Decoder, layout: Layout, packing: Mapping[str, Packing]) -> str:
    """The model of a decoder, as the text of an IR file. packing: by the name of the matrix."""
    return _Emitter(Ir(layout), decoder, packing).model().xml(decoder.model_type)


def constants(decoder: Decoder, packing: Mapping[str, Packing]) -> bytes:
    """The small constants that the model needs, to be stored as one entry of the weights file."""
    return _Emitter(Ir(None), decoder, packing).model().pool


class _Emitter:
    """Writes the parts of a decoder."""

    def __init__(self, ir: Ir, decoder: Decoder, packing: Mapping[str, Packing]) -> None:
        self.ir = ir
        self.decoder = decoder
        self.packing = packing

    def model(self) -> Ir:
        ir, decoder = self.ir, self.decoder
        ids, mask, positions = (
            ir.parameter(name, "i64", 2) for name in ("input_ids", "attention_mask", "position_ids")
        )
        self.beams = ir.parameter("beam_idx", "i32", 1)
        self.batch, length = self.size(ids, 0, "batch"), self.size(ids, 1, "length")
        self.turned = [self.rotations(part, positions) for part in ("cos", "sin")]
        windows = dict.fromkeys(layer.attention.window for layer in decoder.layers)
        masks = self.masks(mask, positions, length, list(windows))
        x = self.embedding(decoder.embedding, ids)
        for index, layer in enumerate(decoder.layers):
            ir.scope = f"layers.{index}"
            context = self.attention(
                index, layer.attention, self.norm(x, layer.attention_norm, "norm"), masks[layer.attention.window]
            )
            x = ir.op("Add", [x, self.linear(context, [layer.attention.o], "o")], "sum", **_BROADCAST)
            m = self.mlp(layer.mlp, self.norm(x, layer.mlp_norm, "mlp.norm"))
            x = ir.op("Add", [x, m], "output", **_BROADCAST)
        ir.scope = ""
        normed = self.norm(x, decoder.norm, decoder.norm.name)
        logits = self.linear(normed, [decoder.head], "logits", tensor="logits")
        ir.split("Result", [logits], "logits.result", 0)
        return ir

    def embedding(self, table: Linear, ids: Value) -> Value:
        """Rows of the table, which stays packed: only what is gathered is unpacked."""
        ir = self.ir
        ids = ir.op("Convert", [ids], "ids", type="i32", destination_type="i32")
        rows = self.ir.op("Gather", [self.floats([table], "embedding"), ids, ir.constant(0)], "embedding", batch_dims=0)
        if self.stored_columns(table) == table.columns:
            return rows
        bounds = [ir.constant([value]) for value in (0, table.columns, 1, 2)]
        return ir.op("Slice", [rows, *bounds], "embedding.columns")

    def attention(self, index: int, attention: Attention, x: Value, mask: Value) -> Value:
        """q, k and v in one product; rotation; the KV as variables; attention. [B, T, heads * D]."""
        ir = self.ir
        parts = [attention.q, attention.k, attention.v]
        lengths = ir.constant([part.rows for part in parts])
        together = self.linear(x, parts, "qkv")
        q, k, v = ir.split("VariadicSplit", [together, ir.constant(2), lengths], "qkv.split", 3)
        q = self.rotated(self.heads(q, attention.heads, attention.head_dim, "q", attention.q_norm), "q")
        k = self.rotated(self.heads(k, attention.kv_heads, attention.head_dim, "k", attention.k_norm), "k")
        v = self.heads(v, attention.kv_heads, attention.head_dim, "v")
        key, value = (self.remembered(index, part, new, attention) for part, new in (("key", k), ("value", v)))
        seen = ir.op("ScaledDotProductAttention", [q, key, value, mask], "attention", causal=False)
        merged = ir.op("Transpose", [seen, ir.constant([0, 2, 1, 3])], "attention.tokens")
        columns = attention.heads * attention.head_dim
        return ir.op("Reshape", [merged, ir.constant([0, 0, columns])], "context", special_zero=True)

    def heads(self, x: Value, heads: int, size: int, name: str, norm: Norm | None = None) -> Value:
        """[B, T, heads * D] as [B, heads, T, D], each head normed on the way."""
        ir = self.ir
        split = ir.op("Reshape", [x, ir.constant([0, 0, heads, size])], f"{name}.heads", special_zero=True)
        normed = split if norm is None else self.norm(split, norm, f"{name}.norm")
        return ir.op("Transpose", [normed, ir.constant([0, 2, 1, 3])], f"{name}.by_head")

    def remembered(self, index: int, part: str, new: Value, attention: Attention) -> Value:
        """What is known of all tokens, the new ones among them, repeated for the query heads that share it."""
        ir, heads, size = self.ir, attention.kv_heads, attention.head_dim
        # the name that optimum-intel gives, by which openvino-genai finds its way
        variable = f"past_key_values.{index}.{part}present.{index}.{part}"
        shape = ir.op(
            "Concat", [self.batch, *(ir.constant([n]) for n in (heads, 0, size))], f"{part}.none.shape", axis=0
        )
        none = ir.op("Broadcast", [ir.constant(0.0, "f32"), shape], f"{part}.none", mode="numpy")
        held = ir.op(
            "ReadValue",
            [none],
            f"{part}.held",
            variable_id=variable,
            variable_type="f32",
            variable_shape=f"?,{heads},?,{size}",
        )
        past = ir.op("Gather", [held, self.beams, ir.constant(0)], f"{part}.past", batch_dims=0)
        known = ir.op("Concat", [past, new], f"{part}.known", axis=2)
        ir.split("Assign", [known], f"{part}.keep", 0, variable_id=variable)
        shared = attention.heads // heads
        if shared == 1:
            return known
        apart = ir.op("Unsqueeze", [known, ir.constant(2)], f"{part}.apart")
        total = self.size(known, 2, f"{part}.total")
        each = [self.batch, ir.constant([heads]), ir.constant([shared]), total, ir.constant([size])]
        target = ir.op("Concat", each, f"{part}.repeated.shape", axis=0)
        repeated = ir.op("Broadcast", [apart, target], f"{part}.repeated", mode="bidirectional")
        flat = ir.constant([0, attention.heads, -1, size])
        return ir.op("Reshape", [repeated, flat], f"{part}.by_head", special_zero=True)

    def rotations(self, part: str, positions: Value) -> Value:
        """The rows of a rotary table for the positions, for both halves of a head: [B, 1, T, rotated]."""
        ir, half = self.ir, self.decoder.rope.rotated // 2
        table = ir.stored([f"rope.{part}"], "f32", [self.decoder.context, half])
        rows = ir.op("Gather", [table, positions, ir.constant(0)], f"rope.{part}.rows", batch_dims=0)
        both = ir.op("Concat", [rows, rows], f"rope.{part}.both", axis=-1)
        return ir.op("Unsqueeze", [both, ir.constant(1)], f"rope.{part}.by_head")

    def rotated(self, x: Value, name: str) -> Value:
        """x * cos + (-second half, first half) * sin.

        The plugins see it only when the split names its axis 3 and the concatenation -1.
        """
        ir, (cos, sin) = self.ir, self.turned
        half = self.decoder.rope.rotated // 2
        first, second = ir.split("VariadicSplit", [x, ir.constant(3), ir.constant([half, half])], f"{name}.halves", 2)
        minus = ir.op("Multiply", [second, ir.constant(-1.0, "f32")], f"{name}.minus", **_BROADCAST)
        crossed = ir.op("Concat", [minus, first], f"{name}.crossed", axis=-1)
        straight = ir.op("Multiply", [x, cos], f"{name}.cos", **_BROADCAST)
        return ir.op(
            "Add",
            [straight, ir.op("Multiply", [crossed, sin], f"{name}.sin", **_BROADCAST)],
            f"{name}.rotated",
            **_BROADCAST,
        )

    def masks(
        self, mask: Value, positions: Value, length: Value, windows: Sequence[int | None]
    ) -> dict[int | None, Value]:
        """What is added to the scores, [B, 1, T, past + T], by window: 0, or much less for what is hidden."""
        ir = self.ir
        total = ir.op("Squeeze", [self.size(mask, 1, "total"), ir.constant(0)], "total.number")
        number = ir.op("Squeeze", [length, ir.constant(0)], "length.number")
        past = ir.op("Subtract", [total, number], "past.number", **_BROADCAST)
        one = ir.constant(1)
        keys = ir.op("Range", [ir.constant(0), total, one], "keys", output_type="i64")
        queries = ir.op("Range", [past, total, one], "queries.flat", output_type="i64")
        queries = ir.op("Unsqueeze", [queries, one], "queries")  # [T, 1]
        earlier = ir.op("LessEqual", [keys, queries], "earlier", type="boolean", **_BROADCAST)
        given = ir.op("NotEqual", [mask, ir.constant(0)], "given.flat", type="boolean", **_BROADCAST)
        given = ir.op("Unsqueeze", [given, ir.constant([1, 2])], "given")  # [B, 1, 1, total]
        found: dict[int | None, Value] = {}
        for window in windows:
            if window is None:
                both = ir.op("LogicalAnd", [earlier, given], "mask.both", **_BROADCAST)
                found[window] = ir.op("Select", [both, *self.scores()], "mask", type="f32", **_BROADCAST)
            else:
                found[window] = self.window_mask(mask, positions, window, (earlier, given))
        return found

    def window_mask(self, mask: Value, positions: Value, window: int, others: Sequence[Value]) -> Value:
        """The mask of attention that sees the newest `window` tokens, and of them what all of `others` let through.

        By positions, not by places: the NPU's decoding model has a gap between what is held and what is new. In just
        this form, because openvino-genai's default backend drops the mask and looks for it to find the window
        (tests/test_openvino_genai.py).
        """
        ir, name = self.ir, f"mask.window.{window}"
        query_at = ir.op("Unsqueeze", [positions, ir.constant([1, 3])], f"{name}.queries")  # [B, 1, T, 1]
        count = ir.op("CumSum", [mask, ir.constant(1)], f"{name}.count", exclusive=False, reverse=False)
        flat = ir.op("Subtract", [count, ir.constant(1)], f"{name}.keys.flat", **_BROADCAST)
        key_at = ir.op("Unsqueeze", [flat, ir.constant([1, 2])], f"{name}.keys")  # [B, 1, 1, total]
        oldest = ir.op("Add", [query_at, ir.constant(-window)], f"{name}.oldest", **_BROADCAST)
        near = ir.op("Greater", [key_at, oldest], f"{name}.near", type="boolean", **_BROADCAST)
        yes = ir.constant(1, "boolean")
        seen = ir.op("BitwiseAnd", [yes, near], f"{name}.and.0", **_BROADCAST)
        for at, other in enumerate((yes, *others), 1):
            pair = [other, seen] if at == 2 else [seen, other]
            seen = ir.op("BitwiseAnd", pair, f"{name}.and.{at}", **_BROADCAST)
        shape = ir.op("ShapeOf", [seen], f"{name}.shape", type="i64", output_type="i64")
        whole = ir.op("Broadcast", [seen, shape], f"{name}.whole", mode="numpy")
        scores = ir.op("Select", [whole, *self.scores()], f"{name}.scores", type="f32", **_BROADCAST)
        bounds = [ir.constant([value]) for value in (0, _TO_END, 1, 3)]
        return ir.op("Slice", [scores, *bounds], name)

    def scores(self) -> list[Value]:
        """Of a key that is seen, and of one that is hidden."""
        return [self.ir.constant(0.0, "f32"), self.ir.constant(_HIDDEN_SCORE, "f32")]

    def mlp(self, mlp: Mlp, x: Value) -> Value:
        gate, up = self.linear(x, [mlp.gate], "gate"), self.linear(x, [mlp.up], "up")
        active = self.ir.op("Swish", [gate], "silu")
        return self.linear(self.ir.op("Multiply", [active, up], "gated", **_BROADCAST), [mlp.down], "down")

    def norm(self, x: Value, norm: Norm, name: str) -> Value:
        ir = self.ir
        squares = ir.op("Power", [x, ir.constant(2.0, "f32")], f"{name}.squares", **_BROADCAST)
        mean = ir.op("ReduceMean", [squares, ir.constant([-1])], f"{name}.mean", keep_dims=True)
        raised = ir.op("Add", [mean, ir.constant(norm.epsilon, "f32")], f"{name}.raised", **_BROADCAST)
        root = ir.op("Sqrt", [raised], f"{name}.root")
        inverse = ir.op("Divide", [ir.constant(1.0, "f32"), root], f"{name}.inverse", m_pythondiv=True, **_BROADCAST)
        normed = ir.op("Multiply", [x, inverse], f"{name}.normed", **_BROADCAST)
        weight = ir.stored([f"{norm.name}.weight"], "f32", [norm.size])
        return ir.op("Multiply", [normed, weight], name, **_BROADCAST)

    def linear(self, x: Value, parts: Sequence[Linear], name: str, *, tensor: str = "") -> Value:
        """x @ weight.T + bias for neighbouring matrices as one product; outputs side by side."""
        ir, columns = self.ir, parts[0].columns
        surplus = self.stored_columns(parts[0]) - columns
        if surplus:  # of the input, which is small: a slice of the weights would unpack them
            pads = [ir.constant([0, 0, 0]), ir.constant([0, 0, surplus]), ir.constant(0.0, "f32")]
            x = ir.op("Pad", [x, *pads], f"{name}.padded", pad_mode="constant")
        floats = self.floats(parts, f"{name}.weight")
        has_bias = parts[0].bias
        product = ir.op(
            "MatMul",
            [x, floats],
            f"{name}.product" if has_bias else name,
            tensor="" if has_bias else tensor,
            transpose_a=False,
            transpose_b=True,
        )
        if not has_bias:
            return product
        bias = ir.stored([f"{part.name}.bias" for part in parts], "f32", [sum(part.rows for part in parts)])
        return ir.op("Add", [product, bias], name, tensor=tensor, **_BROADCAST)

    def floats(self, parts: Sequence[Linear], name: str) -> Value:
        """The float weights of neighbouring matrices, [rows, stored columns], by the chain that plugins keep packed."""
        ir, packing = self.ir, self.packing[parts[0].name]
        rows = sum(part.rows for part in parts)
        columns = self.stored_columns(parts[0])
        weights = [f"{part.name}.weight" for part in parts]
        if packing.bits == 32:
            return ir.stored(weights, "f32", [rows, columns])
        if packing.bits == 16:
            half = ir.stored(weights, "f16", [rows, columns])
            return ir.op("Convert", [half], f"{name}.floats", type="f32", destination_type="f32")
        groups = packing.groups(columns)
        kind = f"u{packing.bits}"

        def half(value: Value, what: str) -> Value:
            return ir.op("Convert", [value], f"{name}.{what}.half", type="f16", destination_type="f16")

        values = half(ir.stored(weights, kind, [rows, groups, packing.group]), "values")
        if packing.symmetric:
            zero = ir.packed_number(1 << packing.bits - 1, kind)
        else:
            held = groups + groups % (8 // packing.bits)  # a row ends with a whole byte
            zero = ir.stored([f"{part.name}.zero" for part in parts], kind, [rows, held, 1])
            if held > groups:
                bounds = [ir.constant([value]) for value in (0, groups, 1, 1)]
                zero = ir.op("Slice", [zero, *bounds], f"{name}.zero.given")
        centred = ir.op("Subtract", [values, half(zero, "zero")], f"{name}.centred", **_BROADCAST)
        scale = ir.stored([f"{part.name}.scale" for part in parts], "f16", [rows, groups, 1])
        scaled = ir.op("Multiply", [centred, scale], f"{name}.scaled", **_BROADCAST)
        flat = ir.op("Reshape", [scaled, ir.constant([rows, columns])], f"{name}.flat", special_zero=False)
        return ir.op("Convert", [flat], f"{name}.floats", type="f32", destination_type="f32")

    def stored_columns(self, linear: Linear) -> int:
        packing = self.packing[linear.name]
        return packing.groups(linear.columns) * packing.group if packing.quantized else linear.columns

    def size(self, x: Value, axis: int, name: str) -> Value:
        """One dimension of a tensor, [1]."""
        ir = self.ir
        shape = ir.op("ShapeOf", [x], f"{name}.shape", type="i64", output_type="i64")
        return ir.op("Gather", [shape, ir.constant([axis]), ir.constant(0)], name, batch_dims=0)
