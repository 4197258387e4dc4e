"""InternLM 2, 2.5 (1.8B, 7B, 20B): Llama with fused QKV, grouped by KV head."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    embedding="tok_embeddings", head="output", attention_norm="attention_norm", mlp_norm="ffn_norm",
    qkv="attention.wqkv", o="attention.wo", gate="feed_forward.w1", up="feed_forward.w3", down="feed_forward.w2",
)  # fmt: skip


def describe(config: Config) -> Decoder:
    bias = config.flag("bias", True)
    groups = config.integer("num_key_value_heads", config.integer("num_attention_heads"))
    shape = Shape(model_type="internlm2", names=NAMES, qkv_bias=bias, o_bias=bias, qkv_groups=groups)
    return describe_shaped(config, shape)
