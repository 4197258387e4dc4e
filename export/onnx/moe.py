"""Mixtures of experts in an ONNX graph: by standard operators, which every provider has, or by one for the CPU.

An expert computes the tokens that it was chosen for, and nothing when there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from embedllm.export.onnx.builder import FLOAT_TYPES, Graph
from embedllm.export.onnx.fused_experts import FusedExperts
from embedllm.export.onnx.mlp import Mlps
from embedllm.export.onnx.norms import Norms
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Linear
from embedllm.package.tensors import expert_scales_name, experts_bias_name, score_correction_name

_TINY = 1e-20  # what is added to the sum of weights, as transformers does


def feed_forward(mlps: Mlps, index: int, mlp: Mlp | Moe, x: str) -> str:
    """What the mlp or mixture of a layer makes of x [B, T, hidden]."""
    return mlps.mlp(mlp, x) if isinstance(mlp, Mlp) else Mixtures(mlps).write(index, mlp, x)


@dataclass(frozen=True, slots=True)
class Choice:
    """Values of a graph: which experts compute N tokens."""

    scores: str  # float32 [N, experts], of all of them
    weights: str  # float32 [N, top_k], of the chosen
    experts: str  # int64 [N, top_k], their numbers


class Mixtures:
    """Writes mixtures into a graph."""

    def __init__(self, mlps: Mlps) -> None:
        self.graph: Graph = mlps.graph
        self.mlps, self.products = mlps, mlps.products
        self.norms = Norms(self.graph)

    def write(self, index: int, moe: Moe, x: str) -> str:
        """The sum of the chosen experts, and of the shared one, of x [B, T, hidden]."""
        graph, scope = self.graph, self.graph.scope
        hidden = moe.router.columns
        norms, stream = moe.norms, x
        x = x if norms is None else self.norms.plain(x, norms.experts, "experts.norm")
        tokens = graph.op("Reshape", [x, graph.constant(-1, hidden)], "tokens")
        router_input = tokens
        if norms is not None:
            router_input = self.norms.plain(stream, norms.router, "router.norm")
            router_input = graph.op("Reshape", [router_input, graph.constant(-1, hidden)], "router.tokens")
        total = self.total(index, moe, tokens, router_input)
        shape = graph.op("Shape", [x], "mlp.shape")
        mixed = graph.op("Reshape", [total, shape], "mixed")
        if moe.shared is None:
            return mixed
        graph.scope = f"{scope}.shared"
        if norms is not None:
            output = self.mlps.mlp(moe.shared, self.norms.plain(stream, norms.shared, "norm"))
            output = self.norms.plain(output, norms.shared_post, "post_norm")
            graph.scope = scope
            return graph.op("Add", [self.norms.plain(mixed, norms.experts_post, "experts.post_norm"), output], "all")
        output = self.mlps.mlp(moe.shared, x)
        if moe.shared_gate is not None:
            share = graph.op("Sigmoid", [self.mlps.product(x, moe.shared_gate, "share.product")], "share")
            output = graph.op("Mul", [output, self.mlps.activations(share, "share.activations")], "weighed")
        graph.scope = scope
        return graph.op("Add", [mixed, output], "all")

    def total(self, index: int, moe: Moe, tokens: str, router_input: str) -> str:
        """What the chosen experts make of tokens [N, hidden], in the activations' type."""
        graph, packing, variant = self.graph, self.products.packing, self.products.variant
        fused = FusedExperts(graph, packing, moe, variant.accuracy_level) if variant.fuses_experts else None
        if fused is None or not fused.fits:
            sums = self.sorted_sum if variant.splits_rows else self.scattered_sum
            total = sums(moe, tokens, self.chosen(index, moe, router_input))
        elif fused.chooses_alike:
            return fused.sum_of_best(tokens, self.routed(moe, router_input))
        else:
            choice = self.chosen(index, moe, router_input)
            total = fused.sum(tokens, choice.scores, choice.weights, choice.experts)
        if moe.bias:
            total = graph.op("Add", [total, graph.stored([experts_bias_name(index)])], "total.biased")
        return self.mlps.activations(total, "total")

    def sorted_sum(self, moe: Moe, tokens: str, choice: Choice) -> str:
        """The weighted sum of what the chosen experts make of tokens [N, hidden], by standard operators, in float32.

        A slot is a token and one of its experts. Slots are sorted by expert, so that each expert computes its rows in
        one piece. All but the matmuls is done for all experts together: any other operator of one expert is hundreds
        of nodes, which cost more than the matmuls (docs/families.md).
        """
        graph, hidden = self.graph, moe.router.columns
        of_slot = graph.op("Reshape", [choice.experts, graph.constant(-1)], "slots.expert")
        count = graph.op("Shape", [of_slot], "slots.count")
        slots = self.ascending(of_slot, count, "slots")
        counts = self.counts(of_slot, len(moe.experts))
        places = graph.op("Unsqueeze", [slots, graph.constant(0)], "slots.places")  # [1, N * top_k]
        token = graph.op("Div", [places, graph.constant(moe.top_k)], "slots.token")
        rows = graph.op("Gather", [tokens, token], "slots.rows", axis=0)  # [1, N * top_k, hidden]
        if moe.scales_input:
            flat = graph.op("Reshape", [choice.weights, graph.constant(-1, 1)], "weights.flat")
            own = graph.op("Gather", [flat, places], "slots.weight", axis=0)
            rows = graph.op("Mul", [rows, self.mlps.activations(own, "slots.share")], "slots.weighed")
        expert_rows = self.rows_of_experts(moe, rows, counts)
        back = self.ascending(slots, count, "slots.back")
        in_order = graph.op("Gather", [expert_rows, back], "experts.in_order", axis=1)
        apart = graph.op("Reshape", [in_order, graph.constant(-1, moe.top_k, hidden)], "experts.of_token")
        apart = self.mlps.single(apart, "experts.single")
        if not moe.scales_input:
            share = graph.op("Unsqueeze", [choice.weights, graph.constant(-1)], "weights.apart")
            apart = graph.op("Mul", [apart, share], "experts.weighed")
        return graph.op("ReduceSum", [apart, graph.constant(1)], "experts.sum", keepdims=0)

    def ascending(self, numbers: str, count: str, name: str) -> str:
        """Where the numbers [n] lie, the least first; as floats, which every provider sorts."""
        places = self.graph.named(name)
        floats = self.graph.op("Cast", [numbers], f"{places}.floats", to=FLOAT_TYPES["float32"])
        self.graph.node("TopK", [floats, count], [f"{places}.sorted", places], places, axis=0, largest=0)
        return places

    def counts(self, of_slot: str, experts: int) -> str:
        """How many slots each expert has, [experts]. of_slot: [n], the expert of each."""
        graph = self.graph
        numbers = graph.table(np.arange(experts)[:, None], f"constant.column.{experts}")
        is_of = graph.op("Equal", [numbers, of_slot], "slots.is_of")  # [experts, n]
        ones = graph.op("Cast", [is_of], "slots.ones", to=FLOAT_TYPES["float32"])
        summed = graph.op("ReduceSum", [ones, graph.constant(1)], "slots.summed", keepdims=0)
        return graph.op("Cast", [summed], "slots.counts", to=TensorProto.INT64)

    def rows_of_experts(self, moe: Moe, rows: str, counts: str) -> str:
        """What experts make of rows [1, n, hidden], which are sorted by expert. counts: [experts], of their rows."""
        one, experts = moe.experts[0], len(moe.experts)
        parts = self.by_counts(rows, counts, experts, "up")
        active = self.by_expert([expert.up for expert in moe.experts], parts, "up")
        if one.gate is None:
            active = self.mlps.bent(one, active)
        else:
            gates = [expert.gate for expert in moe.experts if expert.gate is not None]
            active = self.mlps.gated(one, self.by_expert(gates, parts, "gate"), active)
        parts = self.by_counts(active, counts, experts, "down")
        return self.by_expert([expert.down for expert in moe.experts], parts, "down")

    def by_counts(self, rows: str, counts: str, experts: int, name: str) -> list[str]:
        """The rows of each expert."""
        whole = self.graph.named(f"experts.{name}.rows")
        parts = [f"{whole}.{number}" for number in range(experts)]
        self.graph.node("Split", [rows, counts], parts, whole, axis=1)
        return parts

    def by_expert(self, matrices: Sequence[Linear], parts: Sequence[str], name: str) -> str:
        """The products of each expert's rows and its matrix, one expert's behind the other's."""
        graph, scope = self.graph, self.graph.scope
        whole = graph.named(f"experts.{name}")
        outputs: list[str] = []
        for number, (part, matrix) in enumerate(zip(parts, matrices, strict=True)):
            graph.scope = f"{scope}.experts.{number}"
            outputs.append(self.products.linear(part, [matrix], name))
        graph.scope = scope
        graph.node("Concat", outputs, [whole], whole, axis=1)
        return whole

    def scattered_sum(self, moe: Moe, tokens: str, choice: Choice) -> str:
        """As sorted_sum(): each expert gathers its tokens, and adds what it makes of them in their places."""
        graph, scope = self.graph, self.graph.scope
        none = graph.op("Mul", [choice.scores, graph.single(0.0)], "unchosen")
        weights = graph.op("ScatterElements", [none, choice.experts, choice.weights], "weights", axis=1)
        weights = self.mlps.activations(weights, "weights.activations")
        total = self.mlps.single(graph.op("Mul", [tokens, graph.number(0)], "none"), "none.single")
        for number, expert in enumerate(moe.experts):
            graph.scope = f"{scope}.experts.{number}"
            total = self.expert(expert, number, tokens, weights, total, scales_input=moe.scales_input)
        graph.scope = scope
        return total

    def expert(self, expert: Mlp, number: int, tokens: str, weights: str, total: str, *, scales_input: bool) -> str:
        """The sum [N, hidden] with what one expert adds to its tokens, in float32: the CPU adds no float16 (1.31)."""
        graph = self.graph
        weight = graph.op("Gather", [weights, graph.constant(number, scalar=True)], "weight", axis=1)  # [N]
        indices = graph.op("NonZero", [weight], "found")  # [1, n]
        places = graph.op("Transpose", [indices], "places", perm=[1, 0])  # [n, 1]
        flat = graph.op("Squeeze", [indices, graph.constant(0)], "flat")
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
        output = self.mlps.mlp(expert, rows)
        if has_minimums:
            output = graph.op("Squeeze", [output, graph.constant(0)], "made.flat")
        if not scales_input:
            output = graph.op("Mul", [output, share], "weighed")
        added = self.mlps.single(output, "weighed.single")
        return graph.op("ScatterND", [total, places, added], "sum", reduction="add")

    def routed(self, moe: Moe, tokens: str) -> str:
        """The router's logits of tokens [N, hidden], float32 [N, experts]."""
        graph = self.graph
        routed = self.mlps.product(tokens, moe.router, "router")
        if moe.router_multiplier != 1:
            routed = graph.op("Mul", [routed, graph.single(moe.router_multiplier)], "router.multiplied")
        return routed

    def chosen(self, index: int, moe: Moe, tokens: str) -> Choice:
        """The experts of each of the tokens [N, hidden]."""
        graph = self.graph
        scores = routed = self.routed(moe, tokens)
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
        elif moe.scoring_func == "sparsemixer":
            best = self.sparse_mixer(moe, routed, best, chosen)
        if moe.norm_topk:
            total = graph.op("ReduceSum", [best, graph.constant(-1)], "best.sum", keepdims=1)
            total = graph.op("Add", [total, graph.single(_TINY)], "best.sum.epsilon")
            best = graph.op("Div", [best, total], "best.normalised")
        if moe.scale != 1:
            best = graph.op("Mul", [best, graph.single(moe.scale)], "best.scaled")
        if moe.expert_scales:
            own = graph.op("Gather", [graph.stored([expert_scales_name(index)]), chosen], "best.scales", axis=0)
            best = graph.op("Mul", [best, own], "best.by_expert")
        return Choice(scores, best, chosen)

    def sparse_mixer(self, moe: Moe, routed: str, best: str, chosen: str) -> str:
        """The weights of the chosen [N, top_k]. routed: all logits; best: those of the chosen, the best first."""
        graph, left, weights = self.graph, routed, list[str]()
        sizes = graph.op("Abs", [routed], "sizes")
        numbers = graph.table(np.arange(len(moe.experts))[None], f"constant.row.{len(moe.experts)}")
        for rank in range(moe.top_k):
            if rank:
                before = graph.op("Gather", [chosen, graph.constant(rank - 1)], f"rank.{rank}.before", axis=1)
                is_before = graph.op("Equal", [numbers, before], f"rank.{rank}.is_before")
                left = graph.op("Where", [is_before, graph.single(-3e38), left], f"rank.{rank}.left")
            logit = graph.op("Gather", [best, graph.constant(rank)], f"rank.{rank}.logit", axis=1)  # [N, 1]
            largest = graph.op("Max", [sizes, logit], f"rank.{rank}.largest")
            most = graph.op("Mul", [largest, graph.single(2 * moe.jitter_eps)], f"rank.{rank}.most")
            below = graph.op("Sub", [logit, routed], f"rank.{rank}.below")
            is_far = graph.op("Greater", [below, most], f"rank.{rank}.is_far")
            parts = graph.op("Exp", [graph.op("Sub", [left, logit], f"rank.{rank}.logits")], f"rank.{rank}.parts")
            parts = graph.op("Where", [is_far, graph.single(0.0), parts], f"rank.{rank}.near")
            total = graph.op("ReduceSum", [parts, graph.constant(-1)], f"rank.{rank}.sum", keepdims=1)
            weights.append(graph.op("Reciprocal", [total], f"rank.{rank}.weight"))
        return graph.op("Concat", weights, "best.weights", axis=1)

    def of_best_groups(self, moe: Moe, choosing: str) -> str:
        """The scores of the experts of the best groups, and the lowest number for the others."""
        graph, size = self.graph, len(moe.experts) // moe.groups
        split = graph.op("Reshape", [choosing, graph.constant(0, moe.groups, size)], "by_group")
        counted = graph.named("group_scores")
        most = 2 if moe.score_correction_bias else 1
        graph.node("TopK", [split, graph.constant(most)], [f"{counted}.best", f"{counted}.at"], counted, axis=-1)
        of_group = graph.op("ReduceSum", [f"{counted}.best", graph.constant(-1)], "group_sums", keepdims=0)
        groups = graph.named("groups")
        graph.node("TopK", [of_group, graph.constant(moe.top_k_groups)], [f"{groups}.sums", groups], groups, axis=-1)
        zeros = graph.op("Mul", [of_group, graph.single(0.0)], "no_group")
        ones = graph.op("Pow", [f"{groups}.sums", graph.single(0.0)], "ones")
        is_taken = graph.op("ScatterElements", [zeros, groups, ones], "taken", axis=1)
        apart = graph.op("Unsqueeze", [is_taken, graph.constant(-1)], "taken.apart")
        mask = graph.op("Cast", [apart], "mask", to=TensorProto.BOOL)
        best_scores = graph.op("Where", [mask, split, graph.single(-3e38)], "kept")
        return graph.op("Reshape", [best_scores, graph.constant(0, len(moe.experts))], "choosing.grouped")
