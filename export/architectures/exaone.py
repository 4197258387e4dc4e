"""EXAONE 3.0, 3.5 (2.4B, 7.8B, 32B), EXAONE Deep: Llama under names of its own."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    model="transformer", embedding="wte", layers="h", norm="ln_f", attention_norm="ln_1", mlp_norm="ln_2",
    q="attn.attention.q_proj", k="attn.attention.k_proj", v="attn.attention.v_proj", o="attn.attention.out_proj",
    gate="mlp.c_fc_0", up="mlp.c_fc_1", down="mlp.c_proj",
)  # fmt: skip
_KEYS = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function"}


def describe(config: Config) -> Decoder:
    # a config that transformers 5.24 wrote has Llama's keys
    config = config.named({key: theirs for key, theirs in _KEYS.items() if config.has(theirs)})
    bias = config.flag("attention_bias", False)
    shape = Shape(
        model_type="exaone",
        names=NAMES,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        rope_keys=RopeKeys(theta=500_000.0),
    )
    return describe_shaped(config, shape)
