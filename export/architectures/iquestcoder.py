"""IQuest-Coder-V1 (7B, 14B, 40B): Llama with a head size of 128."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder


def describe(config: Config) -> Decoder:
    refuse(config, "use_sliding_window", True)
    if config.has("clip_qkv"):
        raise UnsupportedModel(f"clip_qkv is {config.value('clip_qkv')!r}; expected null.")
    bias = config.flag("attention_bias", False)
    shape = Shape(model_type="iquestcoder", norm=NormKind(epsilon=1e-5), qkv_bias=bias, o_bias=bias,
                  mlp_bias=config.flag("mlp_bias", False))  # fmt: skip
    return describe_shaped(config, shape)
