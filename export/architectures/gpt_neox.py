"""Pythia, GPT-NeoX 20B, Dolly 2: parallel attention and MLP blocks; fused QKV, interleaved by head."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    model="gpt_neox", embedding="embed_in", norm="final_layer_norm", head="embed_out",
    qkv="attention.query_key_value", o="attention.dense",
    gate="", up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
)  # fmt: skip


def describe(config: Config) -> Decoder:
    bias = config.flag("attention_bias", True)
    shape = Shape(
        model_type="gpt_neox",
        names=NAMES,
        norm=NormKind(kind="layer", bias=True, key="layer_norm_eps", epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
        activation="gelu",
        qkv_groups=config.integer("num_attention_heads"),
        rope_keys=RopeKeys(theta_key="rotary_emb_base", part=0.25, part_key="rotary_pct"),
        parallel=config.flag("use_parallel_residual", True),
    )
    return describe_shaped(config, shape)
