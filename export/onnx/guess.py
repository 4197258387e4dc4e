"""What a draft head finds for the token that it guesses, so that a run of it can follow another without the host.

Outputs, of one sequence and the logits of one position: `guess` [1, 1, 3], float32: the best token, its logit, the log
of the sum of all exponentials; `guessed_token` [1, 1], int64; `next_length` [1], int64: the tokens held once it is
appended. A session has the last two written where the next run reads its token and its mask, and `last_hidden_state`
where that reads its hidden states (backends/gpu/draft_head.py).
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
        helper.make_tensor_value_info(GUESS, TensorProto.FLOAT, ["batch", 1, 3]),
        helper.make_tensor_value_info(GUESSED_TOKEN, TensorProto.INT64, ["batch", 1]),
        helper.make_tensor_value_info(NEXT_LENGTH, TensorProto.INT64, ["batch"]),
    ]


def write_guess(graph: Graph, decoder: Decoder) -> None:
    """Adds these outputs behind the logits."""
    graph.scope = "guess"
    last = graph.constant(-1)
    # the highest logit by ArgMax: tools/make_heads.py
    place = graph.op("ArgMax", ["logits"], "place", axis=-1, keepdims=1)
    floats = graph.op("Cast", ["logits"], "floats", to=TensorProto.FLOAT)
    highest = graph.op("GatherElements", [floats, place], "highest", axis=-1)
    weights = graph.op("Exp", [graph.op("Sub", [floats, highest], "below")], "weights")
    log = graph.op("Log", [graph.op("ReduceSum", [weights, last], "sum")], "log")
    token = place
    if decoder.head.rows < decoder.vocabulary:
        found = graph.op("Gather", [graph.stored([DRAFT_TOKENS]), place], "known", axis=0)
        token = graph.op("Cast", [found], "token", to=TensorProto.INT64)
    numbers = [
        graph.op("Cast", [token], "number", to=TensorProto.FLOAT),
        highest,
        graph.op("Add", [log, highest], "logsumexp"),
    ]
    graph.node("Concat", numbers, [GUESS], graph.named("numbers"), axis=-1)
    graph.node("Squeeze", [token, last], [GUESSED_TOKEN], graph.named("squeezed"))
    # one, but known no sooner than the token is: it is written over the mask, which must have been read by then
    is_token = graph.op("GreaterOrEqual", [GUESSED_TOKEN, graph.constant(0)], "is_token")
    one = graph.op("Squeeze", [graph.op("Cast", [is_token], "one", to=TensorProto.INT64), last], "step")
    graph.node("Add", ["lengths.sum", one], [NEXT_LENGTH], graph.named("length"))
