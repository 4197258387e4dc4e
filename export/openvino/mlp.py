"""The mlps of an OpenVINO model, alone and as mixtures of experts, each of which computes its own tokens only."""

from __future__ import annotations

from embedllm.export.openvino.elementwise import activated, beyond, multiplied, normed, xielu
from embedllm.export.openvino.ir import BROADCAST, Ir, Value
from embedllm.export.openvino.linear import Products
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.tensors import expert_scales_name, experts_bias_name, score_correction_name

_FUSED = ("silu", "gelu", "gelu_tanh")
_SMALLEST = 1e-20  # added to a sum that is divided by


def mlp(products: Products, mlp: Mlp, x: Value) -> Value:
    """down(activation(gate) * up), or down(activation(up)), of [B, T, hidden]."""
    ir = products.ir
    gate = None if mlp.gate is None else products.linear(x, [mlp.gate], "gate")
    up = products.linear(x, [mlp.up], "up")
    bent = beyond(ir, up if gate is None else gate, mlp.sparsity_cutoff)
    if mlp.swiglu_limit:
        bent = ir.op("Minimum", [bent, ir.constant(mlp.swiglu_limit, "f32")], "gate.limited", **BROADCAST)
        up = ir.op("Clamp", [up], "up.limited", min=-mlp.swiglu_limit, max=mlp.swiglu_limit)
    if mlp.up_offset:
        up = ir.op("Add", [up, ir.constant(mlp.up_offset, "f32")], "up.offset", **BROADCAST)
    active = xielu(ir, mlp, bent) if mlp.xielu_alphas else activated(ir, bent, mlp.activation, mlp.swiglu_alpha)
    if gate is not None:
        active = ir.op("Multiply", [active, up], "gated", **BROADCAST)
    return products.linear(active, [mlp.down], "down")


def mixture(products: Products, index: int, moe: Moe, x: Value) -> Value:
    """The weighted sum of what the chosen experts make of [B, T, hidden], and the shared one's."""
    ir, hidden = products.ir, moe.router.columns
    norms, stream = moe.norms, x
    x = x if norms is None else normed(ir, x, norms.experts, "experts.norm")
    flat = ir.constant([1, -1, hidden])
    tokens = ir.op("Reshape", [x, flat], "tokens", special_zero=False)
    ir.is_precise = True  # a score that is rounded may choose another expert
    router_input = tokens
    if norms is not None:
        router_input = normed(ir, stream, norms.router, "router.norm")
        router_input = ir.op("Reshape", [router_input, flat], "router.tokens", special_zero=False)
    weights, chosen = _chosen(products, index, moe, router_input)
    ir.is_precise = False
    sums = _tiled_sum if are_fused(products, moe) else _sorted_sum
    total = sums(products, moe, tokens, weights, chosen)
    if moe.bias:
        bias = ir.stored([experts_bias_name(index)], "f32", [1, hidden])
        total = ir.op("Add", [total, bias], "experts.biased", **BROADCAST)
    shape = ir.op("ShapeOf", [x], "experts.shape", type="i64", output_type="i64")
    total = ir.op("Reshape", [total, shape], "experts.output", special_zero=False)
    if norms is not None:
        total = normed(ir, total, norms.experts_post, "experts.post_norm")
        x = normed(ir, stream, norms.shared, "shared.norm")
    return total if moe.shared is None else _with_shared(products, moe, x, total)


def are_fused(products: Products, moe: Moe) -> bool:
    """Whether plugins recognise the experts of a layer as one operation: docs/openvino.md#mixtures."""
    one = moe.experts[0]
    is_plain = not (one.swiglu_limit or one.up_offset or one.sparsity_cutoff or moe.scales_input)
    if one.gate is None or one.swiglu_alpha != 1 or one.activation not in _FUSED or not is_plain:
        return False
    gates = [expert.gate for expert in moe.experts if expert.gate is not None]
    ups, downs = [expert.up for expert in moe.experts], [expert.down for expert in moe.experts]
    return all(products.stacks(matrices) for matrices in (gates, ups, downs))


