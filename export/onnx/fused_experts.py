"""The experts of a layer as one operator, QMoE of ONNX Runtime, over their matrices where these lie.

QMoE reads the matrices of all experts as one tensor, in which the rows of gate and up take turns. The weights file has
those of a kind side by side: down is read as it lies. A Gather puts the rows of gate and up in order; the runtime
folds it when it loads, before it packs the result as it packs every matrix (docs/families.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.weights import Linear
from embedllm.package.graph_variants import qmoe_computes, qmoe_takes
from embedllm.package.packing import Packing

_LEAST, _NEVER = 1e-6, 1000.0  # of a weight that counts; the logit, without its sign, of an expert that is not chosen
_TINY = 1e-30  # in place of a sum of 0
_BLOCK, _GROUPS = 64, (32, 64, 128)  # columns that CUDA's kernels read at once, and of a scale
Runs: TypeAlias = "Sequence[tuple[Linear, ...]]"  # of each expert, the matrices whose rows take turns


class FusedExperts:
    """Writes the experts of one layer. packing: by the name of the matrix; accuracy_level: of GraphVariant."""

    def __init__(self, graph: Graph, packing: Mapping[str, Packing], moe: Moe, accuracy_level: int) -> None:
        self.graph, self.moe, self.accuracy_level = graph, moe, accuracy_level
        self.inner = [(e.up,) if e.gate is None else (e.gate, e.up) for e in moe.experts]
        self.outer = [(e.down,) for e in moe.experts]
        self.packing = packing[moe.experts[0].up.name]
        self.is_alike = all(
            packing[matrix.name] == self.packing for runs in (self.inner, self.outer) for run in runs for matrix in run
        )

    @property
    def fits(self) -> bool:
        """Whether QMoE computes what the experts do (ONNX Runtime 1.32, CPU; 1.31, CUDA), and takes their matrices."""
        graph, expert, packing = self.graph, self.moe.experts[0], self.packing
        is_half = graph.activations == "float16"
        block = math.lcm(packing.group_size, _BLOCK) if is_half else packing.group_size
        return (
            qmoe_computes(self.moe)
            and qmoe_takes(packing)
            and self.is_alike
            and all(matrix.columns % block == 0 for matrix in (expert.up, expert.down))
            # of 8 bits the CPU rounds activations at every level
            and (packing.bits == 4 or self.accuracy_level > 0 or is_half)
            and (not is_half or packing.group_size in _GROUPS)
            and all(  # in folders of earlier versions they are not
                graph.are_neighbours(self.entries(runs, kind))
                for runs in (self.inner, self.outer)
                for kind in self.kinds(runs)
            )
        )

    @property
    def chooses_alike(self) -> bool:
        """Whether the weights of the chosen are the softmax of their logits, as QMoE makes them."""
        moe = self.moe
        sums_to_one = moe.scoring_func == "softmax_topk" or (moe.scoring_func == "softmax" and moe.norm_topk)
        return sums_to_one and not moe.score_correction_bias and moe.groups == 1 and moe.scale == 1 and not moe.bias

    def sum_of_best(self, tokens: str, routed: str) -> str:
        """As sum(), where chooses_alike, in the type of the tokens. routed: [N, experts], the router's logits."""
        graph = self.graph
        if graph.activations == "float32":
            return self.computed(tokens, routed)
        # rounded once it is known which the largest are, and where they are small
        best = graph.named("qmoe.best")
        graph.node("TopK", [routed, graph.constant(self.moe.top_k)], [best, f"{best}.experts"], best, axis=-1)
        first = graph.op("Gather", [best, graph.constant(0)], "qmoe.first", axis=1)  # [N, 1]
        last = graph.op("Gather", [best, graph.constant(self.moe.top_k - 1)], "qmoe.last", axis=1)
        is_less = graph.op("Less", [routed, last], "qmoe.is_less")
        shifted = graph.op("Sub", [routed, first], "qmoe.shifted")
        logits = graph.op("Where", [is_less, graph.single(-_NEVER), shifted], "qmoe.logits")
        return self.computed(tokens, self.as_activations(logits))

    def sum(self, tokens: str, scores: str, weights: str, experts: str) -> str:
        """The weighted sum of what the chosen experts make of tokens [N, hidden], in float32.

        scores: [N, experts], any finite numbers. weights, experts: [N, top_k], of the chosen, and their numbers.
        """
        graph = self.graph
        # QMoE makes weights of logits, by a softmax over those that it chooses: here over the chosen, whose weights sum
        # to 1 then. It takes weights as such, too, but not on CUDA, which uses the logits all the same (1.31).
        whole = graph.op("ReduceSum", [weights, graph.constant(1)], "qmoe.whole")  # [N, 1]
        some = graph.op("Max", [whole, graph.single(_TINY)], "qmoe.whole.some")  # all weights may be 0
        shares = graph.op("Div", [weights, some], "qmoe.shares")
        logits = graph.op("Log", [graph.op("Max", [shares, graph.single(_LEAST)], "qmoe.shares.some")], "qmoe.logits")
        never = graph.op("Sub", [graph.op("Mul", [scores, graph.single(0.0)], "qmoe.none"), graph.single(_NEVER)],
                         "qmoe.never")  # fmt: skip
        chosen = graph.op("ScatterElements", [never, experts, logits], "qmoe.chosen", axis=1)
        output = self.computed(tokens, self.as_activations(chosen))
        if graph.activations != "float32":
            output = graph.op("Cast", [output], "qmoe.single", to=FLOAT_TYPES["float32"])
        return graph.op("Mul", [output, whole], "qmoe.weighed")

    def computed(self, tokens: str, logits: str) -> str:
        """What QMoE makes of tokens [N, hidden], whose weights are the softmax over the largest logits [N, experts]."""
        graph, expert = self.graph, self.moe.experts[0]
        first, second = (
            {kind: self.rows(runs, kind) for kind in self.kinds(runs)} for runs in (self.inner, self.outer)
        )
        entries = [part.get(kind, "") for part in (first, second) for kind in ("weight", "scale", "bias")]
        # behind what separate gates would take
        zeros = ["", "", "", first["zero"], second["zero"]] if self.packing.stores_zeros else []
        return graph.op(
            "QMoE",
            [tokens, logits, *entries, *zeros],
            "qmoe",
            MICROSOFT,
            k=self.moe.top_k,
            activation_type="swiglu",
            swiglu_fusion=1,
            activation_alpha=expert.swiglu_alpha,
            activation_beta=expert.up_offset,
            **({"swiglu_limit": expert.swiglu_limit} if expert.swiglu_limit else {}),
            expert_weight_bits=self.packing.bits,
            block_size=self.packing.group_size,
            normalize_routing_weights=1,
            accuracy_level=self.accuracy_level,
            weights_prepacked=0,
        )

    def as_activations(self, value: str) -> str:
        """Floats, in the type of the activations."""
        return self.graph.op("Cast", [value], f"{value}.activations", to=FLOAT_TYPES[self.graph.activations])

    def kinds(self, runs: Runs) -> list[str]:
        """What is stored of the matrices."""
        zeros, bias = ["zero"] * self.packing.stores_zeros, ["bias"] * bool(runs[0][0].bias)
        return ["weight", "scale", *zeros, *bias]

    def entries(self, runs: Runs, kind: str) -> list[str]:
        """Those of the matrices in the order of the file: of all gates, then of all ups."""
        return [f"{matrix.name}.{kind}" for matrices in zip(*runs, strict=True) for matrix in matrices]

    def rows(self, runs: Runs, kind: str) -> str:
        """What is stored of the matrices, [experts, rows, ...], where rows of the matrices of one expert take turns."""
        graph, experts, together, size = self.graph, len(runs), len(runs[0]), runs[0][0].rows
        entries = self.entries(runs, kind)
        if together == 1:
            rows = graph.stored_flat(entries, experts, size)
        else:
            within = np.arange(size)[:, None] + np.arange(together) * experts * size
            numbers = graph.outer_sum(np.arange(experts) * size, within.reshape(-1))
            every = graph.stored_flat(entries, experts * together * size)
            rows = graph.op("Gather", [every, numbers], f"qmoe.gates_ups.{kind}", axis=0)
        return self.as_activations(rows) if kind in ("scale", "bias") else rows
