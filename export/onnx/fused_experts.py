"""The experts of a layer as one operator, QMoE of ONNX Runtime, over their matrices where these lie.

QMoE reads the matrices of all experts as one tensor, in which the rows of gate and up take turns. The weights file has
them expert by expert. A Gather over all that lies between the first and the last one puts their rows in QMoE's order;
the runtime folds it when it loads, before it packs the result as it packs every matrix (docs/families.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedllm.export.onnx.builder import FLOAT_TYPES, MICROSOFT, Graph
from embedllm.package.architecture import Linear, Moe
from embedllm.package.graph_variants import qmoe_computes, qmoe_takes
from embedllm.package.packing import Packing

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
        """Whether QMoE (ONNX Runtime 1.32, CPU) computes what the experts do, and can be given their matrices."""
        expert, packing = self.moe.experts[0], self.packing
        return (
            qmoe_computes(self.moe)
            and qmoe_takes(packing)
            and self.is_alike
            and all(matrix.columns % packing.group_size == 0 for matrix in (expert.up, expert.down))
            and (packing.bits == 4 or self.accuracy_level > 0)  # of 8 bits it rounds activations at every level
            and all(self.places(runs, kind) is not None for runs, kind in self.tensors())
        )

    def sum(self, tokens: str, scores: str, weights: str, experts: str) -> str:
        """The weighted sum of what the chosen experts make of tokens [N, hidden], in float32.

        scores: [N, experts], any finite numbers. weights, experts: [N, top_k], of the chosen, and their numbers.
        """
        graph, expert = self.graph, self.moe.experts[0]
        none = graph.op("Mul", [scores, graph.single(0.0)], "qmoe.none")
        own = graph.op("ScatterElements", [none, experts, weights], "qmoe.weights", axis=1)
        # QMoE chooses by a tensor of its own, as a weight may be 0: here 1 for the chosen, 0 for the others
        ones = graph.op("Pow", [weights, graph.single(0.0)], "qmoe.ones")
        chosen = graph.op("ScatterElements", [none, experts, ones], "qmoe.chosen", axis=1)
        first, second = (
            {kind: self.rows(runs, kind) for of, kind in self.tensors() if of is runs}
            for runs in (self.inner, self.outer)
        )
        given = [part.get(kind, "") for part in (first, second) for kind in ("weight", "scale", "bias")]
        zeros = ["", "", "", first.get("zero", ""), second.get("zero", ""), ""]  # behind what separate gates would take
        return graph.op(
            "QMoE",
            [tokens, chosen, *given, *zeros, own],
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
            normalize_routing_weights=0,
            accuracy_level=self.accuracy_level,
            weights_prepacked=0,
        )

    def tensors(self) -> Iterator[tuple[Runs, str]]:
        """What is stored of the experts: matrices, and "weight", "scale", "zero" or "bias"."""
        for runs in (self.inner, self.outer):
            yield from ((runs, kind) for kind in ("weight", "scale"))
            if self.packing.stores_zeros:
                yield runs, "zero"
            if runs[0][0].bias:
                yield runs, "bias"

    def places(self, runs: Runs, kind: str) -> NDArray[np.int64] | None:
        """Where the matrices begin, [experts, matrices of one], in rows behind the first; None where QMoE's order is
        no rule: they lie no whole rows apart, or those of one expert unlike those of another."""
        starts = self.graph.first_rows([f"{matrix.name}.{kind}" for run in runs for matrix in run])
        if starts is None:
            return None
        places = np.reshape(starts, (len(runs), -1))
        step = places[-1, 0] // max(len(runs) - 1, 1)
        is_regular = (places == places[0] + np.arange(len(runs))[:, None] * step).all()
        return places if is_regular else None

    def rows(self, runs: Runs, kind: str) -> str:
        """What is stored of the matrices, [experts, rows, ...], where rows of the matrices of one expert take turns."""
        graph, places = self.graph, self.places(runs, kind)
        assert places is not None, "as fits says"
        within = np.arange(runs[0][0].rows)[:, None] + places[0]
        numbers = graph.outer_sum(places[:, 0], within.reshape(-1))
        entries = [f"{matrix.name}.{kind}" for run in runs for matrix in run]
        name = f"qmoe.{'gates_ups' if runs is self.inner else 'downs'}.{kind}"
        found = graph.op("Gather", [graph.stored_between(entries[0], entries[-1]), numbers], name, axis=0)
        return graph.op("Cast", [found], f"{found}.floats", to=FLOAT_TYPES["float32"]) if kind == "scale" else found
