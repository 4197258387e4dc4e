"""The functions of the reference decoder that know nothing of folders and sessions: plain NumPy on float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from embedllm.package.recurrent_state import LENGTH_EPSILON

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from embedllm.package.architecture.attention import AttentionTemperature
    from embedllm.package.architecture.mlp import Moe
    from embedllm.types import F32

_ERF: Callable[[F32], NDArray[np.object_]] = np.frompyfunc(math.erf, 1, 1)
_ONE = np.float32(1)


def capped(x: F32, limit: float) -> F32:
    """limit * tanh(x / limit); x itself for a limit of 0."""
    return np.tanh(x / np.float32(limit)) * np.float32(limit) if limit else x


def of_length_one(x: F32) -> F32:
    """Vectors along the last axis divided by their lengths."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + np.float32(LENGTH_EPSILON))


def softmax(x: F32) -> F32:
    """Over the last axis."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def sigmoid(x: F32, times: F32 | np.float32 = _ONE) -> F32:
    """times / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp of a very negative number: the quotient is 0, as it should be
        below: F32 = 1 + np.exp(-x)
        return times / below


def activated(x: F32, activation: str, slope: float = 1.0) -> F32:
    """x through the activation of that name (embedllm/package/architecture/mlp.py)."""
    if activation == "silu":
        return sigmoid(x if slope == 1 else x * np.float32(slope), times=x)
    if activation == "gelu":
        part: F32 = np.float32(0.5) * (1 + _ERF(x / np.float32(math.sqrt(2))).astype(np.float32))
        return x * part
    if activation == "gelu_tanh":
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
        return np.float32(0.5) * x * (1 + np.tanh(inner))
    positive = np.maximum(x, 0)
    return positive if activation == "relu" else positive * positive


def temperature(grows: AttentionTemperature, positions: NDArray[np.int64]) -> F32:
    """What queries at these positions are multiplied by."""
    later = np.log1p((positions + grows.offset) // grows.original_context)
    return (1 + grows.beta * later).astype(np.float32)


def xielu(x: F32, positive: F32, negative: F32) -> F32:
    """Source: https://arxiv.org/abs/2411.13010; positive, negative: the numbers as a checkpoint has them, [1]."""
    above, below = np.logaddexp(positive, 0), np.float32(0.5) + np.logaddexp(negative, 0)
    bent = np.expm1(np.minimum(x, 0)) - np.minimum(x, 0)
    curved: F32 = above * np.maximum(x, 0) ** 2 + below * bent
    straight: F32 = np.float32(0.5) * x
    return curved + straight


def beyond(x: F32, cutoff: float) -> F32:
    """By how much values exceed their mean and `cutoff` standard deviations."""
    limit = x.mean(axis=-1, keepdims=True) + np.float32(cutoff) * x.std(axis=-1, keepdims=True)
    return np.maximum(x - limit, 0)


def alike(x: F32, like: F32) -> F32:
    """x scaled to the root mean square of another."""
    size = np.sqrt(np.mean(like * like, axis=-1, keepdims=True))
    own = np.sqrt(np.maximum(np.mean(x * x, axis=-1, keepdims=True), np.float32(1e-5)))
    return x * (size / own)


def expert_weights(moe: Moe, routed: F32, correction: F32 | None, scales: F32 | None = None) -> F32:
    """The weight of each expert for each token, [T, experts]; 0 for those that were not chosen.

    routed: what the router made of the tokens. correction, scales: [experts].
    """
    routed = routed * np.float32(moe.router_multiplier)
    scores = (
        sigmoid(routed)
        if moe.scoring_func == "sigmoid"
        else softmax(routed)
        if moe.scoring_func == "softmax"
        else routed
    )
    choosing = scores if correction is None else scores + correction
    if moe.groups > 1:
        choosing = _of_best_groups(moe, choosing, by_two=correction is not None)
    best = np.argsort(-choosing, axis=-1, kind="stable")[:, : moe.top_k]
    chosen = np.take_along_axis(scores, best, axis=-1)
    if moe.scoring_func == "softmax_topk":
        chosen = softmax(chosen)
    elif moe.scoring_func == "sparsemixer":
        chosen = _sparse_mixer(routed, best, moe.jitter_eps)
    if moe.norm_topk:
        chosen = chosen / (chosen.sum(axis=-1, keepdims=True) + np.float32(1e-20))
    weights = np.zeros_like(scores)
    np.put_along_axis(weights, best, chosen * np.float32(moe.scale), axis=-1)
    return weights if scales is None else weights * scales


def _sparse_mixer(routed: F32, best: NDArray[np.int64], epsilon: float) -> F32:
    """The weights of the chosen [T, top_k]. best: their numbers, the best first.

    Source: sparsemixer() of modeling_phimoe.py of transformers (5.24).
    """
    left, weights = routed.copy(), np.empty(best.shape, np.float32)
    for rank in range(best.shape[1]):
        chosen = best[:, rank, None]
        logit = np.take_along_axis(routed, chosen, axis=-1)
        is_near = logit - routed <= np.float32(2 * epsilon) * np.maximum(np.abs(routed), logit)
        weights[:, rank] = 1 / np.where(is_near, np.exp(left - logit), 0).sum(axis=-1)
        np.put_along_axis(left, chosen, -np.inf, axis=-1)
    return weights


def _of_best_groups(moe: Moe, choosing: F32, *, by_two: bool) -> F32:
    """The scores of the experts of the best groups, and -inf for the others."""
    split = choosing.reshape(len(choosing), moe.groups, -1)
    counted = np.sort(split, axis=-1)[..., -(2 if by_two else 1) :].sum(axis=-1)  # [T, groups]
    best = np.argsort(-counted, axis=-1, kind="stable")[:, : moe.top_k_groups]
    mask = np.zeros(counted.shape, bool)
    np.put_along_axis(mask, best, True, axis=-1)
    return np.where(mask[..., None], split, -np.inf).reshape(choosing.shape).astype(np.float32)
