"""Granite 3.x MoE (1B-A400M, 3B-A800M): Granite with a mixture of experts, stacked in one tensor."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.parts import Parts, activation
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.granite import multiplied
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Linear, Origin

_PLACE = "block_sparse_moe"


def describe(config: Config) -> Decoder:
    shape = replace(multiplied(config, "granitemoe"), mixture=lambda parts, _: packed_mixture(parts))
    return describe_shaped(config, shape)


def packed_mixture(parts: Parts) -> Moe:
    """Of experts whose gates and ups lie in one tensor, and their downs in another."""
    config = parts.config
    count = config.integer("num_local_experts", 8)
    hidden, inner = parts.sizes.hidden, config.integer("intermediate_size")

    def matrix(number: int, part: str, place: str, rows: int, columns: int, start: int, per: int) -> Linear:
        """An expert's, out of a tensor that has `per` rows of each expert."""
        origin = Origin(rows=per * count, start=number * per + start)
        return parts.linear(f"mlp.experts.{number}.{part}", f"{_PLACE}.{place}", rows, columns, origin=origin)

    experts = [
        Mlp(
            gate=matrix(number, "gate", "input_linear", inner, hidden, 0, 2 * inner),
            up=matrix(number, "up", "input_linear", inner, hidden, inner, 2 * inner),
            down=matrix(number, "down", "output_linear", hidden, inner, 0, hidden),
            activation=activation(config),
        )
        for number in range(count)
    ]
    return Moe(
        router=parts.linear("mlp.router", f"{_PLACE}.router.layer", count, hidden),
        experts=tuple(experts),
        top_k=config.integer("num_experts_per_tok", 2),
        scoring_func="softmax_topk",
    )
