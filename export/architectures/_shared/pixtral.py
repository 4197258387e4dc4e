"""Pixtral's vision transformer with Mistral 3's projector: images of any size, 2-D RoPE, patches merged by a matrix."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts, Sizes, activation
from embedllm.export.architectures._shared.vision_encoder import check_encoder, rope_base
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.vision import DynamicVision, PatchMerger
from embedllm.package.architecture.weights import Linear, Norm

_NAMES = Names(
    attention_norm="attention_norm", mlp_norm="ffn_norm", q="attention.q_proj", k="attention.k_proj",
    v="attention.v_proj", o="attention.o_proj", gate="feed_forward.gate_proj", up="feed_forward.up_proj",
    down="feed_forward.down_proj",
)  # fmt: skip
_NORM = NormKind(epsilon=1e-5)
_DEFAULTS: dict[str, object] = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                                "num_attention_heads": 16, "num_channels": 3, "patch_size": 16,
                                "hidden_act": "gelu"}  # fmt: skip


def describe_pixtral(
    whole: Config, config: Config, *, encoder: str, projector: str, hidden: int, epsilon: float, image_token: int
) -> DynamicVision:
    """The vision encoder of a `vision_config` and its projector.

    whole: of the model. encoder, projector: what the names of their tensors begin with. hidden, epsilon: of the decoder
    and its norms. Raises UnsupportedModel.
    """
    if (kind := config.text("model_type", "pixtral")) != "pixtral":
        raise UnsupportedModel(f"the vision encoder is a '{kind}'; the description knows pixtral.")
    # heads have no size of their own in transformers, whatever a config says
    config = config.filled(_DEFAULTS).replaced({"vocab_size": 1, "head_dim": None})
    sizes = Sizes.of(config)
    check_encoder(config, sizes, num_channels=3)
    if (layer := whole.value("vision_feature_layer")) not in (None, -1):
        raise UnsupportedModel(f"vision_feature_layer is {layer!r}; expected -1, the encoder's last layer.")
    return DynamicVision(
        image_token=image_token,
        patch_size=config.integer("patch_size"),
        temporal_patch_size=1,
        merge_size=whole.integer("spatial_merge_size", 2),
        patches=f"{encoder}.patch_conv",
        patches_bias=False,
        patches_norm=_NORM.named(config, "vision.patches_norm", f"{encoder}.ln_pre", sizes.hidden),
        rope_base=rope_base(config, config.number("rope_theta", 10_000.0, above=1)),  # where older configs have it
        rope_interleaved=True,
        positions=None,
        layers=tuple(_layer(config, sizes, encoder, index) for index in range(sizes.layers)),
        merger=_merger(whole, projector, sizes.hidden, hidden, epsilon),
    )


def _layer(config: Config, sizes: Sizes, encoder: str, index: int) -> Layer:
    parts = Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=_NORM, transposed=False,
                  name=f"vision.layers.{index}", source=f"{encoder}.transformer.layers.{index}")  # fmt: skip
    return parts.layer(parts.attention(), parts.mlp(config.integer("intermediate_size"), activation(config)))


def _merger(whole: Config, projector: str, width: int, hidden: int, epsilon: float) -> PatchMerger:
    """width: of the encoder."""
    if (active := whole.text("projector_hidden_act", "gelu")) != "gelu":
        raise UnsupportedModel(f"projector_hidden_act is '{active}'; expected gelu.")
    bias, square = whole.flag("multimodal_projector_bias", False), width * whole.integer("spatial_merge_size", 2) ** 2
    up, down = (
        Linear(name=f"vision.merger.{part}", source=f"{projector}.{where}", rows=hidden, columns=columns, bias=bias)
        for part, where, columns in (("up", "linear_1", width), ("down", "linear_2", hidden))
    )
    return PatchMerger(
        norm=Norm(name="vision.merger.norm", source=f"{projector}.norm.weight", size=width, epsilon=epsilon),
        merging=Linear(
            name="vision.merger.merging",
            source=f"{projector}.patch_merger.merging_layer",
            rows=width,
            columns=square,
        ),
        up=up,
        down=down,
    )
