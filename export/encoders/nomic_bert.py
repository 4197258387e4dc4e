"""Nomic Embed 1, 1.5 and 2: BERT with RoPE in place of learned positions, and a gated MLP or (2) experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import refuse
from embedllm.export.architectures._shared.parts import Names, Parts
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, describe_behind
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Origin

NAMES = Names(
    model="nomic_bert", embedding="embeddings.word_embeddings", layers="encoder.layers", attention_norm="norm1",
    mlp_norm="norm2", qkv="attn.Wqkv", o="attn.out_proj", gate="mlp.fc12", up="mlp.fc11", down="mlp.fc2",
)  # fmt: skip
_SHAPE = replace(
    BERT, names=NAMES, qkv_bias=False, o_bias=False, mlp_bias=False, activation="silu", has_rope=True,
    rope_keys=RopeKeys(theta=1000.0),
)  # fmt: skip
# as the first checkpoints call it, whose config is GPT-2's
_KEYS = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
         "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
         "layer_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base"}  # fmt: skip
_BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
_OF_EXPERTS = ("expert_choice_router", "moe_normalize_expert_weights")  # what is refused of a mixture


def describe(config: Config) -> Decoder:
    every = config.integer("moe_every_n_layers", 0, least=0)
    if config.has("n_embd"):
        config = _first(config, has_experts=every > 0)
    shape = replace(_SHAPE, model_type="nomic_bert")
    if every:
        shape = replace(
            shape, names=replace(NAMES, gate="", up="mlp.fc1"), qkv_bias=True, o_bias=True, mlp_bias=True,
            activation="gelu", mixture=lambda parts, index: _mixture(parts) if index % every == 1 else None,
        )  # fmt: skip
    return describe_behind(config, shape, types="embeddings.token_type_embeddings", first="emb_ln")


def _first(config: Config, *, has_experts: bool) -> Config:
    """The config of a first checkpoint; with dynamic NTK scaling as long as texts are that need none."""
    active = config.text("activation_function", "gelu" if has_experts else "swiglu")
    for key in _BIASES:
        refuse(config.filled({key: has_experts}), key, not has_experts)
    for key in ("prenorm", "rotary_emb_interleaved", "causal", "use_rms_norm", *_OF_EXPERTS):
        refuse(config.filled({key: False}), key, True)
    part, usual = config.number("rotary_emb_fraction", 1.0), "gelu" if has_experts else "swiglu"
    if part != 1 or active != usual or config.has("rotary_emb_scale_base"):
        raise UnsupportedModel(
            f"rotary_emb_fraction is {part:g}, activation_function '{active}', rotary_emb_scale_base "
            f"{config.value('rotary_emb_scale_base')}; expected 1, '{usual}', and none."
        )
    result = config.named(_KEYS).replaced({"hidden_act": "gelu"} if has_experts else {})
    if config.has("rotary_scaling_factor"):
        longest = config.integer("max_trained_positions", 2048)
        result = result.replaced({"max_position_embeddings": min(longest, result.integer("max_position_embeddings"))})
    return result


def _mixture(parts: Parts) -> Moe:
    """The experts of a layer are two tensors, in which they lie behind each other; they share one bias."""
    config, hidden, inner = parts.config, parts.sizes.hidden, parts.config.integer("intermediate_size")
    count, top_k, place = config.integer("num_experts", 8), config.integer("moe_top_k", 2), "mlp.experts.mlp"
    if top_k > count:
        raise UnsupportedModel(f"{top_k} experts of a token; expected at most all {count} of a layer.")

    def expert(number: int) -> Mlp:
        part, start = f"mlp.experts.{number}", number * inner
        up = Origin(rows=count * inner, start=start)
        down = Origin(rows=hidden, transposed=True, source_columns=count * inner, column_start=start)
        return Mlp(
            up=parts.linear(f"{part}.up", f"{place}.w1", inner, hidden, origin=up),
            down=parts.linear(f"{part}.down", f"{place}.w2", hidden, inner, origin=down),
            activation="gelu",
        )

    return Moe(
        router=parts.linear("mlp.router", "mlp.router.layer", count, hidden),
        experts=tuple(expert(number) for number in range(count)),
        top_k=top_k,
        bias=f"{parts.source}.mlp.experts.bias" if config.flag("experts_bias", True) else "",
    )
