"""Pixtral's vision transformer with Mistral 3's projector: images of any size, 2-D RoPE, patches merged by a matrix."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts, Sizes, activation
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.attention import Attention
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
    if config.integer("num_channels") != 3:  # red, green, blue
        raise UnsupportedModel(f"num_channels is {config.integer('num_channels')} in vision_config; expected 3.")
    if sizes.head_dim % 4:
        raise UnsupportedModel(f"heads of the vision encoder have {sizes.head_dim} values; expected a multiple of 4.")
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
        rope_base=_rope_base(config),
        rope_interleaved=True,
        positions=None,
        layers=tuple(_layer(config, sizes, encoder, index) for index in range(sizes.layers)),
        merger=_merger(whole, projector, sizes.hidden, hidden, epsilon),
    )


def _rope_base(config: Config) -> float:
    """Older configs have it beside all else."""
    base = config.number("rope_theta", 10_000.0, above=1)
    section = config.section("rope_parameters")
    return base if section is None else section.number("rope_theta", base, above=1)


def _layer(config: Config, sizes: Sizes, encoder: str, index: int) -> Layer:
    parts = Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=_NORM, transposed=False,
                  name=f"vision.layers.{index}", source=f"{encoder}.transformer.layers.{index}")  # fmt: skip
    q, k, v = parts.qkv(groups=1, bias=False, pairs=0)
    return Layer(
        attention_norm=parts.norm("attention_norm", _NAMES.attention_norm),
        attention=Attention(
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            q=q,
            k=k,
            v=v,
            o=parts.linear("attention.o", _NAMES.o, sizes.hidden, sizes.hidden),
        ),
        mlp_norm=parts.norm("mlp_norm", _NAMES.mlp_norm),
        mlp=parts.mlp(config.integer("intermediate_size"), activation(config)),
    )


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
