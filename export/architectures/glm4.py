"""GLM-4 0414 (9B, 32B), GLM-Z1: GLM with post-norms after attention and MLP."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import glm
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = replace(glm.NAMES, attention_post_norm="post_self_attn_layernorm", mlp_post_norm="post_mlp_layernorm")


def describe(config: Config) -> Decoder:
    return glm.describe_like(config, "glm4", NAMES)
