"""The vision encoders of Qwen2-VL to Qwen 3.5: images of any size, 2-D RoPE, windows or DeepStack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isqrt

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.parts import ACTIVATIONS, Names, NormKind, Parts, Sizes, activation
from embedllm.export.architectures._shared.vision_encoder import check_encoder, rope_base
from embedllm.export.architectures._shared.vision_language import image_token
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.rope import Mrope
from embedllm.package.architecture.vision import DeepStack, DynamicVision, PatchMerger
from embedllm.package.architecture.weights import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """How the encoder of one family differs from that of another."""

    source: str  # of the encoder in the checkpoint
    names: Names
    norm: NormKind
    merger: tuple[str, str, str]  # its norm and matrices
    defaults: dict[str, object]  # what a config that does not say it means
    patches_bias: bool
    keys: Mapping[str, str] = field(default_factory=dict)  # what its config calls sizes that others call as here
    window: bool = False  # layers attend in windows, except for 'fullatt_block_indexes'
    positions: str = ""  # learned ones, in the checkpoint
    deepstack: str = ""  # the mergers of DeepStack, in the checkpoint


_SHARED: dict[str, object] = {"in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
                              "num_heads": 16, "out_hidden_size": 3584}  # fmt: skip
_QUICK_GELU = "quick_gelu"  # x * sigmoid(1.702 * x)
_LAYER_NORM = NormKind(kind="layer", bias=True, epsilon=1e-6)
QWEN2 = VisionShape(
    source="visual",
    names=Names(
        attention_norm="norm1", mlp_norm="norm2", qkv="attn.qkv", o="attn.proj", gate="", up="mlp.fc1", down="mlp.fc2"
    ),
    norm=_LAYER_NORM,
    merger=("ln_q", "mlp.0", "mlp.2"),
    defaults={**_SHARED, "patch_size": 14, "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4,
              "hidden_act": _QUICK_GELU},
    patches_bias=False,
    keys={"hidden_size": "embed_dim", "out_hidden_size": "hidden_size"},
)  # fmt: skip
QWEN2_5 = VisionShape(
    source="visual",
    names=Names(
        attention_norm="norm1", mlp_norm="norm2", qkv="attn.qkv", o="attn.proj", gate="mlp.gate_proj",
        up="mlp.up_proj", down="mlp.down_proj",
    ),
    norm=NormKind(epsilon=1e-6),
    merger=("ln_q", "mlp.0", "mlp.2"),
    defaults={**_SHARED, "patch_size": 14, "depth": 32, "hidden_size": 3584, "intermediate_size": 3420,
              "hidden_act": "silu", "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
    patches_bias=False,
    window=True,
)  # fmt: skip
QWEN3 = VisionShape(
    source="model.visual",
    names=Names(
        attention_norm="norm1", mlp_norm="norm2", qkv="attn.qkv", o="attn.proj", gate="", up="mlp.linear_fc1",
        down="mlp.linear_fc2",
    ),
    norm=_LAYER_NORM,
    merger=("norm", "linear_fc1", "linear_fc2"),
    defaults={**_SHARED, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
              "hidden_act": "gelu_pytorch_tanh", "num_position_embeddings": 2304,
              "deepstack_visual_indexes": [8, 16, 24]},
    patches_bias=True,
    positions="pos_embed",
    deepstack="deepstack_merger_list",
)  # fmt: skip
QWEN3_5 = replace(QWEN3, deepstack="")


def with_vision(decoder: Decoder, config: Config, shape: VisionShape, *, interleaved: bool = False) -> Decoder:
    """A text decoder with the encoder of a 'vision_config', where config.json has one.

    interleaved: the sections of its M-RoPE are. Raises ExportError, UnsupportedModel.
    """
    vision = config.section("vision_config")
    if vision is None:
        return decoder
    token = image_token(config, decoder, 151655)
    encoder = _describe(vision.filled(shape.defaults), shape, decoder, token)
    if len(encoder.deepstack) >= len(decoder.layers):
        raise UnsupportedModel(
            f"deepstack_visual_indexes has {len(encoder.deepstack)} layers; expected fewer than the "
            f"{len(decoder.layers)} of the text model."
        )
    return with_mrope(replace(decoder, vision=encoder), config, interleaved=interleaved)


def with_mrope(decoder: Decoder, config: Config, *, interleaved: bool = False) -> Decoder:
    """A decoder that rotates the tokens of images by M-RoPE. interleaved: its sections are. Raises ExportError."""
    mrope = Mrope(sections=_mrope_sections(config, decoder), interleaved=interleaved)
    return replace(decoder, rope=replace(decoder.rope, mrope=mrope))


def _mrope_sections(config: Config, decoder: Decoder) -> tuple[int, ...]:
    """Of M-RoPE, under 'rope_parameters' or 'rope_scaling' of the text model."""
    text = config.section("text_config") or config
    for key in ("rope_parameters", "rope_scaling"):
        section = text.section(key)
        sections = section.integers("mrope_section") if section is not None else None
        if sections is None:
            continue
        if len(sections) != 3 or min(sections) < 0 or sum(sections) != decoder.rope.rotary_dim // 2:
            raise ExportError(
                f"mrope_section is {sections}; expected three numbers whose sum is {decoder.rope.rotary_dim // 2}, "
                "half of a head's rotated dimensions."
            )
        return tuple(sections)
    raise ExportError(
        "config.json has no 'mrope_section' under 'rope_parameters' or 'rope_scaling'; expected there how the text "
        "model rotates the tokens of images."
    )


def _describe(config: Config, shape: VisionShape, decoder: Decoder, token: int) -> DynamicVision:
    config = config.named({"num_hidden_layers": "depth", "num_attention_heads": "num_heads", **shape.keys})
    sizes = Sizes.of(config.replaced({"vocab_size": 1}))
    merge, patch = config.integer("spatial_merge_size"), config.integer("patch_size")
    check_encoder(config, sizes, in_channels=3, out_hidden_size=decoder.hidden)
    deepstack = config.integers("deepstack_visual_indexes") or [] if shape.deepstack else []
    return DynamicVision(
        image_token=token,
        patch_size=patch,
        temporal_patch_size=config.integer("temporal_patch_size"),
        merge_size=merge,
        patches=f"{shape.source}.patch_embed.proj",
        patches_bias=shape.patches_bias,
        rope_base=rope_base(config),
        positions=_positions(config, shape, sizes.hidden) if shape.positions else None,
        layers=tuple(_layer(config, sizes, shape, index) for index in range(sizes.layers)),
        merger=_merger(config, shape, sizes.hidden, decoder.hidden, "merger", "vision.merger"),
        window=config.integer("window_size") // merge // patch if shape.window else 0,
        full_layers=tuple(config.integers("fullatt_block_indexes") or ()) if shape.window else (),
        deepstack=tuple(
            DeepStack(
                layer=layer,
                merger=_merger(config, shape, sizes.hidden, decoder.hidden, f"{shape.deepstack}.{place}",
                               f"vision.deepstack.{place}", over_square=True),
            )
            for place, layer in enumerate(deepstack) if 0 <= layer < sizes.layers
        ),
    )  # fmt: skip


def _positions(config: Config, shape: VisionShape, hidden: int) -> Linear:
    rows = config.integer("num_position_embeddings")
    if isqrt(rows) ** 2 != rows:
        raise UnsupportedModel(f"num_position_embeddings is {rows}; expected a square number.")
    return Linear(name="vision.positions", source=f"{shape.source}.{shape.positions}", rows=rows, columns=hidden)


def _merger(
    config: Config, shape: VisionShape, hidden: int, rows: int, where: str, name: str, *, over_square: bool = False
) -> PatchMerger:
    """over_square: its norm is over all values of a square, not of a patch."""
    source, (norm, up, down) = f"{shape.source}.{where}", shape.merger
    square = hidden * config.integer("spatial_merge_size") ** 2
    size = square if over_square else hidden
    return PatchMerger(
        norm=shape.norm.named(config, f"{name}.norm", f"{source}.{norm}", size),
        up=Linear(name=f"{name}.up", source=f"{source}.{up}", rows=square, columns=square, bias=True),
        down=Linear(name=f"{name}.down", source=f"{source}.{down}", rows=rows, columns=square, bias=True),
    )


def _layer(config: Config, sizes: Sizes, shape: VisionShape, index: int) -> Layer:
    parts = Parts(config=config, sizes=sizes, names=shape.names, norm_kind=shape.norm, transposed=False,
                  name=f"vision.layers.{index}", source=f"{shape.source}.blocks.{index}")  # fmt: skip
    return parts.layer(parts.attention(bias=True), _mlp(config, parts))


def _mlp(config: Config, parts: Parts) -> Mlp:
    """Qwen2-VL's config has a ratio in place of its size. QuickGELU is SiLU with a slope."""
    hidden = parts.sizes.hidden
    inner = config.integer("intermediate_size", hidden * config.integer("mlp_ratio", 4))
    mlp = parts.mlp(inner, activation(config, names={**ACTIVATIONS, _QUICK_GELU: "silu"}), bias=True)
    return replace(mlp, swiglu_alpha=1.702) if config.text("hidden_act") == _QUICK_GELU else mlp
