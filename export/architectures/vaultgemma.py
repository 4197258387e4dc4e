"""VaultGemma 1B: Gemma 2 without the norms behind attention and mlp."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import gemma2
from embedllm.export.architectures.common import describe_shaped
from embedllm.export.architectures.common_parts import Names
from embedllm.export.config import Config
from embedllm.export.decoder import Decoder

NAMES = Names(mlp_norm="pre_feedforward_layernorm")


def describe(config: Config) -> Decoder:
    return describe_shaped(config, replace(gemma2.shape(config), model_type="vaultgemma", names=NAMES))
