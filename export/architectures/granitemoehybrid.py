"""Granite 4.0 (H micro, tiny, small): Granite with Mamba-2 in most layers, NoPE attention, a shared expert."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import describe_shaped, refuse
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.mamba2 import Mamba2Sizes, mamba2
from embedllm.export.architectures._shared.parts import NormKind, Parts, activation
from embedllm.export.architectures._shared.rope import FULL
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.granite import multiplied
from embedllm.export.architectures.granitemoe import packed_mixture
from embedllm.export.architectures.granitemoeshared import shared_mlp
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.recurrent import Mamba2

_ATTENTION, _MAMBA = (FULL, "attention"), ("linear_attention", "mamba")  # in 'layer_types', newer and older configs


def describe(config: Config) -> Decoder:
    attends = _attention_layers(config)
    if True not in attends:
        raise UnsupportedModel("no layer has attention; expected one at least, whose keys are as many as the tokens.")
    shape = replace(
        multiplied(config, "granitemoehybrid"),
        has_rope=config.text("position_embedding_type", "nope") == "rope",
        mixer=lambda parts, index: None if attends[index] else _mamba2(parts),
        mixture=lambda parts, _: _mixture(parts),
    )
    return describe_shaped(config, shape)


def _attention_layers(config: Config) -> list[bool]:
    config = config.filled({"layer_types": config.value("layers_block_type")})
    return [kind in _ATTENTION for kind in layer_types(config, (*_ATTENTION, *_MAMBA)) or []]


def _mixture(parts: Parts) -> Moe | Mlp:
    """Without experts the shared one is all there is."""
    inner = parts.config.integer("shared_intermediate_size", 1024)
    if not parts.config.integer("num_local_experts", 8, least=0):
        return shared_mlp(parts, inner, "mlp")
    return replace(packed_mixture(parts), shared=shared_mlp(parts, inner, "mlp.shared"))


def _mamba2(parts: Parts) -> Mamba2:
    config = parts.config
    heads, inner = config.integer("mamba_n_heads", 128), config.integer("mamba_expand", 2) * parts.sizes.hidden
    if inner % heads:
        raise UnsupportedModel(f"Mamba layers of {inner} values in {heads} heads; expected heads of equal size.")
    if (groups := config.integer("mamba_n_groups", 1)) != 1:
        raise UnsupportedModel(f"mamba_n_groups is {groups}, whose norm is over all groups; expected 1.")
    refuse(config, "mamba_proj_bias", True)
    activation(config, names={"silu": "silu", "swish": "silu"})  # of the convolution, too
    sizes = Mamba2Sizes(
        heads=heads,
        head_dim=inner // heads,
        state_dim=config.integer("mamba_d_state", 256),
        groups=1,
        kernel=config.integer("mamba_d_conv", 4, least=2),
        has_conv_bias=config.flag("mamba_conv_bias", True),
        place="mamba",
    )
    return mamba2(parts, sizes, NormKind())
