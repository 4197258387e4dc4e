"""SigLIP 2's vision transformer of images of any size (NaFlex) with LFM2-VL's projector of two matrices."""

from __future__ import annotations

from math import isqrt

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import Sizes
from embedllm.export.architectures._shared.siglip import NORM, siglip_layer
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.vision import DynamicVision, PatchMerger
from embedllm.package.architecture.weights import Linear, Norm

_ENCODER, _PROJECTOR = "model.vision_tower.vision_model", "model.multi_modal_projector"
_DEFAULTS: dict[str, object] = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                                "num_attention_heads": 12, "num_channels": 3, "num_patches": 256, "patch_size": 16,
                                "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
_EPSILON = 1e-5  # of the projector's norm: torch's default


def describe_siglip2(whole: Config, config: Config, *, hidden: int, image_token: int) -> DynamicVision:
    """The vision encoder of a `vision_config` and its projector.

    whole: of the model. hidden: of the decoder. Raises UnsupportedModel.
    """
    if (kind := config.text("model_type", "siglip2_vision_model")) != "siglip2_vision_model":
        raise UnsupportedModel(f"the vision encoder is a '{kind}'; the description knows siglip2_vision_model.")
    # heads have no size of their own in transformers, whatever a config says
    config = config.filled(_DEFAULTS).replaced({"vocab_size": 1, "head_dim": None})
    sizes, places = Sizes.of(config), config.integer("num_patches")
    if config.integer("num_channels") != 3:  # red, green, blue
        raise UnsupportedModel(f"num_channels is {config.integer('num_channels')} in vision_config; expected 3.")
    if isqrt(places) ** 2 != places:
        raise UnsupportedModel(f"num_patches is {places}; expected a square number.")
    if (layer := whole.value("vision_feature_layer")) not in (None, -1):
        raise UnsupportedModel(f"vision_feature_layer is {layer!r}; expected -1, the encoder's last layer.")
    embeddings = f"{_ENCODER}.embeddings"
    return DynamicVision(
        image_token=image_token,
        patch_size=config.integer("patch_size"),
        temporal_patch_size=1,
        merge_size=whole.integer("downsample_factor", 2),
        patches=f"{embeddings}.patch_embedding",
        patches_bias=True,
        patches_channels_last=True,
        rope_base=0.0,
        positions=Linear(
            name="vision.positions", source=f"{embeddings}.position_embedding", rows=places, columns=sizes.hidden
        ),
        antialias=True,
        layers=tuple(siglip_layer(config, sizes, _ENCODER, index) for index in range(sizes.layers)),
        merger=_merger(
            whole, NORM.named(config, "vision.merger.norm", f"{_ENCODER}.post_layernorm", sizes.hidden), hidden
        ),
    )


def _merger(whole: Config, norm: Norm, hidden: int) -> PatchMerger:
    """norm: of the encoder's last layer."""
    if (active := whole.text("projector_hidden_act", "gelu")) != "gelu":
        raise UnsupportedModel(f"projector_hidden_act is '{active}'; expected gelu.")
    square, inner = norm.size * whole.integer("downsample_factor", 2) ** 2, whole.integer("projector_hidden_size", 2560)
    bias, where = whole.flag("projector_bias", True), f"{_PROJECTOR}.layer_norm"
    square_norm = Norm(
        name="vision.merger.square_norm",
        source=f"{where}.weight",
        size=square,
        epsilon=_EPSILON,
        kind="layer",
        bias=f"{where}.bias",
    )
    up, down = (
        Linear(name=f"vision.merger.{part}", source=f"{_PROJECTOR}.{matrix}", rows=rows, columns=columns, bias=bias)
        for part, matrix, rows, columns in (("up", "linear_1", inner, square), ("down", "linear_2", hidden, inner))
    )
    has_norm = whole.flag("projector_use_layernorm", True)
    return PatchMerger(norm=norm, up=up, down=down, square_norm=square_norm if has_norm else None)
