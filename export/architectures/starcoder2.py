"""StarCoder 2 (3B, 7B, 15B): layer norms, biases, MLP without a gate, a sliding window."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(gate="", up="mlp.c_fc", down="mlp.c_proj")


def describe(config: Config) -> Decoder:
    bias = config.flag("use_bias", True)
    window = config.integer_or_none("sliding_window", None)
    shape = Shape(
        model_type="starcoder2",
        names=NAMES,
        norm=NormKind(kind="layer", bias=True, key="norm_epsilon", epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        tied=True,
        activation="gelu_pytorch_tanh",
        window=lambda _: window,
    )
    return describe_shaped(config, shape)
