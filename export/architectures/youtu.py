"""Youtu-LLM 2B: multi-head latent attention (MLA) as in DeepSeek-V3, without experts."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.mla import with_rotary_head_dim
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.deepseek_v3 import latent_shape
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    shape = replace(latent_shape(config, "youtu"), tied=True, mixture=lambda parts, index: None)
    return describe_shaped(with_rotary_head_dim(config), shape)
