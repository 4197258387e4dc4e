"""Gemma 4 12B: images of any size without an encoder, by a matrix and norms; the text decoder; no audio, no video."""

from __future__ import annotations

from dataclasses import replace

from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export.architectures._shared.gemma4_vision import gemma4_image_token
from embedllm.export.architectures._shared.parts import RMS, NormKind
from embedllm.export.architectures._shared.vision_language import text_section
from embedllm.export.architectures.config import Config
from embedllm.export.architectures.gemma4_text import describe_text
from embedllm.export.architectures.gemma4_unified_text import with_defaults
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision, PatchPooler
from embedllm.package.architecture.weights import Linear, Norm, Origin

_PLACE = "model.vision_embedder"
_DEFAULTS = {"patch_size": 16, "pooling_kernel_size": 3, "mm_embed_dim": 3840, "mm_posemb_size": 1120}
_NORM = NormKind(kind="layer", bias=True, key="layer_norm_eps", epsilon=1e-5)  # torch's default


def describe(config: Config) -> Decoder:
    text, vision = config.section("text_config"), config.section("vision_config")
    if text is None:
        raise ExportError("config.json has no 'text_config'; expected there what a Gemma 4 says of its text model.")
    decoder = describe_text(with_defaults(text_section(config, text)), "gemma4_unified", "model.language_model")
    return decoder if vision is None else replace(decoder, vision=_vision(config, vision, text, decoder))


def _vision(config: Config, vision: Config, text: Config, decoder: Decoder) -> DynamicVision:
    """A square of patches, which other Gemma 4 pool to a token, is a patch here."""
    vision = vision.filled(_DEFAULTS)
    side, hidden = vision.integer("patch_size") * vision.integer("pooling_kernel_size"), vision.integer("mm_embed_dim")
    if (projected := vision.integer("output_proj_dims", 3840)) != hidden:
        raise UnsupportedModel(f"output_proj_dims is {projected} in vision_config; expected mm_embed_dim, {hidden}.")
    places = 2 * vision.integer("mm_posemb_size")

    def norm(part: str, where: str, size: int) -> Norm:
        return _NORM.named(Config({}), f"vision.{part}", f"{_PLACE}.{where}", size)

    return DynamicVision(
        image_token=gemma4_image_token(config, text, decoder),
        patch_size=side,
        temporal_patch_size=1,
        merge_size=1,
        patches=f"{_PLACE}.patch_dense",
        patches_bias=True,
        patches_channels_last=True,
        rope_base=0.0,
        # the source has both axes of a place side by side
        positions=Linear(
            name="vision.positions",
            source=f"{_PLACE}.pos_embedding",
            rows=places,
            columns=hidden,
            origin=Origin(rows=places, head_rows=places, interleaved=places),
        ),
        positions_by_axis=True,
        layers=(),
        pixels_norm=norm("pixels_norm", "patch_ln1", 3 * side**2),
        patches_norm=norm("patches_norm", "patch_ln2", hidden),
        positions_norm=norm("positions_norm", "pos_norm", hidden),
        merger=PatchPooler(
            norm=replace(RMS.named(vision, "vision.pooler.norm", "", hidden), source=""),
            projector=Linear(
                name="vision.pooler.projector",
                source="model.embed_vision.embedding_projection",
                rows=decoder.hidden,
                columns=hidden,
            ),
            multiplier=1.0,
        ),
        bidirectional_in_windows=text.text_or_none("use_bidirectional_attention", "vision") == "vision",
    )
