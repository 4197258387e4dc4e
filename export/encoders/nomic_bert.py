"""Nomic Embed 1 and 1.5: BERT with RoPE in place of learned positions, and a gated MLP."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import refuse
from embedllm.export.architectures._shared.parts import Names
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.export.encoders.common import BERT, describe_behind
from embedllm.package.architecture import Decoder

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


def describe(config: Config) -> Decoder:
    if config.has("n_embd"):
        config = _first(config)
    return describe_behind(
        config, replace(_SHAPE, model_type="nomic_bert"), types="embeddings.token_type_embeddings", first="emb_ln"
    )


def _first(config: Config) -> Config:
    """The config of a first checkpoint; with dynamic NTK scaling as long as texts are that need none."""
    if config.integer("moe_every_n_layers", 0, least=0):
        raise UnsupportedModel("a Nomic Embed with a mixture of experts (v2), which is not described.")
    for key in (*_BIASES, "prenorm", "rotary_emb_interleaved", "causal", "use_rms_norm"):
        refuse(config.filled({key: False}), key, True)
    part, active = config.number("rotary_emb_fraction", 1.0), config.text("activation_function", "swiglu")
    if part != 1 or active != "swiglu" or config.has("rotary_emb_scale_base"):
        raise UnsupportedModel(
            f"rotary_emb_fraction is {part:g}, activation_function '{active}', rotary_emb_scale_base "
            f"{config.value('rotary_emb_scale_base')}; expected 1, 'swiglu', and none."
        )
    found = config.named(_KEYS)
    if config.has("rotary_scaling_factor"):
        longest = config.integer("max_trained_positions", 2048)
        found = found.replaced({"max_position_embeddings": min(longest, found.integer("max_position_embeddings"))})
    return found
