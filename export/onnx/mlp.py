"""Mlps and mixtures of experts in an ONNX graph.

An expert computes the tokens that it was chosen for, and nothing when there are none: its tokens are gathered, and what
it makes of them is added in their places. Standard operators, so that every provider has them.
"""

from __future__ import annotations

from onnx import TensorProto

from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.export.onnx.linear import Products
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture import Linear, Mlp, Moe
from embedllm.package.tensors import alpha_name, expert_scales_name, experts_bias_name, score_correction_name

# by the name that embedllm/package/architecture.py has: the operator, its domain, its attributes
_ACTIVATIONS: dict[str, tuple[str, str, dict[str, float]]] = {
    "silu": ("QuickGelu", MICROSOFT, {"alpha": 1.0}),
    "gelu": ("Gelu", MICROSOFT, {}),
    "gelu_tanh": ("FastGelu", MICROSOFT, {}),
    "relu": ("Relu", "", {}),
    "relu2": ("Relu", "", {}),
}
_TINY = 1e-20  # what is added to the sum of weights, as transformers does


class Mlps:
    """Writes mlps into a graph."""

    def __init__(self, products: Products) -> None:
        self.graph: Graph = products.graph
        self.products = products
        self.norms = Norms(self.graph)

    def write(self, index: int, mlp: Mlp | Moe, x: str) -> str:
        """What the mlp of a layer makes of x [B, T, hidden]."""
        return self.mlp(mlp, x) if isinstance(mlp, Mlp) else self.moe(index, mlp, x)

    def mlp(self, mlp: Mlp, x: str) -> str:
        if mlp.gate is None:
            return self.products.linear(self.bent(mlp, self.products.linear(x, [mlp.up], "up")), [mlp.down], "down")
        gate, up = self.products.linear(x, [mlp.gate], "gate"), self.products.linear(x, [mlp.up], "up")
        gate = self.beyond(gate, mlp.sparsity_cutoff) if mlp.sparsity_cutoff else gate
        graph = self.graph
        if mlp.swiglu_limit:
            gate = graph.op("Min", [gate, graph.number(mlp.swiglu_limit)], "gate.limited")
            up = graph.op("Clip", [up, graph.number(-mlp.swiglu_limit), graph.number(mlp.swiglu_limit)], "up.limited")
        if mlp.up_offset:
            up = graph.op("Add", [up, graph.number(mlp.up_offset)], "up.offset")
        gated = graph.op("Mul", [self.bent(mlp, gate), up], "gated")
        return self.products.linear(gated, [mlp.down], "down")

    def beyond(self, x: str, cutoff: float) -> str:
        """By how much values exceed mean + N standard deviations; these in float32, squares are large."""
        graph, single = self.graph, self.single(x, "cut.single")
        mean = graph.op("ReduceMean", [single, graph.constant(-1)], "cut.mean", keepdims=1)
        centred = graph.op("Sub", [single, mean], "cut.centred")
        square = graph.op("Mul", [centred, centred], "cut.square")
        variance = graph.op("ReduceMean", [square, graph.constant(-1)], "cut.variance", keepdims=1)
        least = graph.op("Mul", [graph.op("Sqrt", [variance], "cut.deviation"), graph.single(cutoff)], "cut.least")
        more = graph.op("Relu", [graph.op("Sub", [centred, least], "cut.difference")], "cut.more")
        return self.activations(more, "cut")

    def bent(self, mlp: Mlp, x: str) -> str:
        return self.xielu(mlp, x) if mlp.xielu_alphas else self.active(mlp.activation, x, slope=mlp.swiglu_alpha)

    def active(self, activation: str, x: str, *, slope: float = 1.0) -> str:
        """x through the activation of that name. slope: of Mlp."""
        kind, domain, attributes = _ACTIVATIONS[activation]
        if slope != 1:
            attributes = {"alpha": slope}
        active = self.graph.op(kind, [x], "silu" if activation == "silu" else "active", domain, **attributes)
        return self.graph.op("Mul", [active, active], "squared") if activation == "relu2" else active

    def xielu(self, mlp: Mlp, x: str) -> str:
        """p * relu(x)**2 + n * (elu(x) - x) + x / 2."""
        graph = self.graph
        positive, negative = (
            graph.op("Softplus", [graph.stored([alpha_name(mlp, part)])], part) for part in ("alpha_p", "alpha_n")
        )
        negative = graph.op("Add", [negative, graph.single(0.5)], "alpha_n.plus_half")
        above = graph.op("Relu", [x], "above")
        square = graph.op("Mul", [above, above], "square")
        bent = graph.op("Sub", [graph.op("Elu", [x], "elu"), x], "bent")
        right = graph.op("Mul", [square, self.activations(positive, "p")], "right")
        left = graph.op("Mul", [bent, self.activations(negative, "n")], "left")
        curve = graph.op("Add", [right, left], "curve")
        return graph.op("Add", [curve, graph.op("Mul", [x, graph.number(0.5)], "half")], "active")

    def moe(self, index: int, moe: Moe, x: str) -> str:
        graph, scope = self.graph, self.graph.scope
        hidden = moe.router.columns
        norms, stream = moe.norms, x
        x = x if norms is None else self.norms.plain(x, norms.experts, "experts.norm")
        tokens = graph.op("Reshape", [x, graph.constant(-1, hidden)], "tokens")
        read = tokens
        if norms is not None:
            read = self.norms.plain(stream, norms.router, "router.norm")
            read = graph.op("Reshape", [read, graph.constant(-1, hidden)], "router.tokens")
        weights = self.weights(index, moe, read)
        total = self.single(graph.op("Mul", [tokens, graph.number(0)], "none"), "none.single")
        for number, expert in enumerate(moe.experts):
            graph.scope = f"{scope}.experts.{number}"
            total = self.expert(expert, number, tokens, weights, total, scales_input=moe.scales_input)
        graph.scope = scope
        shape = graph.op("Shape", [x], "mlp.shape")
        if moe.bias:
            total = graph.op("Add", [total, graph.stored([experts_bias_name(index)])], "total.biased")
        mixed = graph.op("Reshape", [self.activations(total, "total"), shape], "mixed")
        if moe.shared is None:
            return mixed
        graph.scope = f"{scope}.shared"
        if norms is not None:
            made = self.mlp(moe.shared, self.norms.plain(stream, norms.shared, "norm"))
            made = self.norms.plain(made, norms.shared_post, "post_norm")
            graph.scope = scope
            return graph.op("Add", [self.norms.plain(mixed, norms.experts_post, "experts.post_norm"), made], "all")
        made = self.mlp(moe.shared, x)
        if moe.shared_gate is not None:
            share = graph.op("Sigmoid", [self.product(x, moe.shared_gate, "share.product")], "share")
            made = graph.op("Mul", [made, self.activations(share, "share.activations")], "weighed")
        graph.scope = scope
        return graph.op("Add", [mixed, made], "all")

    def expert(self, expert: Mlp, number: int, tokens: str, weights: str, total: str, *, scales_input: bool) -> str:
        """The sum [N, hidden] with what one expert adds to its tokens, in float32: the CPU adds no float16 (1.31)."""
        graph = self.graph
        weight = graph.op("Gather", [weights, graph.constant(number, scalar=True)], "weight", axis=1)  # [N]
        found = graph.op("NonZero", [weight], "found")  # [1, n]
        places = graph.op("Transpose", [found], "places", perm=[1, 0])  # [n, 1]
        flat = graph.op("Squeeze", [found, graph.constant(0)], "flat")
        rows = graph.op("Gather", [tokens, flat], "rows", axis=0)
        shares = graph.op("Gather", [weight, flat], "shares", axis=0)
        share = graph.op("Unsqueeze", [shares, graph.constant(1)], "share")
        if scales_input:
            rows = graph.op("Mul", [rows, share], "rows.weighed")
        has_minimums = any(
            self.products.packing[part.name].has_minimum for part in (expert.gate, expert.up, expert.down) if part
        )
        if has_minimums:  # the sums of groups are written for three dimensions
            rows = graph.op("Unsqueeze", [rows, graph.constant(0)], "rows.apart")
        made = self.mlp(expert, rows)
        if has_minimums:
            made = graph.op("Squeeze", [made, graph.constant(0)], "made.flat")
        if not scales_input:
            made = graph.op("Mul", [made, share], "weighed")
        added = self.single(made, "weighed.single")
        return graph.op("ScatterND", [total, places, added], "sum", reduction="add")

    def weights(self, index: int, moe: Moe, tokens: str) -> str:
        """The weight of each expert for each token, [N, experts]; 0 for those that were not chosen."""
        graph = self.graph
        routed = self.product(tokens, moe.router, "router")
        if moe.router_multiplier != 1:
            routed = graph.op("Mul", [routed, graph.single(moe.router_multiplier)], "router.multiplied")
        scores = routed
        if moe.scoring_func == "softmax":
            scores = graph.op("Softmax", [routed], "scores", axis=-1)
        elif moe.scoring_func == "sigmoid":
            scores = graph.op("Sigmoid", [routed], "scores")
        choosing = scores
        if moe.score_correction_bias:
            choosing = graph.op("Add", [scores, graph.stored([score_correction_name(index)])], "choosing")
        if moe.groups > 1:
            choosing = self.of_best_groups(moe, choosing)
        chosen = graph.named("chosen")
        graph.node("TopK", [choosing, graph.constant(moe.top_k)], [f"{chosen}.scores", chosen], chosen, axis=-1)
        best = graph.op("GatherElements", [scores, chosen], "best", axis=1)
        if moe.scoring_func == "softmax_topk":
            best = graph.op("Softmax", [best], "best.softmax", axis=-1)
        if moe.norm_topk:
            total = graph.op("ReduceSum", [best, graph.constant(-1)], "best.sum", keepdims=1)
            total = graph.op("Add", [total, graph.single(_TINY)], "best.sum.epsilon")
            best = graph.op("Div", [best, total], "best.normalised")
        if moe.scale != 1:
            best = graph.op("Mul", [best, graph.single(moe.scale)], "best.scaled")
        none = graph.op("Mul", [routed, graph.single(0.0)], "unchosen")
        weights = graph.op("ScatterElements", [none, chosen, best], "weights", axis=1)
        if moe.expert_scales:
            weights = graph.op("Mul", [weights, graph.stored([expert_scales_name(index)])], "weights.scaled")
        return self.activations(weights, "weights.activations")

    def of_best_groups(self, moe: Moe, choosing: str) -> str:
        """The scores of the experts of the best groups, and the lowest number for the others."""
        graph, size = self.graph, len(moe.experts) // moe.groups
        split = graph.op("Reshape", [choosing, graph.constant(0, moe.groups, size)], "by_group")
        counted = graph.named("group_scores")
        most = 2 if moe.score_correction_bias else 1
        graph.node("TopK", [split, graph.constant(most)], [f"{counted}.best", f"{counted}.at"], counted, axis=-1)
        of_group = graph.op("ReduceSum", [f"{counted}.best", graph.constant(-1)], "group_sums", keepdims=0)
        taken = graph.named("groups")
        graph.node("TopK", [of_group, graph.constant(moe.top_k_groups)], [f"{taken}.sums", taken], taken, axis=-1)
        zeros = graph.op("Mul", [of_group, graph.single(0.0)], "no_group")
        ones = graph.op("Pow", [f"{taken}.sums", graph.single(0.0)], "ones")
        is_taken = graph.op("ScatterElements", [zeros, taken, ones], "taken", axis=1)
        apart = graph.op("Unsqueeze", [is_taken, graph.constant(-1)], "taken.apart")
        mask = graph.op("Cast", [apart], "mask", to=TensorProto.BOOL)
        kept = graph.op("Where", [mask, split, graph.single(-3e38)], "kept")
        return graph.op("Reshape", [kept, graph.constant(0, len(moe.experts))], "choosing.grouped")

    def product(self, x: str, matrix: Linear, name: str) -> str:
        """x times a small matrix, in float32 whatever the activations are: choices hang on little."""
        graph, x = self.graph, self.single(x, f"{name}.input")
        transposed = graph.op("Transpose", [graph.stored([f"{matrix.name}.weight"])], f"{name}.transposed", perm=[1, 0])
        product = graph.op("MatMul", [x, transposed], f"{name}.product" if matrix.bias else name)
        return graph.op("Add", [product, graph.stored([f"{matrix.name}.bias"])], name) if matrix.bias else product

    def single(self, x: str, name: str) -> str:
        """A value of the activations' type as float32."""
        is_single = self.graph.activations == "float32"
        return x if is_single else self.graph.op("Cast", [x], name, to=FLOAT_TYPES["float32"])

    def activations(self, x: str, name: str) -> str:
        """A float32 value in the type of the activations."""
        to = FLOAT_TYPES[self.graph.activations]
        return x if self.graph.activations == "float32" else self.graph.op("Cast", [x], name, to=to)
