"""Decoder + layout + dialect -> an ONNX graph of a few kilobytes whose weights lie in weights.safetensors.

    input_ids -> embedding -> x
    each layer:  a = norm(x) -> qkv -> attention with KV -> o;  x += o;  m = norm(x) -> mlp;  x += m
    norm(x) -> head -> logits

The residual sum and the next norm are one operator (SkipSimplifiedLayerNormalization). Only the positions whose
logits are asked for pass the last layer's output projection and mlp, the final norm and the head: `logits_from` is
the first of them, an input with the default -1, the last position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedllm.export.decoder import Attention, Decoder, Layer, Linear, Mlp, Norm
from embedllm.export.dialects import Dialect
from embedllm.export.quantize import Packing
from embedllm.export.weights import Layout

WEIGHTS = "weights.safetensors"
MICROSOFT = "com.microsoft"
_OPSET = 21
_IR_VERSION = 10
_TYPES = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "U8": TensorProto.UINT8}
_TO_END = np.iinfo(np.int64).max


def build(decoder: Decoder, layout: Layout, packing: dict[str, Packing], dialect: Dialect) -> onnx.ModelProto:
    """The graph of a whole model.

    packing: by the name of the matrix.
    Inputs: input_ids [B, T], attention_mask [B, past + T], past_key_values.N.key and .value [B, kv heads, past, D],
    logits_from [1]. Outputs: logits [B, T', V], present.N.key and .value.
    """
    graph = _Graph(layout, packing, dialect)
    lengths = _lengths(graph)
    tables = [graph.cast(graph.stored([f"rope.{part}"])) for part in ("cos", "sin")]
    hidden, residual = _embedding(graph, decoder), ""
    for index, layer in enumerate(decoder.layers):
        graph.scope = f"layers.{index}"
        normed, residual = graph.norm(hidden, residual, layer.attention_norm)
        context = _attention(graph, index, layer.attention, normed, [*lengths, *tables])
        if index == len(decoder.layers) - 1:
            context, residual = graph.wanted(context, "context"), graph.wanted(residual, "residual")
        hidden = graph.linear(context, [layer.attention.o], "o")
        normed, residual = graph.norm(hidden, residual, layer.mlp_norm)
        hidden = _mlp(graph, layer.mlp, normed)
    graph.scope = "head"
    normed, _ = graph.norm(hidden, residual, decoder.norm)
    graph.linear(normed, [decoder.head], "head", output="logits")
    return graph.model(decoder)


def _embedding(graph: _Graph, decoder: Decoder) -> str:
    """Rows of the table; a quantized table is read by rows, and a tied one is the head's bytes under another shape."""
    table = decoder.embedding
    packing = graph.packing[table.name]
    graph.scope = "embedding"
    if not packing.quantized:
        weight = graph.stored([f"{table.name}.weight"])
        return graph.cast(graph.op("Gather", [weight, "input_ids"], "rows", axis=0), like=weight)
    groups = packing.groups(table.columns)
    stored_columns = groups * packing.group
    flat = [table.rows, stored_columns * packing.bits // 8]
    weight = graph.stored([f"{table.name}.weight"], shape=flat, name="embedding.rows.weight")
    inputs = [weight, "input_ids", graph.scale([table])]
    if not packing.symmetric:
        inputs.append(graph.stored([f"{table.name}.zero"]))
    rows = graph.op("GatherBlockQuantized", inputs, "rows", domain=MICROSOFT, bits=packing.bits,
                    block_size=packing.group, gather_axis=0, quantize_axis=1)  # fmt: skip
    if stored_columns == table.columns:
        return rows
    bounds = [graph.constant(np.array([n], np.int64)) for n in (0, table.columns, -1)]
    return graph.op("Slice", [rows, *bounds], "columns")


def _lengths(graph: _Graph) -> list[str]:
    """seqlens_k [B] and total_sequence_length [] from the attention mask, once for all layers."""
    graph.scope = "lengths"
    one = graph.constant(np.array([1], np.int64))
    held = graph.op("ReduceSum", ["attention_mask", one], "sum", keepdims=0)
    last = graph.op("Sub", [held, one], "last")
    shape = graph.op("Shape", ["attention_mask"], "shape")
    total = graph.op("Gather", [shape, graph.constant(np.array(1, np.int64))], "total", axis=0)
    return [graph.op("Cast", [n], f"{n}.int32", to=TensorProto.INT32) for n in (last, total)]


def _attention(graph: _Graph, index: int, attention: Attention, normed: str, shared: Sequence[str]) -> str:
    """q, k and v in one product, then GroupQueryAttention, which rotates, appends to the KV and attends."""
    parts = [attention.q, attention.k, attention.v]
    qkv = graph.linear(normed, parts, "qkv")
    inputs = [qkv, "", ""]
    inside = ["", ""]
    attributes: dict[str, float | int] = {}
    q_norm, k_norm = attention.q_norm, attention.k_norm
    if q_norm is not None and k_norm is not None:
        if graph.dialect.norm_in_attention:
            inside = [graph.norm_weight(q_norm), graph.norm_weight(k_norm)]
            attributes["qk_norm_epsilon"] = q_norm.epsilon
        else:
            sizes = graph.constant(np.array([p.rows for p in parts], np.int64))
            q, k, v = graph.ops("Split", [qkv, sizes], ["q", "k", "v"], axis=-1)
            inputs = [
                _head_norm(graph, q, q_norm, attention.heads),
                _head_norm(graph, k, k_norm, attention.kv_heads),
                v,
            ]
    if attention.window is not None:
        attributes["local_window_size"] = attention.window
    past = [f"past_key_values.{index}.{part}" for part in ("key", "value")]
    present = [f"present.{index}.{part}" for part in ("key", "value")]
    inputs += [*past, *shared, "", "", "", "", "", *inside]
    output = f"{graph.scope}.context"
    graph.node("GroupQueryAttention", inputs, [output, *present], f"{graph.scope}.attention", domain=MICROSOFT,
               num_heads=attention.heads, kv_num_heads=attention.kv_heads, do_rotary=1, **attributes)  # fmt: skip
    return output


def _head_norm(graph: _Graph, x: str, norm: Norm, heads: int) -> str:
    split = graph.op("Reshape", [x, graph.constant(np.array([0, 0, heads, norm.size], np.int64))], f"{x}.heads")
    normed = graph.op("SimplifiedLayerNormalization", [split, graph.norm_weight(norm)], f"{x}.norm",
                      axis=-1, epsilon=norm.epsilon, stash_type=1)  # fmt: skip
    return graph.op("Reshape", [normed, graph.constant(np.array([0, 0, heads * norm.size], np.int64))], f"{x}.flat")


def _mlp(graph: _Graph, mlp: Mlp, x: str) -> str:
    gate = graph.linear(x, [mlp.gate], "gate")
    up = graph.linear(x, [mlp.up], "up")
    active = graph.op("QuickGelu", [gate], "silu", domain=MICROSOFT, alpha=1.0)
    return graph.linear(graph.op("Mul", [active, up], "gated"), [mlp.down], "down")


class _Graph:
    """Collects nodes and initializers; knows where tensors lie and how they are packed."""

    def __init__(self, layout: Layout, packing: dict[str, Packing], dialect: Dialect) -> None:
        self.packing = packing
        self.dialect = dialect
        self.scope = ""
        self._layout = layout
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._casts: dict[str, str] = {}
        self._activations = TensorProto.FLOAT if dialect.activations == "float32" else TensorProto.FLOAT16

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, domain: str = "",
             **attributes: float | int) -> None:  # fmt: skip
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        self._nodes.append(helper.make_node(kind, inputs, outputs, name=name, domain=domain, **attributes))

    def op(self, kind: str, inputs: Sequence[str], name: str, domain: str = "", **attributes: float | int) -> str:
        """A node of one output; `name` is inside the present scope unless it is whole already."""
        name = name if name.startswith(f"{self.scope}.") else f"{self.scope}.{name}"
        self.node(kind, inputs, [name], name, domain, **attributes)
        return name

    def ops(self, kind: str, inputs: Sequence[str], names: Sequence[str], **attributes: float | int) -> list[str]:
        outputs = [f"{self.scope}.{name}" for name in names]
        self.node(kind, inputs, outputs, f"{self.scope}.{kind.lower()}", **attributes)
        return outputs

    def constant(self, value: np.ndarray) -> str:
        """A small integer constant, one initializer for equal values."""
        name = f"constant.{'x'.join(map(str, value.shape)) or 'scalar'}.{'_'.join(map(str, value.ravel()))}"
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(value, name)
        return name

    def stored(self, entries: Sequence[str], *, shape: Sequence[int] | None = None, name: str | None = None) -> str:
        """An initializer over neighbouring entries of the weights file, joined along their first axis."""
        name = name or entries[0] + (f"+{len(entries) - 1}" if len(entries) > 1 else "")
        if name in self._initializers:
            return name
        first = self._layout.placed[entries[0]].entry
        offset, length = self._layout.span(entries)
        if shape is None:
            rows = sum(self._layout.placed[entry].entry.shape[0] for entry in entries)
            shape = [rows, *first.shape[1:]]
        tensor = TensorProto(name=name, data_type=_TYPES[first.dtype], dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        self._initializers[name] = tensor
        return name

    def cast(self, value: str, *, like: str | None = None) -> str:
        """The value in the type of the activations; of an initializer the runtime folds this when it loads.

        like: an initializer of the value's type; left out, the value is an initializer itself.
        """
        if self._initializers[like or value].data_type == self._activations:
            return value
        if value not in self._casts:
            name = f"{value}.{self.dialect.activations}"
            self.node("Cast", [value], [name], name, to=self._activations)
            self._casts[value] = name
        return self._casts[value]

    def scale(self, parts: Sequence[Linear]) -> str:
        return self.cast(self.stored([f"{part.name}.scale" for part in parts]))

    def norm_weight(self, norm: Norm) -> str:
        return self.cast(self.stored([f"{norm.name}.weight"]))

    def linear(self, x: str, parts: Sequence[Linear], name: str, *, output: str | None = None) -> str:
        """x @ weight.T + bias for neighbouring matrices as one product; outputs side by side."""
        packing = self.packing[parts[0].name]
        name = f"{self.scope}.{name}"
        bias = self.cast(self.stored([f"{p.name}.bias" for p in parts])) if parts[0].bias else ""
        weights = [f"{part.name}.weight" for part in parts]
        added = bool(bias) and not (packing.quantized and self.dialect.bias_in_matmul)
        result = output or name
        product = f"{name}.product" if added else result
        if packing.quantized:
            zero = "" if packing.symmetric else self.stored([f"{part.name}.zero" for part in parts])
            inputs = [x, self.stored(weights), self.scale(parts), zero, "", "" if added else bias]
            self.node("MatMulNBits", inputs, [product], name, MICROSOFT, K=parts[0].columns,
                      N=sum(part.rows for part in parts), bits=packing.bits, block_size=packing.group,
                      accuracy_level=self.dialect.accuracy_level)  # fmt: skip
        else:
            turned = self.op("Transpose", [self.cast(self.stored(weights))], f"{name}.transposed", perm=[1, 0])
            self.node("MatMul", [x, turned], [product], name)
        if added:
            self.node("Add", [product, bias], [result], f"{name}.bias")
        return result

    def norm(self, x: str, residual: str, norm: Norm) -> tuple[str, str]:
        """(norm(x + residual), x + residual)."""
        weight = self.norm_weight(norm)
        name = f"{self.scope}.{norm.name.rsplit('.', 1)[-1]}"
        if not residual:
            return self.op(
                "SimplifiedLayerNormalization", [x, weight], name, axis=-1, epsilon=norm.epsilon, stash_type=1
            ), x
        total = f"{name}.sum"
        self.node("SkipSimplifiedLayerNormalization", [x, residual, weight], [name, "", "", total], name, MICROSOFT,
                  epsilon=norm.epsilon)  # fmt: skip
        return name, total

    def wanted(self, x: str, name: str) -> str:
        """The positions from `logits_from` on."""
        bounds = ["logits_from", self.constant(np.array([_TO_END])), self.constant(np.array([1], np.int64))]
        return self.op("Slice", [x, *bounds], f"{name}.wanted")

    def model(self, decoder: Decoder) -> onnx.ModelProto:
        kind, integer = self._activations, TensorProto.INT64
        logits_from = numpy_helper.from_array(np.array([-1], np.int64), "logits_from")
        inputs = [
            helper.make_tensor_value_info("input_ids", integer, ["batch", "tokens"]),
            helper.make_tensor_value_info("attention_mask", integer, ["batch", "total"]),
        ]
        outputs = [helper.make_tensor_value_info("logits", kind, ["batch", "wanted", decoder.vocabulary])]
        for index, layer in enumerate(decoder.layers):
            inputs += _kv_infos(kind, "past_key_values", index, layer, "past")
            outputs += _kv_infos(kind, "present", index, layer, "capacity")
        inputs.append(helper.make_tensor_value_info("logits_from", integer, [1]))
        graph = helper.make_graph(
            self._nodes, decoder.model_type, inputs, outputs, [*self._initializers.values(), logits_from]
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="embedllm")


def _kv_infos(kind: int, prefix: str, index: int, layer: Layer, length: str) -> list[onnx.ValueInfoProto]:
    shape = ["batch", layer.attention.kv_heads, length, layer.attention.head_dim]
    return [helper.make_tensor_value_info(f"{prefix}.{index}.{part}", kind, shape) for part in ("key", "value")]
