"""LFM3-VL's vision encoder: convolutions over the grid of patches, grouped-query attention with 2-D RoPE."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.layer_types import layer_types
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts, Sizes
from embedllm.export.architectures._shared.rope import FULL
from embedllm.export.architectures._shared.vision_encoder import check_encoder, rope_base
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.recurrent import ShortConv
from embedllm.package.architecture.vision import DynamicVision, PatchMerger
from embedllm.package.architecture.weights import Linear, Norm, Origin

_ENCODER, _PROJECTOR = "model.vision_tower", "model.multi_modal_projector"
_NAMES = Names(
    attention_norm="operator_norm", mlp_norm="ffn_norm", o="self_attn.out_proj", q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm", gate="feed_forward.w1", up="feed_forward.w3", down="feed_forward.w2",
)  # fmt: skip
_NORM = NormKind(key="norm_eps", epsilon=1e-5)
_DEFAULTS: dict[str, object] = {"hidden_size": 1024, "intermediate_size": 2560, "in_channels": 3, "patch_size": 16,
                                "spatial_merge_size": 2, "temporal_patch_size": 2, "num_hidden_layers": 14,
                                "num_attention_heads": 16, "num_key_value_heads": 8, "conv_kernel_size": 3}  # fmt: skip
_CONVOLUTION = "conv"  # in 'layer_types'


def describe_lfm3_vision(whole: Config, config: Config, *, hidden: int, image_token: int) -> DynamicVision:
    """The vision encoder of a `vision_config` and its projector.

    whole: of the model. hidden: of the decoder. Raises UnsupportedModel.
    """
    if (kind := config.text("model_type", "lfm3_vl_vision")) != "lfm3_vl_vision":
        raise UnsupportedModel(f"the vision encoder is a '{kind}'; the description knows lfm3_vl_vision.")
    # heads have no size of their own in transformers, whatever a config says
    config = config.filled(_DEFAULTS).replaced({"vocab_size": 1, "head_dim": None})
    sizes, kernel = Sizes.of(config), config.integer("conv_kernel_size")
    check_encoder(config, sizes, in_channels=3)
    if kernel % 2 == 0:
        raise UnsupportedModel(f"conv_kernel_size is {kernel} in vision_config; expected an odd number of patches.")
    types = layer_types(config, (FULL, _CONVOLUTION)) or _usual_types(sizes.layers)
    if FULL not in types:
        raise UnsupportedModel("no layer of the vision encoder has attention; expected one at least.")
    return DynamicVision(
        image_token=image_token,
        patch_size=config.integer("patch_size"),
        temporal_patch_size=config.integer("temporal_patch_size"),
        merge_size=config.integer("spatial_merge_size"),
        patches=f"{_ENCODER}.patchifier",
        patches_bias=False,
        patches_are_flat=True,
        patches_norm=_NORM.named(config, "vision.patches_norm", f"{_ENCODER}.embedding_norm", sizes.hidden),
        rope_base=rope_base(config, 1e6),
        positions=None,
        layers=tuple(_layer(config, sizes, kernel, index, kind) for index, kind in enumerate(types)),
        merger=_merger(whole, sizes.hidden, config.integer("spatial_merge_size"), hidden),
    )


def _usual_types(layers: int) -> list[str]:
    """Of a config that does not say them."""
    return [_CONVOLUTION if index < 2 or index % 2 else FULL for index in range(layers)]


def _layer(config: Config, sizes: Sizes, kernel: int, index: int, kind: str) -> Layer:
    parts = Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=_NORM, transposed=False,
                  name=f"vision.layers.{index}", source=f"{_ENCODER}.layers.{index}")  # fmt: skip
    mixer = _convolution(parts, kernel) if kind == _CONVOLUTION else parts.attention(norms=True)
    return parts.layer(mixer, parts.mlp(config.integer("intermediate_size"), "silu"))


def _convolution(parts: Parts, kernel: int) -> ShortConv:
    hidden = parts.sizes.hidden
    b, c, x = (
        parts.linear(f"attention.{part}", "conv.in_proj", hidden, hidden,
                     origin=Origin(rows=3 * hidden, start=place * hidden))
        for place, part in enumerate(("b", "c", "x"))
    )  # fmt: skip
    o = parts.linear("attention.o", "conv.out_proj", hidden, hidden)
    return ShortConv(b=b, c=c, x=x, o=o, kernel=kernel, convolution=f"{parts.source}.conv.spatial_conv.weight")


def _merger(whole: Config, width: int, merge: int, hidden: int) -> PatchMerger:
    """width: of the encoder."""
    if (active := whole.text("projector_hidden_act", "gelu")) != "gelu":
        raise UnsupportedModel(f"projector_hidden_act is '{active}'; expected gelu.")
    inner, bias = whole.integer("projector_hidden_size", 4096), whole.flag("projector_bias", True)
    up, down = (
        Linear(name=f"vision.merger.{part}", source=f"{_PROJECTOR}.{matrix}", rows=rows, columns=columns, bias=bias)
        for part, matrix, rows, columns in (
            ("up", "linear_1", inner, width * merge**2),
            ("down", "linear_2", hidden, inner),
        )
    )
    where = f"{_PROJECTOR}.layer_norm"
    norm = Norm(
        name="vision.merger.norm",
        source=f"{where}.weight",
        size=width,
        epsilon=1e-6,
        kind="layer",
        bias=f"{where}.bias",
    )
    return PatchMerger(norm=norm, up=up, down=down)
