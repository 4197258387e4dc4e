"""Command A+: Command A with a mixture of experts and shared ones, dense first layers, layer norms or RMS norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures import cohere
from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.moe import Experts, gated, is_dense, mixture
from embedllm.export.architectures._shared.parts import RMS, Parts, activation
from embedllm.export.architectures._shared.sliding_window import all_but_every, sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe

_DENSE = "first_k_dense_replace"
_SCORING_FUNCS = {"softmax": "softmax_topk", "sigmoid": "sigmoid"}
_SHARES = {"sum": 1.0, "average": 0.5}  # of the chosen experts' sum, and of the shared one


def describe(config: Config) -> Decoder:
    if config.has("rope_scaling"):
        raise UnsupportedModel("'rope_scaling' is given, which transformers 5.24 leaves out for this family; expected "
                               "null, or the scaling in 'rope_parameters'.")  # fmt: skip
    dense, prefix = config.integer(_DENSE, 0, least=0), config.integer("prefix_dense_sliding_window_pattern", 1)
    first, rest = all_but_every(prefix), all_but_every(config.integer("sliding_window_pattern", 4))
    sliding = sliding_layers(config, lambda index: first(index) if index < dense else rest(index - dense))
    shape = cohere.shape(config, "cohere2_moe")
    shape = replace(
        shape,
        norm=RMS if config.has(RMS.key) else shape.norm,
        rope=lambda index: 0 if sliding[index] or (prefix == 1 and is_dense(config, index, 0)) else None,
        window=windows(config, 4096, sliding),
        mixture=_mixture,
    )
    return describe_shaped(config, shape)


def _mixture(parts: Parts, index: int) -> Moe | Mlp:
    config = parts.config
    inner, top_k = config.integer("intermediate_size"), config.integer("num_experts_per_tok", 2)
    if is_dense(config, index, 0):
        return parts.mlp(config.integer("prefix_dense_intermediate_size", inner), activation(config))
    experts = Experts(count=config.integer("num_experts", 8), top_k=top_k, inner=inner)
    scoring_func = _SCORING_FUNCS[_choice(config, "expert_selection_fn", "softmax", _SCORING_FUNCS)]
    norm_topk = scoring_func == "sigmoid" and config.flag("norm_topk_prob", True)
    moe = mixture(parts, experts, scoring_func=scoring_func, norm_topk=norm_topk)
    if not (count := config.integer("num_shared_experts", 0, least=0)):
        return moe
    share = _SHARES[_choice(config, "shared_expert_combination_strategy", "average", _SHARES)]
    shared = gated(parts, "mlp.shared", "mlp.shared_experts", replace(experts, inner=inner * count))
    return replace(moe, scale=share, shared=replace(shared, down=replace(shared.down, weight_multiplier=share)))


def _choice(config: Config, key: str, default: str, known: Mapping[str, object]) -> str:
    if (value := config.text(key, default)) not in known:
        raise UnsupportedModel(f"{key} is '{value}'; expected {' or '.join(known)}.")
    return value
