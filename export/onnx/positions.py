"""Where tokens stand in a decoder's graph: lengths, positions, and those whose logits are asked for."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from embedllm.export.onnx.attention import masks_window, rotates_inside
from embedllm.export.onnx.builder import Graph
from embedllm.export.onnx.mrope import table_rows
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.graph_variants import HIDDEN_FROM, POSITION_IDS, GraphVariant

_TO_END = int(np.iinfo(np.int64).max)


class Positions:
    """Writes nodes for them into a graph of a variant."""

    def __init__(self, graph: Graph, variant: GraphVariant) -> None:
        self.graph = graph
        self.variant = variant

    def lengths(self) -> list[str]:
        """seqlens_k [B] and total_sequence_length [] from the attention mask, once for all layers."""
        graph = self.graph
        graph.scope = "lengths"
        count = graph.op("ReduceSum", ["attention_mask", graph.constant(1)], "sum", keepdims=0)
        last = graph.op("Sub", [count, graph.constant(1)], "last")
        shape = graph.op("Shape", ["attention_mask"], "shape")
        total = graph.op("Gather", [shape, graph.constant(1, scalar=True)], "total", axis=0)
        return [graph.op("Cast", [name], f"{name}.int32", to=TensorProto.INT32) for name in (last, total)]

    def given_or_computed(self, decoder: Decoder, keeps_latent: bool) -> str:
        """Positions of the new tokens, [B, T]; empty where nothing reads them."""
        if self.variant.takes_positions(decoder):
            return POSITION_IDS
        if self.variant.computes_mrope(decoder):
            return table_rows(self.graph)
        # a latent's part with RoPE is rotated outside of attention
        return self._computed() if keeps_latent or _reads_positions(decoder, self.variant) else ""

    def _computed(self) -> str:
        """Places of the new tokens in their sequences, [B, T].

        Those of a prompt that is filled up behind its end are counted from its beginning; and a mask may be longer
        than what is held, as that of a captured step is.
        """
        graph, one = self.graph, self.graph.constant(1)
        same = graph.op("Equal", ["input_ids", "input_ids"], "new.same")
        new = graph.op("Cast", [same], "new", to=TensorProto.INT64)
        before = graph.op("CumSum", [new, graph.constant(1, scalar=True)], "new.before", exclusive=1)
        total, count = (
            graph.op("ReduceSum", [x, one], f"{name}.count", keepdims=1)
            for x, name in (("attention_mask", "held"), (new, "new"))
        )
        start = graph.op("Max", [graph.op("Sub", [total, count], "past"), graph.constant(0)], "start")
        return graph.op("Add", [start, before], "positions")

    def selected(self, x: str, name: str) -> str:
        """The positions from `logits_from` or `hidden_from` on, or those that `logits_at` names."""
        graph = self.graph
        if not self.variant.lengths_from_mask:
            return graph.op("Gather", [x, "logits_at"], f"{name}.selected", axis=1)
        first = HIDDEN_FROM if self.variant.gives_hidden else "logits_from"
        return graph.op("Slice", [x, *self.bounds(first)], f"{name}.selected")

    def bounds(self, first: str) -> list[str]:
        """Of a Slice of all positions from that one on."""
        return [first, self.graph.constant(_TO_END), self.graph.constant(1)]


def _reads_positions(decoder: Decoder, variant: GraphVariant) -> bool:
    """Whether something outside of GroupQueryAttention needs to know where tokens stand."""
    if (
        decoder.chunk
        or variant.bidirectional
        or (variant.images_by_run and decoder.images_are_bidirectional)
        or (variant.takes_embeddings and decoder.images_are_bidirectional)
        or any(each.temperature is not None or masks_window(each, variant) for each in decoder.attentions)
    ):
        return True
    rotated = (attention for attention in decoder.attentions if attention.rope is not None)
    return decoder.position_embeddings is not None or not all(
        rotates_inside(attention, decoder, variant) for attention in rotated
    )
