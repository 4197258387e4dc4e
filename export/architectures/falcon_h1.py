"""Falcon-H1: Llama with Mamba-2 beside attention in every layer, and multipliers of most matrices."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped, refuse
from embedllm.export.architectures._shared.mamba2 import Mamba2Sizes, mamba2
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.recurrent import Mamba2
from embedllm.package.architecture.weights import Linear

_NAMES = Names(norm="final_layernorm", mlp_norm="pre_ff_layernorm", gate="feed_forward.gate_proj",
               up="feed_forward.up_proj", down="feed_forward.down_proj")  # fmt: skip
_NORM = NormKind(epsilon=1e-5)
_BIASES = ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias")  # multipliers are of products only


def describe(config: Config) -> Decoder:
    for key in _BIASES:
        refuse(config, key, True)
    shape = Shape(
        model_type="falcon_h1",
        names=_NAMES,
        norm=_NORM,
        activations={"silu": "silu", "swish": "silu"},  # of the convolution, too
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logits_multiplier=config.number("lm_head_multiplier", 1.0),
        ssm=_mamba2,
    )
    decoder = describe_shaped(config, shape)
    return replace(decoder, layers=tuple(_multiply(config, layer) for layer in decoder.layers))


def _mamba2(parts: Parts) -> Mamba2:
    config, hidden = parts.config, parts.sizes.hidden
    heads = config.integer("mamba_n_heads", 128)
    inner = config.integer("mamba_d_ssm", config.integer("mamba_expand", 2) * hidden)
    if inner % heads:
        raise UnsupportedModel(f"Mamba layers of {inner} values in {heads} heads; expected heads of equal size.")
    has_norm = config.flag("mamba_rms_norm", False)
    if has_norm and config.flag("mamba_norm_before_gate", True):
        raise UnsupportedModel("mamba_norm_before_gate is true; this variant of the family is not described.")
    sizes = Mamba2Sizes(
        heads=heads,
        head_dim=inner // heads,
        state_dim=config.integer("mamba_d_state", 256),
        groups=config.integer("mamba_n_groups", 1),
        kernel=config.integer("mamba_d_conv", 4, least=2),
        has_conv_bias=config.flag("mamba_conv_bias", True),
        place="mamba",
        name="ssm",
    )
    return mamba2(parts, sizes, _NORM if has_norm else None)


def _multiply(config: Config, layer: Layer) -> Layer:
    """A layer whose matrices have the config's multipliers: the products are linear in them."""
    attention, mlp, ssm = layer.attention, layer.mlp, layer.ssm
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    assert mlp.gate is not None
    assert ssm is not None
    attention_in, key = config.number("attention_in_multiplier", 1.0), config.number("key_multiplier", 1.0)
    gate, down = _numbers(config, "mlp_multipliers", 2)
    entering = config.number("ssm_in_multiplier", 1.0)
    z, x, b, c, step = (entering * each for each in _numbers(config, "ssm_multipliers", 5))
    return replace(
        layer,
        attention=replace(
            attention,
            q=_times(attention.q, attention_in),
            k=_times(attention.k, attention_in * key),
            v=_times(attention.v, attention_in),
            o=_times(attention.o, config.number("attention_out_multiplier", 1.0)),
        ),
        ssm=replace(
            ssm,
            z=_times(ssm.z, z),
            x=_times(ssm.x, x),
            b=_times(ssm.b, b),
            c=_times(ssm.c, c),
            step=_times(ssm.step, step),
            o=_times(ssm.o, config.number("ssm_out_multiplier", 1.0)),
        ),
        mlp=replace(mlp, gate=_times(mlp.gate, gate), down=_times(mlp.down, down)),
    )


def _numbers(config: Config, key: str, count: int) -> list[float]:
    return config.numbers(key, count) if config.has(key) else [1.0] * count


def _times(linear: Linear, multiplier: float) -> Linear:
    return replace(linear, weight_multiplier=multiplier)
