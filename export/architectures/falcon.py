"""Falcon 7B, 40B, 11B: parallel attention and MLP blocks; fused QKV, grouped by KV head."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    model="transformer", embedding="word_embeddings", layers="h", norm="ln_f",
    qkv="self_attention.query_key_value", o="self_attention.dense",
    gate="", up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
)  # fmt: skip


def describe(config: Config) -> Decoder:
    refuse(config, "alibi", True)  # of Falcon-RW
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    is_new = config.flag("new_decoder_architecture", False)
    is_parallel = is_new or config.flag("parallel_attn", True)
    kv_heads = 1 if config.flag("multi_query", True) else heads
    if is_new:
        kv_heads = config.integer("num_kv_heads", heads)
    bias = config.flag("bias", False)
    shape = Shape(
        model_type="falcon",
        names=_names(config, is_new, is_parallel),
        norm=NormKind(kind="layer", bias=True, key="layer_norm_epsilon", epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        tied=True,
        activation_key="activation",
        activation="gelu",
        qkv_groups=kv_heads,
        parallel=is_parallel,
    )
    config = config.named({"intermediate_size": "ffn_hidden_size"})
    config = config.filled({"intermediate_size": 4 * hidden, "max_position_embeddings": 2048})
    return describe_shaped(config.replaced({"num_key_value_heads": kv_heads}), shape)


def _names(config: Config, is_new: bool, is_parallel: bool) -> Names:
    if is_new and config.integer("num_ln_in_parallel_attn", 2) == 2:
        return replace(NAMES, attention_norm="ln_attn", mlp_norm="ln_mlp")
    return replace(NAMES, mlp_norm="") if is_parallel else NAMES
