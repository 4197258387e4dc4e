"""GLM-OCR (0.9B): vision-language model; 2-D RoPE, q and k norms, gated projector, M-RoPE; GLM-4's four norms."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures import glm4
from embedllm.export.architectures._shared.decoder_shape import Shape, describe_shaped
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts, Sizes, activation
from embedllm.export.architectures._shared.qwen_vision import with_mrope
from embedllm.export.architectures._shared.vision_encoder import check_encoder, rope_base
from embedllm.export.architectures._shared.vision_language import both_sections, image_token, text_of
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.vision import DynamicVision, PatchMerger
from embedllm.package.architecture.weights import Linear, Norm, Origin

_NAMES = Names(
    attention_norm="norm1", mlp_norm="norm2", qkv="attn.qkv", o="attn.proj", gate="mlp.gate_proj", up="mlp.up_proj",
    down="mlp.down_proj", q_norm="attn.q_norm", k_norm="attn.k_norm",
)  # fmt: skip
_NORM = NormKind(epsilon=1e-5)
_ENCODER = "model.visual"
_DEFAULTS: dict[str, object] = {"depth": 24, "hidden_size": 1024, "hidden_act": "silu", "num_heads": 16,
                                "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "out_hidden_size": 1536,
                                "temporal_patch_size": 2, "intermediate_size": 4096}  # fmt: skip
_EPSILON = 1e-5  # of the projector's layer norm: torch's default
_TIED = "tie_word_embeddings"


def describe(config: Config) -> Decoder:
    text, vision = both_sections(config, "a GLM-OCR")
    tied = config.flag(_TIED, False) or text.flag(_TIED, False)
    decoder = _text(config.replaced({_TIED: tied}))
    token = image_token(config, decoder, 59_280)
    return replace(decoder, vision=_vision(vision, decoder.hidden, token))


def _text(config: Config) -> Decoder:
    shape = Shape(
        model_type="glm_ocr",
        names=replace(glm4.NAMES, model="model.language_model"),
        norm=_NORM,
        interleaved=True,
    )
    return with_mrope(describe_shaped(text_of(config), shape), config)


def _vision(config: Config, hidden: int, token: int) -> DynamicVision:
    """hidden: of the decoder. token: the placeholder of a row."""
    config = config.filled(_DEFAULTS).replaced({"vocab_size": 1, "head_dim": None})
    config = config.named({"num_hidden_layers": "depth", "num_attention_heads": "num_heads"})
    sizes = Sizes.of(config)
    check_encoder(config, sizes, in_channels=3, out_hidden_size=hidden)
    return DynamicVision(
        image_token=token,
        patch_size=config.integer("patch_size"),
        temporal_patch_size=config.integer("temporal_patch_size"),
        merge_size=config.integer("spatial_merge_size"),
        patches=f"{_ENCODER}.patch_embed.proj",
        patches_bias=True,
        rope_base=rope_base(config),
        positions=None,
        layers=tuple(_layer(config, sizes, index) for index in range(sizes.layers)),
        merger=_merger(config, sizes.hidden, hidden),
    )


def _layer(config: Config, sizes: Sizes, index: int) -> Layer:
    parts = Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=_NORM, transposed=False,
                  name=f"vision.layers.{index}", source=f"{_ENCODER}.blocks.{index}")  # fmt: skip
    bias = config.flag("attention_bias", True)
    mlp = parts.mlp(config.integer("intermediate_size"), activation(config), bias=bias)
    return parts.layer(parts.attention(bias=bias, norms=True), mlp)


def _merger(config: Config, width: int, hidden: int) -> PatchMerger:
    """width: of the encoder. Its convolution has a kernel as large as a square."""
    if (active := config.text("hidden_act")) != "silu":
        raise UnsupportedModel(f"hidden_act is '{active}' in vision_config; expected silu.")
    name, source, inner = "vision.merger", f"{_ENCODER}.merger", hidden * config.integer("in_channels")
    merge = config.integer("spatial_merge_size")
    parts = merge * width
    up, gate, gated_up, down = (
        Linear(name=f"{name}.{part}", source=f"{source}.{matrix}", rows=rows, columns=columns)
        for part, matrix, rows, columns in (("up", "proj", hidden, hidden), ("gate", "gate_proj", inner, hidden),
                                            ("gated_up", "up_proj", inner, hidden),
                                            ("down", "down_proj", hidden, inner))
    )  # fmt: skip
    where = f"{source}.post_projection_norm"
    return PatchMerger(
        norm=_NORM.named(config, f"{name}.norm", f"{_ENCODER}.post_layernorm", width),
        merging=Linear(name=f"{name}.merging", source=f"{_ENCODER}.downsample", rows=hidden, columns=parts * merge,
                       bias=True, origin=Origin(rows=hidden, parts=parts)),
        up=up,
        up_norm=Norm(name=f"{name}.up_norm", source=f"{where}.weight", size=hidden, epsilon=_EPSILON, kind="layer",
                     bias=f"{where}.bias"),
        gate=gate,
        gated_up=gated_up,
        down=down,
    )  # fmt: skip
