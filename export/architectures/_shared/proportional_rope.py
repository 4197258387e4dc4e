"""Proportional RoPE (Gemma 4, LFM3): of a head's pairs only the fastest are rotated, as slowly as in a whole head."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.rope import FULL, RopeKeys, describe_rope
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.rope import ProportionalScaling, Rope
from embedllm.package.architecture.weights import Origin


def full_rope(config: Config, head_dim: int) -> Rope:
    """Of the layers that see all."""
    rope_parameters = config.section("rope_parameters")
    own = (rope_parameters and rope_parameters.section(FULL)) or Config({})
    if own.text("rope_type", "default") != "proportional":
        return describe_rope(config, head_dim)
    part = own.number("partial_rotary_factor", 1.0, above=0)
    parameters = {"rope_theta": own.number("rope_theta", above=1), "partial_rotary_factor": part}
    rope = describe_rope(config.replaced({"rope_parameters": parameters}), head_dim, RopeKeys(part=1.0))
    return replace(rope, scaling=ProportionalScaling(head_dim=head_dim, factor=own.number("factor", 1.0, above=0)))


def rotated_first(rope: Rope, head_dim: int, rows: int) -> Origin | None:
    """Where the `rows` of q or k, or of the norm of their heads, are in a checkpoint; None: in the same places.

    Checkpoints have the halves of a whole head apart; here what is rotated of both comes first.
    """
    if not isinstance(rope.scaling, ProportionalScaling) or rope.rotary_dim == head_dim:
        return None
    return Origin(rows=rows, head_rows=head_dim, partial_halves=rope.rotary_dim)
