"""What a draft head finds for the token that it guesses, so that a run of it can follow another without the host.

Outputs, of one sequence and the logits of one position: `guess` [1, 1, 2], float32: the best token and its probability;
`guessed_token` [1, 1], int64; `next_length` [1], int64: the tokens held once it is appended. A session has the last two
written where the next run reads its token and its mask, and `last_hidden_state` where that reads its hidden states
(backends/gpu/draft_head.py). An operator is a kernel of microseconds, of which a guess takes a hundred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from embedllm.package.graph_variants import GUESS, GUESSED_TOKEN, NEXT_LENGTH
from embedllm.package.tensors import DRAFT_TOKENS

if TYPE_CHECKING:
    from embedllm.export.onnx.builder import Graph
    from embedllm.package.architecture.decoder import Decoder


def guess_outputs() -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(GUESS, TensorProto.FLOAT, ["batch", 1, 2]),
        helper.make_tensor_value_info(GUESSED_TOKEN, TensorProto.INT64, ["batch", 1]),
        helper.make_tensor_value_info(NEXT_LENGTH, TensorProto.INT64, ["batch"]),
    ]


def write_guess(graph: Graph, decoder: Decoder, *, reads_mask_late: bool) -> None:
    """Adds these outputs behind the logits. reads_mask_late: something else than the lengths reads the mask."""
    graph.scope = "guess"
    place = graph.op("ArgMax", ["logits"], "place", axis=-1, keepdims=1)
    share = graph.op("GatherElements", [graph.op("Softmax", ["logits"], "shares", axis=-1), place], "share", axis=-1)
    token = place
    if decoder.head.rows < decoder.vocabulary:
        token_id = graph.op("Gather", [graph.stored([DRAFT_TOKENS]), place], "known", axis=0)
        token = graph.op("Cast", [token_id], "token", to=TensorProto.INT64)
    named = {"token.number": token, "share.number": share}
    numbers = [graph.op("Cast", [x], name, to=TensorProto.FLOAT) for name, x in named.items()]
    graph.node("Concat", numbers, [GUESS], graph.named("numbers"), axis=-1)
    last, one = graph.constant(-1), graph.constant(1)
    graph.node("Squeeze", [token, last], [GUESSED_TOKEN], graph.named("squeezed"))
    if reads_mask_late:  # one, known no sooner than the token is: the length is written over the mask
        is_token = graph.op("GreaterOrEqual", [GUESSED_TOKEN, graph.constant(0)], "is_token")
        one = graph.op("Squeeze", [graph.op("Cast", [is_token], "one", to=TensorProto.INT64), last], "step")
    graph.node("Add", ["lengths.sum", one], [NEXT_LENGTH], graph.named("length"))
