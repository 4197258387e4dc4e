"""What a model may have that DirectML's graph has no operators for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp


def not_on_directml(decoder: Decoder) -> str:
    """Why there is no such graph of a model; empty when there is one."""
    violation = next(((value, rule) for rule in _RULES if (value := rule.of(decoder)) is not None), None)
    return "" if violation is None else violation[1].reason.format(violation[0])


@dataclass(frozen=True, slots=True)
class _Rule:
    """Something that DirectML's graph has no operators for."""

    of: Callable[[Decoder], object | None]  # what a model has of it, which the reason may name; None: nothing
    reason: str


def _has(condition: Callable[[Decoder], bool]) -> Callable[[Decoder], object | None]:
    return lambda decoder: True if condition(decoder) else None


def _window(decoder: Decoder) -> int | None:
    """The narrowest sliding window, in tokens."""
    narrow = min((attention.window or decoder.context for attention in decoder.attentions), default=decoder.context)
    return narrow if narrow < decoder.context else None


def _partial_rotary(decoder: Decoder) -> str | None:
    """Rotated dimensions of a head with partial rotary embeddings."""
    dims = ((decoder.ropes[a.rope].rotary_dim, a.head_dim) for a in decoder.attentions if a.rope is not None)
    return next((f"{rotated} of {size}" for rotated, size in dims if rotated != size), None)


_RULES = (
    _Rule(
        _has(lambda decoder: decoder.is_mixture),
        "a mixture of experts gathers a variable number of tokens, and DirectML needs fixed shapes",
    ),
    _Rule(
        _has(lambda decoder: decoder.uses_mla),
        "its multi-head latent attention (MLA) is not implemented for DirectML",
    ),
    _Rule(
        _has(lambda decoder: any(attention.softcap or attention.sinks for attention in decoder.attentions)),
        "DirectML's attention has no logit soft-capping and no attention sinks",
    ),
    _Rule(
        _has(lambda decoder: len(decoder.kv_attentions) < len(decoder.attentions)),
        "DirectML's attention cannot read the keys and values of another layer (KV sharing)",
    ),
    _Rule(
        _has(lambda decoder: decoder.altup_streams is not None),
        "its AltUp operators are not tested on DirectML",
    ),
    _Rule(
        _has(lambda decoder: any(attention.temperature is not None for attention in decoder.attentions)),
        "the operators of its attention temperature are not tested on DirectML",
    ),
    _Rule(
        _has(lambda decoder: any(isinstance(layer.mlp, Mlp) and layer.mlp.swiglu_limit for layer in decoder.layers)),
        "the operators of its SwiGLU limit are not tested on DirectML",
    ),
    _Rule(_window, "a layer has a sliding window of {} tokens, which DirectML's attention does not support"),
    _Rule(_partial_rotary, "{} head dimensions are rotated; DirectML's rotary embedding rotates all of them"),
)
