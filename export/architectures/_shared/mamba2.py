"""Mamba-2 layers, as Granite 4.0's hybrids, Nemotron-H and Falcon-H1 have them: all that is read in one matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import NormKind, Parts
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.recurrent import Mamba2
from embedllm.package.architecture.weights import Linear, Origin

_UNLIMITED = (
    [float("inf")],
    [{"__float__": "Infinity"}],
)  # the step's upper limit, as Python and transformers write it


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Sizes:
    """Of the state space of a layer, and where a checkpoint has it."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    kernel: int  # tokens of the convolution
    has_conv_bias: bool
    place: str  # in a layer
    name: str = "attention"  # of the part of a layer, in weights.safetensors


def mamba2(parts: Parts, sizes: Mamba2Sizes, norm: NormKind | None) -> Mamba2:
    """Raises UnsupportedModel for heads that are no multiple of the groups, and for limited steps."""
    hidden, source, groups = parts.sizes.hidden, f"{parts.source}.{sizes.place}", sizes.groups
    inner, state = sizes.heads * sizes.head_dim, groups * sizes.state_dim
    if sizes.heads % groups:
        raise UnsupportedModel(f"{sizes.heads} heads of a Mamba layer are no multiple of its {groups} groups.")
    _check_steps(parts.config)
    starts = {"z": 0, "x": inner, "b": 2 * inner, "c": 2 * inner + state, "step": 2 * inner + 2 * state}
    total = 2 * inner + 2 * state + sizes.heads

    def part(name: str, rows: int) -> Linear:
        origin = Origin(rows=total, start=starts[name])
        return parts.linear(f"{sizes.name}.{name}", f"{sizes.place}.in_proj", rows, hidden, origin=origin)

    own = norm and norm.named(parts.config, f"{parts.name}.{sizes.name}.norm", f"{source}.norm", inner // groups)
    return Mamba2(
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        state_dim=sizes.state_dim,
        groups=groups,
        x=part("x", inner),
        b=part("b", state),
        c=part("c", state),
        z=part("z", inner),
        o=parts.linear(f"{sizes.name}.o", f"{sizes.place}.out_proj", hidden, inner),
        step=part("step", sizes.heads),
        log_decay=f"{source}.A_log",
        step_bias=f"{source}.dt_bias",
        skip=f"{source}.D",
        kernel=sizes.kernel,
        convolution=f"{source}.conv1d.weight",
        bias=f"{source}.conv1d.bias" if sizes.has_conv_bias else "",
        norm=own and replace(own, groups=groups, is_flat=groups > 1),
    )


def _check_steps(config: Config) -> None:
    limits = config.value("time_step_limit")
    if isinstance(limits, list) and (limits[:1] != [0.0] or limits[1:] not in _UNLIMITED):
        raise UnsupportedModel(f"time_step_limit is {limits}; this variant of the family is not described.")