def _tiled_sum(products: Products, moe: Moe, tokens: Value, weights: Value, chosen: Value) -> Value:
    """The weighted sum of what the chosen experts make of tokens [1, T, hidden], [T, hidden].

    As if every expert computed every token, with a weight of 0 where it was not chosen: in this form, and in no
    other, plugins find the operation that reads the chosen experts alone (docs/openvino.md#mixtures).
    """
    ir, one, experts, hidden = products.ir, moe.experts[0], len(moe.experts), moe.router.columns
    flat = ir.op("Reshape", [tokens, ir.constant([-1, hidden])], "experts.tokens", special_zero=False)
    tiles = ir.op("Tile", [flat, ir.constant([experts, 1])], "experts.tiles")
    every = ir.op("Reshape", [tiles, ir.constant([experts, -1, hidden])], "experts.every", special_zero=False)
    gate = products.of_experts(every, [e.gate for e in moe.experts if e.gate is not None], "experts.gate")
    up = products.of_experts(every, [e.up for e in moe.experts], "experts.up")
    active = ir.op("Multiply", [activated(ir, gate, one.activation), up], "experts.gated", **BROADCAST)
    outputs = products.of_experts(active, [e.down for e in moe.experts], "experts.down")
    apart = ir.op("Reshape", [outputs, ir.constant([experts, 1, -1, hidden])], "experts.apart", special_zero=False)
    of_token = ir.constant([-1, moe.top_k])
    token_weights = ir.op("Reshape", [weights, of_token], "experts.weights", special_zero=False)  # [T, used]
    places = ir.op("Reshape", [chosen, of_token], "experts.places", special_zero=False)
    count = ir.size(token_weights, 0, "experts.tokens.count")
    shape = ir.op("Concat", [count, ir.constant([experts])], "experts.weights.shape", axis=0)
    none = ir.op("Broadcast", [ir.constant(0.0, "f32"), shape], "experts.none", mode="numpy")
    scattered = ir.op("ScatterElementsUpdate", [none, places, token_weights, ir.constant(1)], "experts.all_weights")
    by_expert = ir.op("Transpose", [scattered, ir.constant([1, 0])], "experts.by_expert")
    by_expert = ir.op("Reshape", [by_expert, ir.constant([experts, 1, -1])], "experts.by_expert.apart",
                      special_zero=False)  # fmt: skip
    share = ir.op("Unsqueeze", [by_expert, ir.constant(-1)], "experts.share")
    weighted = ir.op("Multiply", [apart, share], "experts.weighted", **BROADCAST)
    return ir.op("ReduceSum", [weighted, ir.constant([0])], "experts.sum", keep_dims=False)


def _sorted_sum(products: Products, moe: Moe, tokens: Value, weights: Value, chosen: Value) -> Value:
    """As _tiled_sum(), [T, hidden], by operations that every expert has for itself.

    A slot is a token and one of its experts. Slots are sorted by expert, so that every expert has its rows in one
    piece, none where nobody chose it; what they give is brought back into the order of the tokens.
    """
    ir, used, hidden = products.ir, moe.top_k, moe.router.columns
    slots, counts = _by_expert(ir, chosen, len(moe.experts))
    rows = _expert_rows(products, moe, tokens, weights, slots, counts)
    back = _inverse(ir, slots)
    in_order = ir.op("Gather", [rows, back, ir.constant(1)], "experts.in_order", batch_dims=0)
    of_token = ir.op("Reshape", [in_order, ir.constant([-1, used, hidden])], "experts.of_token", special_zero=False)
    if not moe.scales_input:
        by_slot = ir.op("Reshape", [weights, ir.constant([-1, used, 1])], "experts.weights", special_zero=False)
        of_token = ir.op("Multiply", [of_token, by_slot], "experts.weighted", **BROADCAST)
    return ir.op("ReduceSum", [of_token, ir.constant([1])], "experts.sum", keep_dims=False)


