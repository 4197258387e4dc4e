"""Gemma 4's vision encoder: images of any size, clipped linears, 2-D RoPE, positions by axis, average pooling."""

from __future__ import annotations

import math
from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.decoder_shape import refuse
from embedllm.export.architectures._shared.parts import RMS, Names, Parts, Sizes, activation
from embedllm.export.architectures._shared.vision_language import image_token
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.vision import DynamicVision, PatchPooler
from embedllm.package.architecture.weights import Linear, Norm, Origin

_TOWER, _EMBEDDER = "model.vision_tower", "model.embed_vision"
_DEFAULTS = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
             "num_key_value_heads": 12, "head_dim": 64, "patch_size": 16, "pooling_kernel_size": 3,
             "position_embedding_size": 10_240, "vocab_size": 1}  # fmt: skip
# each matrix lies in a module of the name without ".linear", beside the bounds that it is clipped to
_NAMES = Names(
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
    q="self_attn.q_proj.linear",
    k="self_attn.k_proj.linear",
    v="self_attn.v_proj.linear",
    o="self_attn.o_proj.linear",
    gate="mlp.gate_proj.linear",
    up="mlp.up_proj.linear",
    down="mlp.down_proj.linear",
)


def describe_vision(config: Config, vision: Config, text: Config, decoder: Decoder) -> DynamicVision:
    """config: of the whole model, whose sections the others are. Raises ExportError, UnsupportedModel."""
    vision = vision.filled(_DEFAULTS)
    refuse(vision, "attention_bias", True)
    token, sizes = gemma4_image_token(config, text, decoder), Sizes.of(vision)
    if sizes.heads != sizes.kv_heads or sizes.head_dim % 4:
        raise UnsupportedModel(
            f"the vision encoder has {sizes.heads} heads of {sizes.head_dim} values and {sizes.kv_heads} key/value "
            "heads; expected as many of both, of a multiple of 4 values."
        )
    side = vision.integer("position_embedding_size")
    return DynamicVision(
        image_token=token,
        patch_size=vision.integer("patch_size"),
        temporal_patch_size=1,
        merge_size=vision.integer("pooling_kernel_size"),
        patches=f"{_TOWER}.patch_embedder.input_proj",
        patches_bias=False,
        rope_base=_rope_base(vision),
        positions=Linear(
            name="vision.positions",
            source=f"{_TOWER}.patch_embedder.position_embedding_table",
            rows=2 * side,
            columns=sizes.hidden,
        ),
        layers=tuple(_layer(vision, sizes, index) for index in range(sizes.layers)),
        merger=PatchPooler(
            norm=replace(RMS.named(vision, "vision.pooler.norm", "", sizes.hidden), source=""),
            projector=Linear(
                name="vision.pooler.projector",
                source=f"{_EMBEDDER}.embedding_projection",
                rows=decoder.hidden,
                columns=sizes.hidden,
            ),
            multiplier=math.sqrt(sizes.hidden),
            standardize=_TOWER if vision.flag("standardize", False) else "",
        ),
        patches_channels_last=True,
        rope_column_first=True,
        positions_by_axis=True,
        bidirectional_in_windows=text.text("use_bidirectional_attention", "") == "vision",
    )


def gemma4_image_token(config: Config, text: Config, decoder: Decoder) -> int:
    """Per-layer embeddings of images are those of the padding token, which the decoder has as token 0."""
    token = image_token(config, decoder, 258_880)
    if decoder.per_layer_embedding is not None and text.integer("pad_token_id", 0, least=0):
        raise UnsupportedModel(
            f"pad_token_id is {text.integer('pad_token_id', 0, least=0)} in text_config; expected 0, whose per-layer "
            "embeddings images have."
        )
    return token


def _rope_base(config: Config) -> float:
    section = config.section("rope_parameters") or Config({})
    kind = section.text("rope_type", "axial")
    if kind not in ("axial", "default"):
        raise UnsupportedModel(f"rope_type is '{kind}' in vision_config; expected 'axial'.")
    return section.number("rope_theta", 100.0, above=1)


def _layer(config: Config, sizes: Sizes, index: int) -> Layer:
    parts = Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=RMS, transposed=False,
                  name=f"vision.layers.{index}", source=f"{_TOWER}.encoder.layers.{index}")  # fmt: skip
    active = activation(config, "hidden_activation", "gelu_pytorch_tanh")
    mlp = parts.mlp(config.integer("intermediate_size"), active)
    is_clipped = config.flag("use_clipped_linears", False)

    def clipped(linear: Linear) -> Linear:
        return replace(linear, clip=linear.source.removesuffix(".linear")) if is_clipped else linear

    assert mlp.gate is not None
    return Layer(
        attention_norm=parts.norm("attention_norm", _NAMES.attention_norm),
        attention=_attention(parts, is_clipped=is_clipped),
        attention_post_norm=parts.norm("attention_post_norm", _NAMES.attention_post_norm),
        mlp_norm=parts.norm("mlp_norm", _NAMES.mlp_norm),
        mlp=replace(mlp, gate=clipped(mlp.gate), up=clipped(mlp.up), down=clipped(mlp.down)),
        mlp_post_norm=parts.norm("mlp_post_norm", _NAMES.mlp_post_norm),
    )


def _attention(parts: Parts, *, is_clipped: bool) -> Attention:
    """In the checkpoint each half of a head has the halves of the pairs of one axis; here the first halves of both
    axes lie in front of the second ones, as the rotation takes them."""
    sizes, inner = parts.sizes, parts.sizes.heads * parts.sizes.head_dim
    axes = sizes.head_dim // 2

    def matrix(part: str, where: str, *, is_rotated: bool = False) -> Linear:
        rows, columns = (sizes.hidden, inner) if part == "o" else (inner, sizes.hidden)
        origin = Origin(rows=rows, head_rows=sizes.head_dim, partial_halves=axes) if is_rotated else None
        linear = parts.linear(f"attention.{part}", where, rows, columns, origin=origin)
        return replace(linear, clip=linear.source.removesuffix(".linear")) if is_clipped else linear

    def norm(part: str, where: str) -> Norm:
        rms = RMS.named(parts.config, f"{parts.name}.attention.{part}", f"{parts.source}.{where}", sizes.head_dim)
        return replace(rms, origin=Origin(rows=rms.size, head_rows=rms.size, partial_halves=axes))

    names = parts.names
    return Attention(
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=sizes.head_dim,
        q=matrix("q", names.q, is_rotated=True),
        k=matrix("k", names.k, is_rotated=True),
        v=matrix("v", names.v),
        o=matrix("o", names.o),
        q_norm=norm("q_norm", names.q_norm),
        k_norm=norm("k_norm", names.k_norm),
        v_norm=replace(norm("v_norm", ""), source="", origin=None),
        scale=1.0,
    )
