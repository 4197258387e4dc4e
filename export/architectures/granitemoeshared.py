"""Granite 4.0 tiny's and 3.x's MoE with shared experts: Granite MoE with a shared expert."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.parts import Parts, activation
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.granite import multiplied
from embedllm.export.architectures.granitemoe import packed_mixture
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Origin


def describe(config: Config) -> Decoder:
    shape = replace(multiplied(config, "granitemoeshared"), mixture=lambda parts, _: _mixture(parts))
    return describe_shaped(config, shape)


def _mixture(parts: Parts) -> Moe:
    moe = packed_mixture(parts)
    inner = parts.config.integer("shared_intermediate_size", 0, least=0)
    return replace(moe, shared=shared_mlp(parts, inner, "mlp.shared")) if inner else moe


def shared_mlp(parts: Parts, inner: int, part: str) -> Mlp:
    """What every token passes, of `inner` values."""
    hidden = parts.sizes.hidden
    gate, up = (
        parts.linear(f"{part}.{half}", "shared_mlp.input_linear", inner, hidden, origin=origin)
        for half, origin in (("gate", Origin(rows=2 * inner)), ("up", Origin(rows=2 * inner, start=inner)))
    )
    down = parts.linear(f"{part}.down", "shared_mlp.output_linear", hidden, inner)
    return Mlp(gate=gate, up=up, down=down, activation=activation(parts.config))
