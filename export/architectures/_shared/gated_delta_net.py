"""Gated DeltaNet; and what Qwen3-Next and Qwen 3.5 share: it in three of four layers, and gated attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import Shape
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts, activation
from embedllm.export.architectures._shared.rope import FULL, RopeKeys
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.recurrent import DeltaNet
from embedllm.package.architecture.weights import Linear, Origin

LINEAR = "linear_attention"  # in 'layer_types'
_PLACE = "linear_attn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a delta rule."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    hidden: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim


# matrices q, k, v, z, beta and decay, as a family's checkpoints have them
Inputs = Callable[[Parts, Sizes], tuple[Linear, ...]]


def shape_of(
    config: Config,
    model_type: str,
    names: Names,
    inputs: Inputs,
    mixture: Callable[[Parts, int], Moe | None] = lambda parts, index: None,
) -> Shape:
    """Raises UnsupportedModel where no layer has attention."""
    attends = _attention_layers(config)
    if True not in attends:
        raise UnsupportedModel("no layer has attention; expected one at least, whose keys are as many as the tokens.")
    bias = config.flag("attention_bias", False)

    def query(parts: Parts, part: str, start: int) -> Linear:
        """The rows of q or of the gate: in the source they take turns, head by head."""
        head, rows = parts.sizes.head_dim, parts.sizes.heads * parts.sizes.head_dim
        origin = Origin(rows=2 * rows, start=start, block=head, stride=2 * head)
        return parts.linear(part, names.q, rows, parts.sizes.hidden, bias=bias, origin=origin)

    return Shape(
        model_type=model_type,
        names=names,
        norm=NormKind(weight_offset=1.0),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="head",
        rope_keys=RopeKeys(part=0.25),
        query=lambda parts: query(parts, "attention.q", 0),
        gate=lambda parts: query(parts, "attention.gate", parts.sizes.head_dim),
        mixer=lambda parts, index: None if attends[index] else delta_net(parts, inputs),
        mixture=mixture,
    )


def _attention_layers(config: Config) -> list[bool]:
    types = layer_types(config, (FULL, LINEAR))
    if types is None:
        every = config.integer("full_attention_interval", 4)
        return [(index + 1) % every == 0 for index in range(config.integer("num_hidden_layers"))]
    return [kind == FULL for kind in types]


def delta_net(parts: Parts, inputs: Inputs, *, norm: str = "norm", out: str = "out_proj") -> DeltaNet:
    """The mixer of a layer. norm, out: what the checkpoint calls those of the output."""
    config, source = parts.config, f"{parts.source}.{_PLACE}"
    sizes = Sizes(
        key_heads=config.integer("linear_num_key_heads", 16),
        value_heads=config.integer("linear_num_value_heads", 32),
        key_dim=config.integer("linear_key_head_dim", 128),
        value_dim=config.integer("linear_value_head_dim", 128),
        hidden=parts.sizes.hidden,
    )
    if sizes.value_heads % sizes.key_heads:
        raise UnsupportedModel(f"{sizes.value_heads} value heads are no multiple of {sizes.key_heads} key heads.")
    activation(config, names={"silu": "silu", "swish": "silu"})  # of the convolutions, too
    q, k, v, z, beta, decay = inputs(parts, sizes)
    kind = replace(parts.norm_kind, weight_offset=0.0)
    return DeltaNet(
        key_heads=sizes.key_heads,
        value_heads=sizes.value_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        q=q,
        k=k,
        v=v,
        z=z,
        o=parts.linear("attention.o", f"{_PLACE}.{out}", sizes.hidden, sizes.values),
        beta=beta,
        decay=decay,
        log_decay=f"{source}.A_log",
        decay_bias=f"{source}.dt_bias",
        kernel=config.integer("linear_conv_kernel_dim", 4, least=2),
        convolution=f"{source}.conv1d.weight",
        norm=kind.named(config, f"{parts.name}.attention.norm", f"{source}.{norm}", sizes.value_dim),
    )


def stretches(parts: Parts, where: str, hidden: int, pieces: dict[str, int], *, groups: int) -> tuple[Linear, ...]:
    """Matrices whose rows lie in one tensor, one share of each behind the other, for each group of heads.

    pieces: rows, by name.
    """
    total, start = sum(pieces.values()), 0
    linears: list[Linear] = []
    for name, rows in pieces.items():
        block = rows // groups
        origin = Origin(rows=total, start=start, block=block, stride=total // groups)
        linears.append(parts.linear(f"attention.{name}", f"{_PLACE}.{where}", rows, hidden, origin=origin))
        start += block
    return tuple(linears)


def whole(parts: Parts, name: str, where: str, rows: int, hidden: int) -> Linear:
    """A matrix that is a tensor of its own."""
    return parts.linear(f"attention.{name}", f"{_PLACE}.{where}", rows, hidden)
