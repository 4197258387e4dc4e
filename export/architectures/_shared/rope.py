"""Reads the rotary embedding from 'rope_parameters' (transformers 5) or from 'rope_theta' and 'rope_scaling'."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)

SLIDING = "sliding_attention"  # the layers with a window, in 'rope_parameters' and in 'layer_types'
FULL = "full_attention"
_KNOWN = "default, linear, dynamic, llama3, yarn, longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKeys:
    """Where a family's config.json differs from Llama's in what it says of the rotation."""

    theta: float = 10_000.0  # what a config that does not say it means
    theta_key: str = "rope_theta"
    part: float | None = None  # what a config that does not say it means; None: whole heads, see _rotated_part()
    part_key: str = "partial_rotary_factor"
    layers: str = FULL  # whose rotation it is, where there is one for each kind; 'rope_scaling' is of the full ones


ROPE = RopeKeys()


def describe_rope(config: Config, head_dim: int, keys: RopeKeys = ROPE) -> Rope:
    """The rotation of heads of `head_dim` values. Raises UnsupportedModel for one that is not described."""
    if head_dim % 16:
        raise UnsupportedModel(
            f"head_dim is {head_dim}; ONNX Runtime's attention operator rotates heads whose size is a multiple of 16."
        )
    new = config.section("rope_parameters")
    if new is not None and (new.has(FULL) or new.has(SLIDING)):
        new = new.section(keys.layers)
    old = config.section("rope_scaling") if keys.layers == FULL else None
    ropes = [_rope(config, section, head_dim, keys) for section in (new, old) if section is not None]
    if len(ropes) == 2 and ropes[0] != ropes[1]:
        raise ExportError("'rope_parameters' and 'rope_scaling' of config.json differ; keep one of them.")
    return ropes[0] if ropes else _rope(config, Config({}), head_dim, keys)


def _rope(config: Config, parameters: Config, head_dim: int, keys: RopeKeys) -> Rope:
    base = parameters.number("rope_theta", config.number(keys.theta_key, keys.theta, above=1), above=1)
    part = _rotated_part(config, parameters, keys)
    rotated = int(head_dim * part) if 0 < part <= 1 else 0
    if rotated < 2 or rotated % 2:
        raise UnsupportedModel(
            f"{keys.part_key} is {part}; expected a part of the {head_dim} values of a head that is an even number."
        )
    return Rope(base=base, rotary_dim=rotated, scaling=_scaling(config, parameters, rotated))


def _rotated_part(config: Config, parameters: Config, keys: RopeKeys) -> float:
    """Of a head. Few models of transformers read it; a GGUF file says it of any ('rotates_parts')."""
    part = parameters.number("partial_rotary_factor", config.number(keys.part_key, keys.part or 1.0))
    if keys.part is not None or part == 1 or config.flag("rotates_parts", False):
        return part
    kind = _kind(parameters)
    if kind not in ("default", "proportional"):  # those read it, for too few angles
        raise UnsupportedModel(
            f"{keys.part_key} is {part}; transformers rotates whole heads of this family, and fails on a part of them "
            f"with the rope type '{kind}'."
        )
    return 1.0


def _kind(parameters: Config) -> str:
    return parameters.text("rope_type", parameters.text("type", "default"))


def _scaling(config: Config, parameters: Config, rotated: int) -> RopeScaling | None:
    kind = _kind(parameters)
    own_context = config.integer("max_position_embeddings")
    trained_key = "original_max_position_embeddings"
    trained = config.integer(trained_key, parameters.integer(trained_key, own_context))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=parameters.number("factor", above=0))
    if kind == "dynamic":
        return DynamicScaling(factor=parameters.number("factor", above=0), original_context=own_context)
    if kind == "llama3":
        low, high = (parameters.number(f"{end}_freq_factor", above=0) for end in ("low", "high"))
        if high < low:
            raise ExportError(f"'high_freq_factor' is {high}; expected at least 'low_freq_factor', {low}.")
        return Llama3Scaling(
            factor=parameters.number("factor", above=0),
            low_frequency_factor=low,
            high_frequency_factor=high,
            original_context=trained,
        )
    if kind == "yarn" and not parameters.has("short_factor"):
        return _yarn(parameters, own_context, trained)
    if kind in ("longrope", "su", "yarn"):  # names that Phi-3's first configs had for it
        return _long(parameters, own_context, trained, rotated)
    raise UnsupportedModel(f"rope type '{kind}' is not described; known: {_KNOWN}.")


def _yarn(parameters: Config, own_context: int, trained: int) -> YarnScaling:
    factor = parameters.number("factor", own_context / trained, above=0)
    own_factor = _yarn_attention_factor(parameters, factor)
    return YarnScaling(
        factor=factor,
        original_context=trained,
        beta_fast=parameters.number("beta_fast", 32.0, above=0),
        beta_slow=parameters.number("beta_slow", 1.0, above=0),
        attention_factor=parameters.number("attention_factor", own_factor, above=0),
        truncate=parameters.flag("truncate", True),
    )


def _yarn_attention_factor(parameters: Config, factor: float) -> float:
    """Section 3.4 of the YaRN paper; the two mscale keys are DeepSeek's variant of it."""

    def grown(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, over = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    return grown(mscale) / grown(over) if mscale and over else grown(1.0)


def _long(parameters: Config, own_context: int, trained: int, rotated: int) -> LongRopeScaling:
    short, long = (parameters.numbers(f"{kind}_factor", rotated // 2, above=0) for kind in ("short", "long"))
    factor = parameters.number("factor", own_context / trained, above=0)
    own_factor = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 and trained > 1 else 1.0
    return LongRopeScaling(
        short=tuple(short),
        long=tuple(long),
        original_context=trained,
        context=own_context,
        attention_factor=parameters.number("attention_factor", own_factor, above=0),
    )