def _chosen(products: Products, index: int, moe: Moe, tokens: Value) -> tuple[Value, Value]:
    """The weights of each token's experts and their numbers, [1, T, used] both."""
    ir, scores = products.ir, products.linear(tokens, [moe.router], "router")
    scores = multiplied(ir, scores, moe.router_multiplier, "router.multiplied")
    if moe.scoring_func == "sigmoid":
        scores = ir.op("Sigmoid", [scores], "router.scores")
    elif moe.scoring_func == "softmax":
        scores = ir.op("SoftMax", [scores], "router.scores", axis=2)
    choosing = scores
    if moe.score_correction_bias:
        correction = ir.stored([score_correction_name(index)], "f32", [len(moe.experts)])
        choosing = ir.op("Add", [scores, correction], "router.corrected", **BROADCAST)
    if moe.groups > 1:
        choosing = _of_best_groups(ir, moe, choosing)
    weights, chosen = _largest(ir, choosing, moe.top_k, "router.chosen")
    if choosing is not scores:
        weights = ir.op("GatherElements", [scores, chosen], "router.weights", axis=2)
    if moe.scoring_func == "softmax_topk":
        weights = ir.op("SoftMax", [weights], "router.softmax", axis=2)
    elif moe.scoring_func == "sparsemixer":
        weights = _sparse_mixer(ir, moe, scores, weights, chosen)
    if moe.norm_topk:
        total = ir.op("ReduceSum", [weights, ir.constant([-1])], "router.sum", keep_dims=True)
        total = ir.op("Add", [total, ir.constant(_SMALLEST, "f32")], "router.sum.epsilon", **BROADCAST)
        weights = ir.op("Divide", [weights, total], "router.normalised", m_pythondiv=True, **BROADCAST)
    weights = multiplied(ir, weights, moe.scale, "router.scaled")
    if not moe.expert_scales:
        return weights, chosen
    scales = ir.stored([expert_scales_name(index)], "f32", [len(moe.experts)])
    own = ir.op("Gather", [scales, chosen, ir.constant(0)], "router.scales", batch_dims=0)
    return ir.op("Multiply", [weights, own], "router.by_expert", **BROADCAST), chosen


def _sparse_mixer(ir: Ir, moe: Moe, routed: Value, best: Value, chosen: Value) -> Value:
    """The weights of the chosen [1, T, used]. routed: all logits; best: those of the chosen, the best first."""
    left, weights, numbers = routed, list[Value](), ir.constant(list(range(len(moe.experts))))
    sizes = ir.op("Abs", [routed], "router.sizes")
    for rank in range(moe.top_k):
        name, axis = f"router.rank.{rank}", ir.constant(2)
        if rank:
            before = ir.op("Gather", [chosen, ir.constant([rank - 1]), axis], f"{name}.before", batch_dims=0)
            is_before = ir.op("Equal", [before, numbers], f"{name}.is_before", type="boolean", **BROADCAST)
            least = ir.constant(-3e38, "f32")
            left = ir.op("Select", [is_before, least, left], f"{name}.left", type="f32", **BROADCAST)
        logit = ir.op("Gather", [best, ir.constant([rank]), axis], f"{name}.logit", batch_dims=0)  # [1, T, 1]
        largest = ir.op("Maximum", [sizes, logit], f"{name}.largest", **BROADCAST)
        most = multiplied(ir, largest, 2 * moe.jitter_eps, f"{name}.most")
        below = ir.op("Subtract", [logit, routed], f"{name}.below", **BROADCAST)
        is_far = ir.op("Greater", [below, most], f"{name}.is_far", type="boolean", **BROADCAST)
        parts = ir.op("Exp", [ir.op("Subtract", [left, logit], f"{name}.logits", **BROADCAST)], f"{name}.parts")
        none = ir.constant(0.0, "f32")
        parts = ir.op("Select", [is_far, none, parts], f"{name}.near", type="f32", **BROADCAST)
        total = ir.op("ReduceSum", [parts, ir.constant([-1])], f"{name}.sum", keep_dims=True)
        one = ir.constant(1.0, "f32")
        weights.append(ir.op("Divide", [one, total], f"{name}.weight", m_pythondiv=True, **BROADCAST))
    return ir.op("Concat", weights, "router.rank.weights", axis=2)


def _of_best_groups(ir: Ir, moe: Moe, choosing: Value) -> Value:
    """The scores [1, T, experts] of the experts of the best groups, and less than any score for the others."""
    size = len(moe.experts) // moe.groups
    split = ir.op("Reshape", [choosing, ir.constant([0, 0, moe.groups, size])], "router.groups", special_zero=True)
    counted = min(2, size) if moe.score_correction_bias else 1
    best_of_each, _ = _largest(ir, split, counted, "router.best_of_groups")
    of_group = ir.op("ReduceSum", [best_of_each, ir.constant([-1])], "router.group_scores", keep_dims=False)
    _, best = _largest(ir, of_group, moe.top_k_groups, "router.best_groups")  # [1, T, used groups]
    apart = ir.op("Unsqueeze", [best, ir.constant(-1)], "router.best_groups.apart")
    numbers = ir.constant(list(range(moe.groups)))
    same = ir.op("Equal", [apart, numbers], "router.is_best", type="boolean", **BROADCAST)
    is_taken = ir.op("ReduceLogicalOr", [same, ir.constant([2])], "router.is_taken", keep_dims=False)
    is_taken = ir.op("Unsqueeze", [is_taken, ir.constant(-1)], "router.is_taken.apart")
    best_scores = ir.op(
        "Select", [is_taken, split, ir.constant(float("-inf"), "f32")], "router.kept", type="f32", **BROADCAST
    )
    flat = ir.constant([0, 0, len(moe.experts)])
    return ir.op("Reshape", [best_scores, flat], "router.of_best_groups", special_zero=True)


