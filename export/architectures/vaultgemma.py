"""VaultGemma 1B: Gemma 2 without post-norms."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures import gemma2
from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.parts import Names
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(mlp_norm="pre_feedforward_layernorm")


def describe(config: Config) -> Decoder:
    return describe_shaped(config, replace(gemma2.shape(config), model_type="vaultgemma", names=NAMES))
