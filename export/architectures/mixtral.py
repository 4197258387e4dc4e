"""Mixtral 8x7B, 8x22B: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, mixture
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

_PLACE = "block_sparse_moe"


def describe(config: Config) -> Decoder:
    window = config.integer_or_none("sliding_window", None)
    experts = placed(
        Experts(
            count=config.integer("num_local_experts", 8),
            top_k=config.integer("num_experts_per_tok", 2),
            inner=config.integer("intermediate_size"),
        )
    )
    shape = Shape(
        model_type="mixtral",
        norm=NormKind(epsilon=1e-5),
        rope_keys=RopeKeys(theta=1_000_000.0),
        window=lambda _: window,
        mixture=lambda parts, _: mixture(parts, experts, norm_topk=True),
    )
    return describe_shaped(config, shape)


def placed(experts: Experts) -> Experts:
    """The same, under the names that Mixtral's checkpoints have."""
    return replace(experts, router=f"{_PLACE}.gate", place=f"{_PLACE}.experts", gate="w1", up="w3", down="w2")
