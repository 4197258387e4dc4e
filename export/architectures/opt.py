"""OPT: learned position embeddings, layer norms, biases, ReLU."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    model="model.decoder", positions="embed_positions", norm="final_layer_norm",
    attention_norm="self_attn_layer_norm", mlp_norm="final_layer_norm", o="self_attn.out_proj",
    gate="", up="fc1", down="fc2",
)  # fmt: skip


def describe(config: Config) -> Decoder:
    refuse(config, "do_layer_norm_before", False)
    refuse(config, "_remove_final_layer_norm", True)
    refuse(config, "layer_norm_elementwise_affine", False)
    hidden = config.integer("hidden_size")
    if config.integer("word_embed_proj_dim", hidden) != hidden:
        raise UnsupportedModel(
            f"word_embed_proj_dim is {config.integer('word_embed_proj_dim')}; expected hidden_size, {hidden}."
        )
    bias = config.flag("enable_bias", True)
    shape = Shape(
        model_type="opt",
        names=NAMES,
        norm=NormKind(kind="layer", bias=True, key="layer_norm_eps", epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        tied=True,
        activation_key="activation_function",
        activation="relu",
        has_rope=False,
        positions_start=2,
    )
    return describe_shaped(
        config.named({"intermediate_size": "ffn_dim"}).with_defaults({"intermediate_size": 3072}), shape
    )
