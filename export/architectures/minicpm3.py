"""MiniCPM3 4B: MiniCPM's multipliers, multi-head latent attention (MLA)."""

from __future__ import annotations

import math

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.mla import latent_attention, with_rotary_head_dim
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    depth = config.number_or_none("scale_depth", 1.4)
    base = config.number_or_none("dim_model_base", 256, above=0)
    shape = Shape(
        model_type="minicpm3",
        norm=NormKind(epsilon=1e-5),
        mlp_bias=config.flag("mlp_bias", False),
        tied=True,
        attention=lambda parts: latent_attention(parts, interleaved=False, q_rank=768),
        embedding_multiplier=config.number("scale_emb", 12.0),
        residual_multiplier=1.0 if depth is None else depth / math.sqrt(layers),
        logits_multiplier=1.0 if base is None else base / hidden,
    )
    config = config.filled({"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
                            "v_head_dim": hidden // config.integer("num_attention_heads")})  # fmt: skip
    return describe_shaped(with_rotary_head_dim(config), shape)
