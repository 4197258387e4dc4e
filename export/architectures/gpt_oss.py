"""gpt-oss 20B, 120B: attention sinks, a window on every other layer, YaRN; MXFP4 experts, clamped SwiGLU."""

from __future__ import annotations

from dataclasses import replace

from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.moe import Experts, mixture
from embedllm.export.architectures._shared.parts import LLAMA, Names, NormKind, Parts
from embedllm.export.architectures._shared.rope import RopeKeys
from embedllm.export.architectures._shared.sliding_window import sliding_layers, windows
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.weights import Linear, Origin

_ROPE = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
_PLACE = "mlp.experts"


def describe(config: Config) -> Decoder:
    return describe_text(config, "gpt_oss", LLAMA)


def describe_text(config: Config, model_type: str, names: Names) -> Decoder:
    """The decoder of a gpt-oss, whose tensors have these names."""
    bias = config.flag("attention_bias", True)
    shape = Shape(
        model_type=model_type,
        names=names,
        norm=NormKind(epsilon=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        sinks="self_attn.sinks",
        rope_keys=RopeKeys(theta=150_000.0),
        window=windows(config, 128, sliding_layers(config, lambda index: index % 2 == 0)),
        mixture=lambda parts, _: _mixture(parts),
    )
    if config.section("rope_parameters") is None and config.section("rope_scaling") is None:
        config = config.replaced({"rope_parameters": _ROPE})
    return describe_shaped(config, shape)


def _mixture(parts: Parts) -> Moe:
    config, hidden = parts.config, parts.sizes.hidden
    experts = Experts(
        count=config.integer("num_local_experts", 128),
        top_k=config.integer("num_experts_per_tok", config.integer("experts_per_token", 4)),
        inner=config.integer("intermediate_size"),
        router="mlp.router",
    )
    moe = mixture(parts, experts, scoring_func="softmax_topk")
    inner, all_inner = experts.inner, 2 * experts.inner * experts.count

    def placed(linear: Linear, where: str, origin: Origin) -> Linear:
        return replace(linear, source=f"{parts.source}.{_PLACE}.{where}", bias=True, origin=origin)

    def one(number: int, mlp: Mlp) -> Mlp:
        """Its gate and up take turns, row by row."""
        first = 2 * inner * number
        gate, up = (Origin(rows=all_inner, start=first + at, block=1, stride=2) for at in (0, 1))
        down = Origin(rows=hidden * experts.count, start=hidden * number)
        assert mlp.gate is not None
        return replace(
            mlp,
            gate=placed(mlp.gate, "gate_up_proj", gate),
            up=placed(mlp.up, "gate_up_proj", up),
            down=placed(mlp.down, "down_proj", down),
            swiglu_limit=config.number("swiglu_limit", 7.0, above=0),
            swiglu_alpha=config.number("swiglu_alpha", 1.702, above=0),
            up_offset=1.0,
        )

    return replace(
        moe,
        router=replace(moe.router, bias=True),
        experts=tuple(one(number, mlp) for number, mlp in enumerate(moe.experts)),
    )
