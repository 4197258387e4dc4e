"""InternVL 3, 3.5 (1B to 241B): vision-language model; InternViT, pixel shuffle; Qwen 2, Qwen 3, Llama, gpt-oss."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures import gpt_oss, llama, qwen2, qwen3, qwen3_moe
from embedllm.export.architectures._shared.parts import LLAMA, Names, NormKind, Parts, Sizes, activation
from embedllm.export.architectures._shared.vision_language import both_sections, describe_by_kind, image_token
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.vision import Vision
from embedllm.package.architecture.weights import Linear, Norm

_KINDS = {
    "qwen2": qwen2.describe_text,
    "qwen3": qwen3.describe_text,
    "qwen3_moe": qwen3_moe.describe_text,
    "llama": llama.describe_text,
    "gpt_oss": gpt_oss.describe_text,
}
_TEXT = replace(LLAMA, model="language_model.model", head="language_model.lm_head")
_ENCODER, _PROJECTOR = "vision_tower", "multi_modal_projector"
_NAMES = Names(
    attention_norm="layernorm_before", mlp_norm="layernorm_after", q="attention.q_proj", k="attention.k_proj",
    v="attention.v_proj", o="attention.projection_layer", up="mlp.fc1", down="mlp.fc2", gate="",
)  # fmt: skip
_LAYER_NORM = NormKind(kind="layer", bias=True, key="layer_norm_eps")
_NORMS = {"layer_norm": _LAYER_NORM, "rms_norm": NormKind(key="layer_norm_eps")}
_DEFAULTS: dict[str, object] = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                                "num_attention_heads": 16, "num_channels": 3, "hidden_act": "gelu"}  # fmt: skip
_QK_EPSILON, _PROJECTOR_EPSILON = 1e-6, 1e-5  # whatever config.json says of the other norms


def describe(config: Config) -> Decoder:
    text, vision = both_sections(config, "an InternVL")
    decoder = describe_by_kind(config, text, _KINDS, tied=True, model_type="internvl", names=_TEXT)
    return replace(decoder, vision=_vision(config, vision, decoder))


def _vision(whole: Config, config: Config, decoder: Decoder) -> Vision:
    """InternViT. whole: of the model."""
    if (kind := config.text("model_type", "internvl_vision")) != "internvl_vision":
        raise UnsupportedModel(f"the vision encoder is a '{kind}'; the description knows internvl_vision.")
    config = config.filled(_DEFAULTS).replaced({"vocab_size": 1, "head_dim": None})
    _check(whole, config)
    sizes, merge = Sizes.of(config), _merge(whole)
    image_size, patch_size = _side(config, "image_size", 448), _side(config, "patch_size", 14)
    if image_size % (patch_size * merge):
        raise UnsupportedModel(
            f"image_size is {image_size} in vision_config; expected a multiple of {patch_size * merge}, patch_size by "
            "downsample_ratio."
        )
    embeddings, rows = f"{_ENCODER}.embeddings", (image_size // patch_size) ** 2 + 1
    square, hidden = sizes.hidden * merge**2, decoder.hidden
    up, down = (
        Linear(name=f"vision.{name}", source=f"{_PROJECTOR}.{where}", rows=hidden, columns=columns, bias=True)
        for name, where, columns in (("projector_up", "linear_1", square), ("projector", "linear_2", hidden))
    )
    where, is_pooled = f"{_PROJECTOR}.layer_norm", config.flag("use_mean_pooling", True)
    return Vision(
        image_token=image_token(whole, decoder, 151_667),
        image_size=image_size,
        patch_size=patch_size,
        patches=f"{embeddings}.patch_embeddings.projection",
        positions=Linear(name="vision.positions", source=f"{embeddings}.position_embeddings", rows=rows,
                         columns=sizes.hidden),
        class_token=f"{embeddings}.cls_token",
        layers=tuple(_layer(config, sizes, index) for index in range(sizes.layers)),
        norm=None if is_pooled else _LAYER_NORM.named(config, "vision.norm", f"{_ENCODER}.layernorm", sizes.hidden),
        pixel_shuffle=merge,
        projector_norm=Norm(name="vision.projector_norm", source=f"{where}.weight", size=square,
                            epsilon=_PROJECTOR_EPSILON, kind="layer", bias=f"{where}.bias"),
        projector_up=up,
        projector=down,
    )  # fmt: skip


def _check(whole: Config, config: Config) -> None:
    """Raises UnsupportedModel for what no field describes."""
    if config.integer("num_channels") != 3:  # red, green, blue
        raise UnsupportedModel(f"num_channels is {config.integer('num_channels')} in vision_config; expected 3.")
    if not config.flag("use_absolute_position_embeddings", True):
        raise UnsupportedModel("use_absolute_position_embeddings is false in vision_config; expected true.")
    if (layer := whole.value("vision_feature_layer")) not in (None, -1):
        raise UnsupportedModel(f"vision_feature_layer is {layer!r}; expected -1, the encoder's last layer.")
    if (strategy := whole.text("vision_feature_select_strategy", "default")) != "default":
        raise UnsupportedModel(
            f"vision_feature_select_strategy is '{strategy}'; expected 'default', features without the class token's."
        )
    if (active := whole.text("projector_hidden_act", "gelu")) != "gelu":
        raise UnsupportedModel(f"projector_hidden_act is '{active}'; expected gelu.")


def _merge(config: Config) -> int:
    """Patches along the side of a square that becomes a row."""
    ratio = config.number("downsample_ratio", 0.5, above=0)
    merge = round(1 / ratio)
    if merge < 1 or merge * ratio != 1:
        raise UnsupportedModel(f"downsample_ratio is {ratio:g}; expected 1 divided by a whole number.")
    return merge


def _side(config: Config, key: str, usual: int) -> int:
    """Of a square, which config.json has as one number or as two."""
    sides = config.integers(key) if isinstance(config.value(key), list) else None
    if sides is None:
        return config.integer(key, usual)
    if len(sides) != 2 or sides[0] != sides[1]:
        raise UnsupportedModel(f"{key} is {sides} in vision_config; expected a square.")
    return config.replaced({key: sides[0]}).integer(key)


def _layer(config: Config, sizes: Sizes, index: int) -> Layer:
    if (kind := config.text("norm_type", "layer_norm")) not in _NORMS:
        raise UnsupportedModel(f"norm_type is '{kind}' in vision_config; expected {' or '.join(_NORMS)}.")
    parts = Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=_NORMS[kind], transposed=False,
                  name=f"vision.layers.{index}", source=f"{_ENCODER}.encoder.layer.{index}")  # fmt: skip
    mlp = parts.mlp(config.integer("intermediate_size"), activation(config), bias=True)
    layer = parts.layer(_attention(config, parts), mlp)
    return replace(layer, attention_scale=f"{parts.source}.lambda_1", mlp_scale=f"{parts.source}.lambda_2")


def _attention(config: Config, parts: Parts) -> Attention:
    attention = parts.attention(bias=config.flag("attention_bias", False), rope=None)
    attention = replace(attention, o=replace(attention.o, bias=True))
    if not config.flag("use_qk_norm", False):
        return attention
    q_norm, k_norm = (
        Norm(name=f"{parts.name}.attention.{part}_norm", source=f"{parts.source}.attention.{part}_norm.weight",
             size=parts.sizes.hidden, epsilon=_QK_EPSILON)
        for part in "qk"
    )  # fmt: skip
    return replace(attention, q_norm=q_norm, k_norm=k_norm)
