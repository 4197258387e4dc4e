"""SigLIP's vision transformer with a projector of pixel shuffle and one matrix, as SmolVLM and Idefics 3 have it."""

from __future__ import annotations

from embedllm.errors import UnsupportedModel
from embedllm.export.architectures._shared.parts import Names, NormKind, Parts, Sizes, activation
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.layer import Layer
from embedllm.package.architecture.vision import Vision
from embedllm.package.architecture.weights import Linear

_NAMES = Names(
    attention_norm="layer_norm1", mlp_norm="layer_norm2", o="self_attn.out_proj", up="mlp.fc1", down="mlp.fc2", gate=""
)
NORM = NormKind(kind="layer", bias=True, key="layer_norm_eps")


def describe_siglip(
    config: Config, *, source: str, projector: str, hidden: int, pixel_shuffle: int, image_token: int
) -> Vision:
    """The vision encoder of a `vision_config`.

    source: in the checkpoint, of the encoder. projector: the same of the projector's matrix. hidden: of the decoder.
    Raises UnsupportedModel.
    """
    config = config.filled({"hidden_act": "gelu_pytorch_tanh", "image_size": 224, "patch_size": 32,
                            "num_hidden_layers": 12, "num_attention_heads": 16, "hidden_size": 1152,
                            "intermediate_size": 3072}).replaced({"vocab_size": 1})  # fmt: skip
    sizes = Sizes.of(config)
    image_size, patch_size = config.integer("image_size"), config.integer("patch_size")
    if config.integer("num_channels", 3) != 3:  # red, green, blue
        raise UnsupportedModel(f"num_channels is {config.integer('num_channels')}; expected 3.")
    if image_size % (patch_size * pixel_shuffle):
        raise UnsupportedModel(
            f"image_size is {image_size}; expected a multiple of {patch_size * pixel_shuffle}, patch_size times "
            "scale_factor."
        )
    patches = (image_size // patch_size) ** 2
    return Vision(
        image_token=image_token,
        image_size=image_size,
        patch_size=patch_size,
        patches=f"{source}.embeddings.patch_embedding",
        positions=Linear(
            name="vision.positions",
            source=f"{source}.embeddings.position_embedding",
            rows=patches,
            columns=sizes.hidden,
        ),
        layers=tuple(siglip_layer(config, sizes, source, index) for index in range(sizes.layers)),
        norm=NORM.named(config, "vision.norm", f"{source}.post_layernorm", sizes.hidden),
        pixel_shuffle=pixel_shuffle,
        projector=Linear(
            name="vision.projector", source=projector, rows=hidden, columns=sizes.hidden * pixel_shuffle**2
        ),
    )


def siglip_layer(config: Config, sizes: Sizes, source: str, index: int) -> Layer:
    """A layer of an encoder whose tensors begin with `source`."""
    parts = Parts(config=config, sizes=sizes, names=_NAMES, norm_kind=NORM, transposed=False,
                  name=f"vision.layers.{index}", source=f"{source}.encoder.layers.{index}")  # fmt: skip
    active = activation(config, "hidden_act", "gelu_pytorch_tanh")
    mlp = parts.mlp(config.integer("intermediate_size"), active, bias=True)
    return parts.layer(parts.attention(bias=True, rope=None), mlp)
