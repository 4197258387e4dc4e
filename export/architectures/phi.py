"""Phi-1, Phi-1.5, Phi-2: parallel attention and MLP blocks, layer norms, biases, partial rotary embedding (50%)."""

from __future__ import annotations

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.parts import Names, NormKind
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder

NAMES = Names(
    norm="final_layernorm", mlp_norm="", o="self_attn.dense", gate="", up="mlp.fc1", down="mlp.fc2",
)  # fmt: skip


def describe(config: Config) -> Decoder:
    refuse(config, "qk_layernorm", True)
    shape = Shape(
        model_type="phi",
        names=NAMES,
        norm=NormKind(kind="layer", bias=True, key="layer_norm_eps", epsilon=1e-5),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        head_bias=True,
        activation="gelu_new",
        rope_keys=RopeKeys(part=0.5),
        parallel=True,
    )
    return describe_shaped(config, shape)
