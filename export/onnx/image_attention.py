"""Attention of the tokens of an image to one another: which they are, and plain operators for it.

These stand behind a GroupQueryAttention that appends, of providers where it is causal only. They are few tokens, read
once.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from embedllm.export.onnx.builder import KV_PREFIXES, MICROSOFT, Graph
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder


def attend_plainly(
    graph: Graph, attention: Attention, number: int, qkv: Sequence[str], lengths: Sequence[str], total: str, bias: str
) -> str:
    """Appends to the KV of that number and lets all tokens see all that is held then: [1, T, heads * D].

    qkv: rotated; q alone where an earlier layer has appended to that KV. total: tokens that are held then, [1];
    lengths: seqlens_k, total_sequence_length. bias: of scores, [1, 1, T, total]; or empty.
    """
    assert not attention.softcap  # of all models whose images are bidirectional
    assert not attention.sinks
    size, shared = attention.head_dim, attention.heads // attention.kv_heads
    past, present = ([f"{prefix}.{number}.{part}" for part in ("key", "value")] for prefix in KV_PREFIXES)
    if attention.kv_from is None:
        outputs, heads = [graph.named("appended"), *present], {"num_heads": attention.heads}
        graph.node("GroupQueryAttention", [*qkv, *past, *lengths], outputs, graph.named("append"), MICROSOFT, **heads,
                   kv_num_heads=attention.kv_heads)  # fmt: skip
    bounds = graph.constant(0), total, graph.constant(2)
    keys, values = (
        graph.op("Unsqueeze", [graph.op("Slice", [x, *bounds], f"{part}.held"), graph.constant(2)], f"{part}.shared")
        for x, part in zip(present, ("keys", "values"), strict=True)
    )
    scale = size**-0.5 if attention.scale is None else attention.scale
    q = graph.op("Mul", [qkv[0], graph.number(scale)], "queries.scaled")  # float16 may not hold the product as it is
    q = graph.op("Reshape", [q, graph.constant(0, 0, attention.kv_heads, shared, size)], "queries.heads")
    q = graph.op("Transpose", [q], "queries", perm=[0, 2, 3, 1, 4])
    scores = graph.op("MatMul", [q, graph.op("Transpose", [keys], "keys.columns", perm=[0, 1, 2, 4, 3])], "scores")
    scores = graph.op("Add", [scores, bias], "scores.masked") if bias else scores
    context = graph.op("MatMul", [graph.op("Softmax", [scores], "weights", axis=-1), values], "context.by_head")
    context = graph.op("Transpose", [context], "context.heads", perm=[0, 3, 1, 2, 4])
    return graph.op("Reshape", [context, graph.constant(0, 0, attention.heads * size)], "context")


def same_image(graph: Graph, decoder: Decoder, total: str) -> str:
    """Whether a new token and a key are of one image, [B, 1, T, total]. total: tokens that are held then, [1].

    Of keys that were held before none is: an image is in one run. Neighbouring images have text between them.
    """
    name = "images.same"
    if graph.has(name):
        return name
    assert decoder.vision is not None
    with_scope, graph.scope = graph.scope, "images"
    token = graph.constant(decoder.vision.image_token, scalar=True)
    inside = graph.op("Equal", ["input_ids", token], "inside")
    text = graph.op("Cast", [graph.op("Not", [inside], "text")], "text.count", to=TensorProto.INT64)
    number = graph.op("CumSum", [text, graph.constant(1, scalar=True)], "number")  # the same for neighbours in an image
    neither, other = (graph.constant(each, scalar=True) for each in (-1, -2))
    queries = graph.op("Where", [inside, number, neither], "of_tokens")
    keys = graph.op("Where", [inside, number, other], "of_keys.new")
    before = graph.op("Sub", [total, graph.op("Shape", ["input_ids"], "count", start=1)], "before")
    zero = graph.constant(0)
    pads = graph.op("Concat", [zero, before, zero, zero], "pads", axis=0)
    keys = graph.op("Pad", [keys, pads, other], "of_keys")
    queries = graph.op("Unsqueeze", [queries, graph.constant(1, 3)], "queries")
    keys = graph.op("Unsqueeze", [keys, graph.constant(1, 2)], "keys")
    same = graph.op("Equal", [queries, keys], "same")
    graph.scope = with_scope
    return same
