"""What stands in place of attention, or beside it, in an ONNX graph of a recurrent model: convolutions, states."""

from __future__ import annotations

import numpy as np

from embedllm.export.onnx.builder import MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.recurrent_state import LENGTH_EPSILON
from embedllm.package.tensors import convolution_name, decay_name


class Recurrent:
    """Writes such parts of layers into a graph."""

    def __init__(self, products: Products, norms: Norms, mlps: Mlps) -> None:
        self.graph: Graph = products.graph
        self.products, self.norms, self.mlps = products, norms, mlps

    def context(self, index: int, mixer: ShortConv | DeltaNet | Mamba2, normed: str) -> str:
        """[B, T, values], in front of the output projection."""
        if isinstance(mixer, ShortConv):
            return self.short_convolution(index, mixer, normed)
        if isinstance(mixer, Mamba2):
            return self.mamba2(index, mixer, normed)
        return self.delta_net(index, mixer, normed)

    def short_convolution(self, index: int, mixer: ShortConv, normed: str) -> str:
        graph, parts = self.graph, [mixer.b, mixer.c, mixer.x]
        b, c, x = self.products.split_linear(normed, parts, "bcx", "bcx")
        entering = graph.op("Mul", [b, x], "entering")
        convolved = self.convolved(index, mixer.kernel, entering, has_bias=bool(mixer.bias))
        return graph.op("Mul", [c, convolved], "context")

    def delta_net(self, index: int, mixer: DeltaNet, normed: str) -> str:
        graph, parts = self.graph, [mixer.q, mixer.k, mixer.v, mixer.z]
        product = self.products.linear(normed, parts, "qkvz")
        entering, z = graph.named("entering"), graph.named("z")
        sizes = graph.constant(mixer.q.rows + mixer.k.rows + mixer.v.rows, mixer.z.rows)
        graph.node("Split", [product, sizes], [entering, z], graph.named("split"), axis=-1)
        passed = self.convolved(index, mixer.kernel, entering, has_bias=False, activation="silu")
        if self.products.variant.fuses_delta_nets:
            output = self.fused_delta_net(index, mixer, passed, normed)
        else:
            output = self.plain_delta_net(index, mixer, passed, normed)
        output = self.norms.heads(output, mixer.norm, mixer.value_heads, mixer.value_dim)
        return graph.op("Mul", [output, graph.op("QuickGelu", [z], "z.silu", MICROSOFT, alpha=1.0)], "context")

    def fused_delta_net(self, index: int, mixer: DeltaNet, passed: str, normed: str) -> str:
        """The delta rule with norms and gates as one operator, [B, T, heads, size]. passed: queries, keys, values."""
        graph, mlps = self.graph, self.mlps
        decay, beta = (mlps.product(normed, part, f"{name}.product")
                       for part, name in ((mixer.decay, "decay"), (mixer.beta, "beta")))  # fmt: skip
        if mixer.allow_neg_eigval:
            beta = self.update_rate(mixer, beta)
        rates = [graph.stored([decay_name(index, kind)]) for kind in ("log_decay", "decay_bias")]
        output, (past, present) = graph.named("found"), self.products.variant.states("recurrent", index)
        graph.node(
            "GatedDeltaNet",
            [passed, "", "", "", decay, beta, past, *rates],
            [output, present],
            output,
            MICROSOFT,
            scale=mixer.key_dim**-0.5,
            update_rule="gated_delta",
            gate_activation="qwen",
            beta_activation="none" if mixer.allow_neg_eigval else "sigmoid",
            qk_l2_norm=1,
        )
        return output

    def plain_delta_net(self, index: int, mixer: DeltaNet, passed: str, normed: str) -> str:
        """The same with norms and gates by operators of their own, [B, T, heads * size]."""
        graph = self.graph
        q, k, v = (graph.named(part) for part in ("q", "k", "v"))
        sizes = graph.constant(mixer.q.rows, mixer.k.rows, mixer.v.rows)
        graph.node("Split", [passed, sizes], [q, k, v], graph.named("qkv.split"), axis=-1)
        q, k = (self.of_length_one(x, mixer.key_heads, mixer.key_dim) for x in (q, k))
        decay, beta = self.gates(index, mixer, normed)
        output, (past, present) = graph.named("found"), self.products.variant.states("recurrent", index)
        graph.node(
            "LinearAttention",
            [q, k, v, past, decay, beta],
            [output, present],
            output,
            MICROSOFT,
            q_num_heads=mixer.key_heads,
            kv_num_heads=mixer.value_heads,
            scale=mixer.key_dim**-0.5,
            update_rule="gated_delta",
        )
        return output

    def mamba2(self, index: int, mixer: Mamba2, normed: str) -> str:
        graph, parts, heads = self.graph, [mixer.x, mixer.b, mixer.c], mixer.heads
        product = self.products.linear(normed, [*parts, mixer.z], "xbcz")
        entering, x, b, c, z = (graph.named(part) for part in ("entering", "x", "b", "c", "z"))
        rows = [part.rows for part in parts]
        graph.node("Split", [product, graph.constant(sum(rows), mixer.z.rows)], [entering, z], graph.named("split"),
                   axis=-1)  # fmt: skip
        passed = self.convolved(index, mixer.kernel, entering, has_bias=bool(mixer.bias), activation="silu")
        graph.node("Split", [passed, graph.constant(*rows)], [x, b, c], graph.named("xbc.split"), axis=-1)
        single = self.step(index, "step", self.mlps.product(normed, mixer.step, "step.product"))
        step, decay = self.mlps.activations(single, "step.activations"), self.decay(index, single)
        by_head, flat = graph.constant(0, 0, heads, mixer.head_dim), graph.constant(0, 0, heads * mixer.head_dim)
        values = graph.op("Reshape", [x, by_head], "x.by_head")
        each = graph.op("Unsqueeze", [step, graph.constant(-1)], "step.apart")
        entering = graph.op("Reshape", [graph.op("Mul", [values, each], "x.stepped"), flat], "x.flat")
        output, (past, present) = graph.named("found"), self.products.variant.states("recurrent", index)
        graph.node(
            "LinearAttention",
            [c, b, entering, past, decay],
            [output, present],
            output,
            MICROSOFT,
            q_num_heads=mixer.groups,
            kv_num_heads=heads,
            scale=1.0,
            update_rule="gated",
        )
        entry = decay_name(index, "skip")
        shares = graph.cast(graph.stored([entry], shape=(heads, 1), name=entry))
        skipped = graph.op("Mul", [values, shares], "x.skipped")
        total = graph.op("Add", [output, graph.op("Reshape", [skipped, flat], "skipped")], "context.total")
        gated = graph.op("Mul", [total, graph.op("QuickGelu", [z], "z.silu", MICROSOFT, alpha=1.0)], "context.gated")
        if mixer.norm is None:
            return gated
        if mixer.groups > 1:
            return self.norms.heads(gated, mixer.norm, mixer.groups, mixer.norm.size)
        return self.norms.plain(gated, mixer.norm, "context")

    def of_length_one(self, x: str, heads: int, size: int) -> str:
        """Each head divided by its length: the root of the mean square, times that of the size."""
        graph = self.graph
        split = graph.op("Reshape", [x, graph.constant(0, 0, heads, size)], f"{x}.heads")
        weight = graph.floats(np.full(size, size**-0.5, graph.activations), f"constant.inverse_root.{size}")
        normed = graph.op("SimplifiedLayerNormalization", [split, weight], f"{x}.length_one", axis=-1,
                          epsilon=LENGTH_EPSILON / size, stash_type=1)  # fmt: skip
        return graph.op("Reshape", [normed, graph.constant(0, 0, heads * size)], f"{x}.flat")

    def gates(self, index: int, mixer: DeltaNet, normed: str) -> tuple[str, str]:
        """The logarithm of what is kept of the state of each head, and the share of what is new, [B, T, heads]."""
        mlps = self.mlps
        step = self.step(index, "decay", mlps.product(normed, mixer.decay, "decay.product"))
        beta = self.update_rate(mixer, mlps.product(normed, mixer.beta, "beta.product"))
        return self.decay(index, step), mlps.activations(beta, "beta")

    def update_rate(self, mixer: DeltaNet, product: str) -> str:
        """Beta, the share of what is new, [B, T, heads] in float32."""
        graph = self.graph
        beta = graph.op("Sigmoid", [product], "beta.single")
        return graph.op("Mul", [beta, graph.single(2.0)], "beta.twice") if mixer.allow_neg_eigval else beta

    def step(self, index: int, kind: str, product: str) -> str:
        """A positive number for each head, [B, T, heads] in float32."""
        biased = self.graph.op("Add", [product, self.graph.stored([decay_name(index, f"{kind}_bias")])], "step.biased")
        return self.graph.op("Softplus", [biased], "step")

    def decay(self, index: int, step: str) -> str:
        """The logarithm of what is kept of the state of each head, [B, T, heads]."""
        graph = self.graph
        rate = graph.op("Exp", [graph.stored([decay_name(index, "log_decay")])], "decay.rate")
        product = graph.op("Mul", [step, graph.op("Neg", [rate], "decay.negative")], "decay.single")
        return self.mlps.activations(product, "decay")

    def convolved(self, index: int, kernel: int, x: str, *, has_bias: bool, activation: str = "none") -> str:
        """Each value of x [B, T, values] with those of the tokens before it."""
        graph = self.graph
        entry = convolution_name(index, "weight")
        weight = graph.stored([entry], shape=(graph.size(entry) // kernel, 1, kernel), name=entry)
        bias = graph.cast(graph.stored([convolution_name(index, "bias")])) if has_bias else ""
        past, present = self.products.variant.states("conv", index)
        if self.products.variant.convolves_by_taps:
            return self.by_taps(x, kernel, weight, bias, past, present, activation=activation)
        name = graph.named("convolved")
        inputs = [x, graph.cast(weight), bias, past]
        graph.node(
            "CausalConvWithState", inputs, [name, present], name, MICROSOFT, channels_last=1, activation=activation
        )
        return name

    def by_taps(self, x: str, kernel: int, weight: str, bias: str, past: str, present: str, *, activation: str) -> str:
        """CausalConvWithState of x [B, T, values] by a product for each tap. weight: [values, 1, kernel]."""
        graph = self.graph
        taps = [graph.named(f"tap.{place}.weight") for place in range(kernel)]
        rows = graph.op("Transpose", [weight], "taps", perm=[2, 1, 0])
        graph.node("Split", [rows], taps, graph.named("taps.each"), axis=0, num_outputs=kernel)
        seen = graph.op("Concat", [past, x], "convolved.seen", axis=1)
        axis, end = graph.constant(1), graph.constant(2**31)
        graph.node("Slice", [seen, graph.constant(1 - kernel), end, axis], [present], present)
        total = bias
        for place, tap in enumerate(taps):
            last = graph.constant(place + 1 - kernel) if place < kernel - 1 else end
            shifted = graph.op("Slice", [seen, graph.constant(place), last, axis], f"tap.{place}.seen")
            product = graph.op("Mul", [shifted, tap], f"tap.{place}.product")
            total = graph.op("Add", [total, product], f"tap.{place}.sum") if total else product
        return total if activation == "none" else graph.op("QuickGelu", [total], "convolved", MICROSOFT, alpha=1.0)
