"""The models that take images in onnxruntime-genai, and which of ours they are: a row for each of its types.

Source: model_type.h, gemma_image_processor.cpp, qwen2_5_vl_image_processor.cpp and mistral3_image_processor.cpp of
onnxruntime-genai (0.18.0), whose processors look for tokens by their texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from embedllm.errors import ExportError
from embedllm.export.writing.image_tokens import check_image_tokens
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import Vision
from embedllm.package.graph_variants import (
    GENAI_VISION_OF_PATCHES,
    GENAI_VISION_OF_PIXELS,
    IMAGE_GRID,
    VISION,
    GraphVariant,
)

_GEMMA_ROWS = 256  # tokens that its processor writes for an image, whatever the encoder makes


@dataclass(frozen=True, slots=True, kw_only=True)
class GenaiKind:
    """A type of model that takes images there."""

    name: str  # "type" in its configuration
    image_token: str  # its processor writes one for each row of features
    other_tokens: tuple[str, ...]  # that it looks for, too
    vision: GraphVariant
    vision_inputs: tuple[str, ...] = ("pixel_values",)
    ids: Mapping[str, str] = field(default_factory=dict)  # texts of tokens, by their keys in its configuration
    # for pad_token_id, the first that there is; none: as for text. Types with M-RoPE hide every token of a prompt that
    # equals it, and a checkpoint's may be the stop token, which stands behind each message
    pad_tokens: tuple[str, ...] = ()


def _qwen(name: str) -> GenaiKind:
    image, start, video = "<|image_pad|>", "<|vision_start|>", "<|video_pad|>"
    return GenaiKind(
        name=name,
        image_token=image,
        other_tokens=(start, "<|vision_end|>"),
        vision=GENAI_VISION_OF_PATCHES,
        vision_inputs=("pixel_values", IMAGE_GRID),
        ids={"image_token_id": image, "vision_start_token_id": start, "video_token_id": video},
        pad_tokens=(video, "<|endoftext|>"),
    )


# by the model type of ours. Qwen2-VL differs from Qwen2.5-VL in its encoder, which is a graph, as are experts
KINDS = {
    "gemma3": GenaiKind(
        name="gemma3",
        image_token="<image_soft_token>",
        other_tokens=("<start_of_image>", "<end_of_image>"),
        vision=VISION,
    ),
    "mistral3": GenaiKind(
        name="mistral3",
        image_token="[IMG]",
        other_tokens=("[IMG_BREAK]", "[IMG_END]"),
        vision=GENAI_VISION_OF_PIXELS,
    ),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), _qwen("qwen2_5_vl")),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), _qwen("qwen3_vl")),
    "qwen3_5": _qwen("qwen3_5"),
    "qwen3_5_moe": _qwen("qwen3_5_moe"),
}


def genai_kind(decoder: Decoder) -> GenaiKind:
    """What a model is there. Raises ExportError for one that is nothing."""
    kind = KINDS.get(decoder.model_type)
    if decoder.vision is None or kind is None:
        reason = "takes no images" if decoder.vision is None else "has no type there"
        raise ExportError(
            f"'{decoder.model_type}' cannot read images in onnxruntime-genai: it {reason}. Those that can: "
            f"{', '.join(KINDS)}. Export without --genai-images."
        )
    if kind.vision is VISION and isinstance(decoder.vision, Vision) and decoder.vision.tile_tokens != _GEMMA_ROWS:
        raise ExportError(
            f"'{decoder.model_type}' reads an image as {decoder.vision.tile_tokens} tokens; onnxruntime-genai expects "
            f"{_GEMMA_ROWS}. Export without --genai-images."
        )
    return kind


def token_ids(kind: GenaiKind, folder: Path, image_token: int) -> dict[str, int]:
    """Ids for the configuration, of a folder's tokenizer. image_token: the id that prompts have for a row of features.

    Raises ExportError where the tokenizer has not what onnxruntime-genai looks for.
    """
    texts = (kind.image_token, *kind.other_tokens)
    tokenizer = check_image_tokens(folder, texts, image_token, library="onnxruntime-genai", option="--genai-images")
    by_key = dict(kind.ids)
    if pad := next((text for text in kind.pad_tokens if tokenizer.token_id(text) is not None), ""):
        by_key["pad_token_id"] = pad
    ids = {key: tokenizer.token_id(text) for key, text in by_key.items()}
    return {key: number for key, number in ids.items() if number is not None}
