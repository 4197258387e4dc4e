"""PaddleOCR-VL (0.9B): vision-language model; SigLIP with 2-D RoPE, M-RoPE, ERNIE 4.5 with RoPE by halves."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError
from embedllm.export.architectures._shared.decoder_shape import describe_shaped
from embedllm.export.architectures._shared.parts import Sizes
from embedllm.export.architectures._shared.qwen_vision import with_mrope
from embedllm.export.architectures._shared.siglip import NORM, siglip_layer
from embedllm.export.architectures._shared.vision_encoder import check_encoder, rope_base
from embedllm.export.architectures._shared.vision_language import image_token, text_of
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.ernie4_5 import ernie
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision, PatchMerger
from embedllm.package.architecture.weights import Linear, Norm

_ENCODER, _PROJECTOR = "visual.vision_model", "mlp_AR"
_DEFAULTS: dict[str, object] = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
                                "num_attention_heads": 16, "num_channels": 3, "image_size": 384, "patch_size": 14,
                                "hidden_act": "gelu_pytorch_tanh", "spatial_merge_size": 2}  # fmt: skip
_EPSILON = 1e-5  # of the projector's norm, whatever config.json says of the others'
_TIED = "tie_word_embeddings"


def describe(config: Config) -> Decoder:
    text, vision = config.section("text_config"), config.section("vision_config")
    if vision is None:
        raise ExportError("config.json has no 'vision_config'; expected there what a PaddleOCR-VL says of its encoder.")
    # a file of before transformers 5 may say it of the text model alone
    tied = config.flag(_TIED, True) or (text is not None and text.flag(_TIED, True))
    decoder = _text(config.replaced({_TIED: tied}))
    token = image_token(config, decoder, 100_295)
    return replace(decoder, vision=_vision(vision, decoder.hidden, token))


def _text(config: Config) -> Decoder:
    shape = replace(ernie(text_of(config), "paddleocr_vl"), interleaved=False)
    return with_mrope(describe_shaped(text_of(config), shape), config)


def _vision(config: Config, hidden: int, token: int) -> DynamicVision:
    """hidden: of the decoder. token: the placeholder of a row."""
    # heads have no size of their own in transformers, whatever a config says
    config = config.filled(_DEFAULTS).replaced({"vocab_size": 1, "head_dim": None})
    sizes, patch, merge = Sizes.of(config), config.integer("patch_size"), config.integer("spatial_merge_size")
    check_encoder(config, sizes, num_channels=3)
    places = (config.integer("image_size") // patch) ** 2
    return DynamicVision(
        image_token=token,
        patch_size=patch,
        temporal_patch_size=1,
        merge_size=merge,
        patches=f"{_ENCODER}.embeddings.patch_embedding",
        patches_bias=True,
        rope_base=rope_base(config),
        positions=Linear(name="vision.positions", source=f"{_ENCODER}.embeddings.position_embedding",
                         rows=places, columns=sizes.hidden),
        positions_on_edges=True,
        layers=tuple(siglip_layer(config, sizes, _ENCODER, index) for index in range(sizes.layers)),
        merger=_merger(config, sizes.hidden, hidden, merge),
    )  # fmt: skip


def _merger(config: Config, width: int, hidden: int, merge: int) -> PatchMerger:
    """width: of the encoder."""
    square = width * merge**2
    up, down = (
        Linear(name=f"vision.merger.{part}", source=f"{_PROJECTOR}.{matrix}", rows=rows, columns=square, bias=True)
        for part, matrix, rows in (("up", "linear_1", square), ("down", "linear_2", hidden))
    )
    where = f"{_PROJECTOR}.pre_norm"
    return PatchMerger(
        norm=NORM.named(config, "vision.merger.norm", f"{_ENCODER}.post_layernorm", width),
        projector_norm=Norm(name="vision.merger.projector_norm", source=f"{where}.weight", size=width,
                            epsilon=_EPSILON, kind="layer", bias=f"{where}.bias"),
        up=up,
        down=down,
    )  # fmt: skip
