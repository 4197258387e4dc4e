"""Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano: Mamba-2, NoPE attention, squared-ReLU MLPs or experts, by a pattern."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import refuse
from embedllm.export.architectures._shared.mamba2 import Mamba2Sizes, mamba2
from embedllm.export.architectures._shared.moe import Experts, gated, grouped, mixture
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts, Sizes, activation
from embedllm.export.architectures._shared.rope import FULL
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp, Moe
from embedllm.package.architecture.recurrent import Mamba2
from embedllm.package.architecture.rope import Rope
from embedllm.package.architecture.weights import Linear

_MAMBA, _ATTENTION, _MLP, _MOE = "M", "*", "-", "E"  # in 'hybrid_override_pattern'
_KINDS = {"mamba": _MAMBA, "linear_attention": _MAMBA, "attention": _ATTENTION, FULL: _ATTENTION, "mlp": _MLP,
          "moe": _MOE}  # fmt: skip  # in 'layers_block_type', older and newer configs
_NORM = NormKind(key="layer_norm_epsilon", epsilon=1e-5)
_NAMES = Names(model="backbone", embedding="embeddings", norm="norm_f", q="mixer.q_proj", k="mixer.k_proj",
               v="mixer.v_proj", o="mixer.o_proj", gate="", up="mixer.up_proj", down="mixer.down_proj")  # fmt: skip


def describe(config: Config) -> Decoder:
    pattern = _pattern(config)
    config = config.filled({"mlp_hidden_act": "relu2"}).replaced({"num_hidden_layers": len(pattern)})
    refuse(config, "use_bias", True)
    refuse(config, "mamba_proj_bias", True)
    if config.has("sliding_window"):
        raise UnsupportedModel("sliding_window is given; this variant of the family is not described.")
    sizes = Sizes.of(config)
    embedding = Linear(name="embedding", source=_NAMES.in_model(_NAMES.embedding), rows=sizes.vocabulary,
                       columns=sizes.hidden)  # fmt: skip
    blocks = _blocks(pattern)
    return Decoder(
        model_type="nemotron_h",
        context=config.integer("max_position_embeddings"),
        embedding=embedding,
        layers=tuple(_layer(config, sizes, pattern, index, *block) for index, block in enumerate(blocks)),
        norm=_NORM.named(config, "norm", _NAMES.in_model(_NAMES.norm), sizes.hidden),
        head=embedding
        if config.flag("tie_word_embeddings", False)
        else replace(embedding, name="head", source="lm_head"),
        rope=Rope(base=10_000.0, rotary_dim=0),
    )


def _pattern(config: Config) -> str:
    """A letter for each block."""
    kinds = config.texts("layers_block_type") or config.texts("layer_types")
    if kinds is not None and (unknown := next((kind for kind in kinds if kind not in _KINDS), "")):
        raise UnsupportedModel(f"layer type '{unknown}' is not described; known: {', '.join(_KINDS)}.")
    pattern = config.text("hybrid_override_pattern") if kinds is None else "".join(_KINDS[kind] for kind in kinds)
    if wrong := next((letter for letter in pattern if letter not in _KINDS.values()), ""):
        raise UnsupportedModel(f"hybrid_override_pattern has '{wrong}'; known: M, *, - and E.")
    if _ATTENTION not in pattern:
        raise UnsupportedModel("no layer has attention; expected one at least, whose keys are as many as the tokens.")
    return pattern


def _blocks(pattern: str) -> list[tuple[int, int | None]]:
    """Of each of our layers, the block with its mixer, and the one with its mlp where that follows.

    Raises UnsupportedModel for an mlp behind another one, or in front of all.
    """
    blocks: list[tuple[int, int | None]] = []
    for index, letter in enumerate(pattern):
        if letter in (_MAMBA, _ATTENTION):
            blocks.append((index, None))
        elif blocks and blocks[-1][0] == index - 1:
            blocks[-1] = (index - 1, index)
        else:
            raise UnsupportedModel(f"block {index} of the pattern '{pattern}' is an mlp that does not follow "
                                   "attention or a Mamba layer; such models are not described.")  # fmt: skip
    return blocks


def _layer(config: Config, sizes: Sizes, pattern: str, index: int, mixer: int, mlp: int | None) -> Layer:
    def parts_of(block: int) -> Parts:
        return Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=_NORM, transposed=False,
                     name=f"layers.{index}", source=f"{_NAMES.in_model(_NAMES.layers)}.{block}")  # fmt: skip

    parts, behind = parts_of(mixer), None if mlp is None else parts_of(mlp)
    return Layer(
        attention_norm=parts.norm("attention_norm", "norm"),
        attention=_mamba2(parts) if pattern[mixer] == _MAMBA else _attention(parts),
        mlp_norm=None if behind is None else behind.norm("mlp_norm", "norm"),
        mlp=None if behind is None or mlp is None else _mlp(behind) if pattern[mlp] == _MLP else _mixture(behind),
    )


def _attention(parts: Parts) -> Attention:
    return parts.attention(bias=parts.config.flag("attention_bias", False), rope=None)


def _mamba2(parts: Parts) -> Mamba2:
    config = parts.config
    activation(config, "mamba_hidden_act", names={"silu": "silu", "swish": "silu"})  # of the convolution, too
    sizes = Mamba2Sizes(
        heads=config.integer("mamba_num_heads", 128),
        head_dim=config.integer("mamba_head_dim", 64),
        state_dim=config.integer("ssm_state_size", 128),
        groups=config.integer("n_groups", 8),
        kernel=config.integer("conv_kernel", 4, least=2),
        has_conv_bias=config.flag("use_conv_bias", True),
        place="mixer",
    )
    return mamba2(parts, sizes, _NORM)


def _mlp(parts: Parts) -> Mlp:
    config = parts.config
    return parts.mlp(config.integer("intermediate_size"), activation(config, "mlp_hidden_act", "relu2"),
                     bias=config.flag("mlp_bias", False))  # fmt: skip


def _mixture(parts: Parts) -> Moe:
    """DeepSeek-V3's routing, of experts without a gate."""
    config = parts.config
    if config.has("moe_latent_size"):
        raise UnsupportedModel(f"moe_latent_size is {config.integer('moe_latent_size')}: experts that read a latent "
                               "vector (Nemotron 3 Super, Ultra) are not described.")  # fmt: skip
    refuse(config, "mlp_bias", True)
    experts = Experts(
        count=config.integer("n_routed_experts", config.integer("num_local_experts", 8)),
        top_k=config.integer("num_experts_per_tok", 2),
        inner=config.integer("moe_intermediate_size", 7688),
        router="mixer.gate",
        place="mixer.experts",
        gate="",
        activation_key="mlp_hidden_act",
        activation="relu2",
    )
    moe = mixture(parts, experts, scoring_func="sigmoid", norm_topk=config.flag("norm_topk_prob", True))
    shared = replace(experts, inner=config.integer("moe_shared_expert_intermediate_size", 7688))
    return replace(
        grouped(config, moe),
        score_correction_bias=f"{parts.source}.mixer.gate.e_score_correction_bias",
        scale=config.number("routed_scaling_factor", 1.0),
        shared=gated(parts, "mlp.shared", "mixer.shared_experts", shared),
    )