def _largest(ir: Ir, x: Value, count: int, name: str) -> tuple[Value, Value]:
    """The largest values of the last axis and their places; of equal ones the first."""
    values, places = ir.split("TopK", [x, ir.constant(count)], name, 2, types=(x.type, "i64"), axis=-1, mode="max",
                              sort="value", index_element_type="i64", stable=True)  # fmt: skip
    return values, places


def _by_expert(ir: Ir, chosen: Value, experts: int) -> tuple[Value, Value]:
    """The slots sorted by expert, [T * used], and how many each expert has, [experts]."""
    of_slot = ir.op("Reshape", [chosen, ir.constant([1, -1])], "slots.expert", special_zero=False)
    numbers = ir.op("Unsqueeze", [ir.constant(list(range(experts))), ir.constant(1)], "experts.numbers")
    is_of = ir.op("Equal", [numbers, of_slot], "slots.is_of", type="boolean", **BROADCAST)  # [experts, T * used]
    places = ir.op("NonZero", [is_of], "slots.places", type="i64", output_type="i64")
    slots = ir.op("Gather", [places, ir.constant(1), ir.constant(0)], "slots", batch_dims=0)
    ones = ir.op("Convert", [is_of], "slots.ones", type="i64", destination_type="i64")
    return slots, ir.op("ReduceSum", [ones, ir.constant([1])], "slots.counts", keep_dims=False)


def _expert_rows(products: Products, moe: Moe, tokens: Value, weights: Value, slots: Value, counts: Value) -> Value:
    """What the experts make of the rows of their slots, [1, T * used, hidden], sorted by expert."""
    ir, scope = products.ir, products.ir.scope
    of_token = ir.op("Divide", [slots, ir.constant(moe.top_k)], "slots.token", m_pythondiv=True, **BROADCAST)
    rows = ir.op("Gather", [tokens, of_token, ir.constant(1)], "slots.rows", batch_dims=0)
    if moe.scales_input:
        by_slot = ir.op("Reshape", [weights, ir.constant([1, -1, 1])], "slots.weights", special_zero=False)
        own = ir.op("Gather", [by_slot, slots, ir.constant(1)], "slots.weight", batch_dims=0)
        rows = ir.op("Multiply", [rows, own], "slots.weighted", **BROADCAST)
    parts = ir.split("VariadicSplit", [rows, ir.constant(1), counts], "slots.split", len(moe.experts))
    outputs: list[Value] = []
    for number, (expert, part) in enumerate(zip(moe.experts, parts, strict=True)):
        ir.scope = f"{scope}.experts.{number}"
        outputs.append(mlp(products, expert, part))
    ir.scope = scope
    return ir.op("Concat", outputs, "experts.made", axis=1)


def _inverse(ir: Ir, slots: Value) -> Value:
    """Where each slot lies among the sorted ones."""
    count = ir.op("Squeeze", [ir.size(slots, 0, "slots.count"), ir.constant(0)], "slots.number")
    places = ir.op("Range", [ir.constant(0), count, ir.constant(1)], "slots.range", output_type="i64")
    return ir.op("ScatterElementsUpdate", [slots, slots, places, ir.constant(0)], "slots.back")


def _with_shared(products: Products, moe: Moe, x: Value, total: Value) -> Value:
    """The sum of the chosen experts [B, T, hidden] and of the one that takes every token."""
    ir, scope = products.ir, products.ir.scope
    assert moe.shared is not None
    ir.scope = f"{scope}.shared"
    output = mlp(products, moe.shared, x)
    output = output if moe.norms is None else normed(ir, output, moe.norms.shared_post, "post_norm")
    if moe.shared_gate is not None:
        gate = ir.op("Sigmoid", [products.linear(x, [moe.shared_gate], "weight")], "weight.sigmoid")
        output = ir.op("Multiply", [output, gate], "weighted", **BROADCAST)
    ir.scope = scope
    return ir.op("Add", [total, output], "experts.with_shared", **BROADCAST)
