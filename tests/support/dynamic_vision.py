"""Tiny models that take images of any size, without torch, and random images for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.vision import DynamicVision
from tests.support.described import RandomSource
from tests.support.families import (
    ATTENTION_TEMPERATURE,
    BASE,
    DELTA,
    GLM_OCR_VISION,
    LFM2_TEXT,
    LFM3_VISION,
    MROPE,
    PADDLE_VISION,
    PIXTRAL_TOKENS,
    PIXTRAL_VISION,
    QWEN2_5_VISION,
    QWEN2_VISION,
    QWEN3_5_HEADS,
    QWEN3_5_VISION,
    QWEN3_VISION,
    QWEN_TOKENS,
    SIGLIP2_VISION,
)
from tests.support.tiny import write_tokenizer

if TYPE_CHECKING:
    from embedllm.types import F32

IMAGE_TOKEN, START, END = 300, 301, 302
QWEN_MARKS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")  # their texts
PADDLE_MARKS = ("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>")
GLM_MARKS = ("<|image|>", "<|begin_of_image|>", "<|end_of_image|>")
LFM2_MARKS = ("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<|img_row_1_col_1|>")
PIXTRAL_MARKS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
SQUARE = 8  # pixels; the side of what becomes a row of features
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"vision_config": QWEN2_VISION},
    "qwen2_5_vl": {"vision_config": QWEN2_5_VISION},
    "qwen3_vl": {"vision_config": QWEN3_VISION},
    "qwen3_5": {"vision_config": QWEN3_5_VISION},
    "mistral3": {"vision_config": PIXTRAL_VISION, **PIXTRAL_TOKENS},
    "lighton_ocr": {"vision_config": PIXTRAL_VISION, "spatial_merge_size": 2},
    "paddleocr_vl": {"vision_config": PADDLE_VISION},
    "glm_ocr": {"vision_config": GLM_OCR_VISION},
    "lfm2_vl": {"vision_config": SIGLIP2_VISION, "projector_hidden_size": 72},
    "lfm3_vl": {"vision_config": LFM3_VISION, "projector_hidden_size": 72},
}
_TEXTS: dict[str, dict[str, Any]] = {
    "qwen3_5": {**DELTA, **QWEN3_5_HEADS, "linear_conv_kernel_dim": 4},
    "mistral3": {"model_type": "ministral3", "rope_parameters": ATTENTION_TEMPERATURE, "sliding_window": None},
    "lighton_ocr": {"model_type": "qwen3", "rope_parameters": None},
    "lfm2_vl": {"model_type": "lfm2", **LFM2_TEXT},
    "lfm3_vl": {
        "model_type": "lfm3",
        "layer_types": ["conv", "full_attention", "sliding_attention"],
        "rope_parameters": None,
    },
}


@dataclass(frozen=True, eq=False)
class DynamicImage:
    """Noise, as a processor gives it."""

    pixel_values: F32  # [1, 3, height, width]

    @property
    def grid(self) -> tuple[int, int]:
        height, width = self.pixel_values.shape[2:]
        return height // SQUARE, width // SQUARE

    @property
    def tokens(self) -> int:
        rows, columns = self.grid
        return rows * columns

    @property
    def sha256(self) -> str:
        return sha256(self.pixel_values.tobytes()).hexdigest()


def dynamic_image(seed: int, rows: int, columns: int) -> DynamicImage:
    """rows, columns: of its features."""
    shape = (1, 3, SQUARE * rows, SQUARE * columns)
    return DynamicImage(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def siglip2_inputs(tiles: Sequence[F32]) -> dict[str, np.ndarray]:
    """As transformers takes them: [tiles, patches, values], red, green and blue of a pixel side by side.

    tiles: each [3, height, width].
    """
    side = SQUARE // 2
    shapes = [(tile.shape[1] // side, tile.shape[2] // side) for tile in tiles]
    most = max(rows * columns for rows, columns in shapes)
    values, mask = np.zeros((len(tiles), most, 3 * side**2), np.float32), np.zeros((len(tiles), most), np.int64)
    for place, (rows, columns) in enumerate(shapes):
        apart = tiles[place].reshape(3, rows, side, columns, side).transpose(1, 3, 2, 4, 0)
        values[place, : rows * columns] = apart.reshape(rows * columns, -1)
        mask[place, : rows * columns] = 1
    return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": np.array(shapes)}


def dynamic_prompt(*parts: DynamicImage | Sequence[int]) -> tuple[list[int], tuple[DynamicImage, ...]]:
    """Token ids, each image as its placeholder tokens between two marks; and the images."""
    tokens: list[int] = []
    for part in parts:
        tokens += [START, *[IMAGE_TOKEN] * part.tokens, END] if isinstance(part, DynamicImage) else part
    return tokens, tuple(part for part in parts if isinstance(part, DynamicImage))


def dynamic_config(family: str) -> dict[str, Any]:
    text = {**BASE, "num_hidden_layers": 3, "max_position_embeddings": 512, "rope_parameters": MROPE,
            "eos_token_id": None, "rms_norm_eps": 1e-6, **_TEXTS.get(family, {})}  # fmt: skip
    return {**QWEN_TOKENS, **CONFIGS[family], "model_type": family, "text_config": text}


def described(family: str) -> Decoder:
    """The tiny model of a family."""
    return describe(Config(dynamic_config(family)))


def dynamic_checkpoint(folder: Path, family: str, config: dict[str, Any] | None = None) -> Path:
    """A random model with config.json, weights and tokenizer; returns the folder. config: in place of the tiny one."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config or dynamic_config(family)
    (folder / "config.json").write_text(json.dumps(config))
    decoder = describe(Config(config))
    tensors = RandomSource(decoder).tensors
    assert isinstance(decoder.vision, DynamicVision)
    kernel, side = f"{decoder.vision.patches}.weight", decoder.vision.patch_size
    in_time = decoder.vision.temporal_patch_size
    if not decoder.vision.patches_channels_last and not decoder.vision.patches_are_flat:
        tensors[kernel] = tensors[kernel].reshape(-1, 3, *([in_time] if in_time > 1 else []), side, side)
    for name in tensors:
        if name.endswith((".conv1d.weight", ".conv.weight")):
            tensors[name] = tensors[name][:, None]
        if name.endswith(".downsample.weight"):
            tensors[name] = tensors[name].reshape(len(tensors[name]), -1, *[decoder.vision.merge_size] * 2)
        if name.endswith(".spatial_conv.weight"):
            tensors[name] = tensors[name].reshape(-1, 1, *(tensors[name].shape[1:] * 2))
    save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder, 307)
    return folder


_TEMPLATE = (  # as Qwen's
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def dynamic_chat_checkpoint(folder: Path, family: str, config: dict[str, Any] | None = None) -> Path:
    """As dynamic_checkpoint(), with the tokens, the chat template and the image processor of the family's models."""
    dynamic_checkpoint(folder, family, config)
    write_dynamic_chat(folder, family)
    return folder


def write_dynamic_chat(folder: Path, family: str) -> None:
    write_tokenizer(folder, IMAGE_TOKEN - 10)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"<unused{place}>" for place in range(IMAGE_TOKEN - tokenizer.get_vocab_size())])
    chat = _CHATS.get(family, _QWEN)
    tokenizer.add_special_tokens([*chat.marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    template = _TEMPLATE.replace(_QWEN.image, chat.image)
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": template}))
    (folder / "preprocessor_config.json").write_text(json.dumps(chat.pixels))
    if chat.processor:
        (folder / "processor_config.json").write_text(json.dumps(chat.processor))


PIXTRAL_PROCESSOR = {"processor_class": "PixtralProcessor", "patch_size": 4, "spatial_merge_size": 2}
PIXTRAL_PIXELS = {"image_processor_type": "PixtralImageProcessor", "patch_size": {"height": 4, "width": 4},
                  "size": {"longest_edge": 64}}  # fmt: skip
PIXELS = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
          "size": {"shortest_edge": 4 * SQUARE**2, "longest_edge": 30 * SQUARE**2}}  # fmt: skip
PADDLE_PIXELS = {**PIXELS, "image_processor_type": "PaddleOCRVLImageProcessor", "temporal_patch_size": 1}
GLM_PIXELS = {**PIXELS, "image_processor_type": "Glm46VImageProcessor"}
LFM2_PIXELS = {"image_processor_type": "Lfm2VlImageProcessorFast", "encoder_patch_size": 4, "tile_size": 16,
               "min_image_tokens": 4, "max_image_tokens": 16, "max_tiles": 6, "max_pixels_tolerance": 1.0}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Chat:
    """What the folder of a family has for chats with images."""

    marks: Sequence[str]  # special tokens, the first one IMAGE_TOKEN
    image: str  # in the chat template
    pixels: dict[str, Any]
    processor: dict[str, Any] | None = None


# the settings of its processor are what Pixtral's says, too
_LIGHTON_OCR = {**PIXTRAL_PROCESSOR, "processor_class": "LightOnOcrProcessor"}
_PADDLE = {"processor_class": "PaddleOCRVLProcessor"}
_QWEN = _Chat(marks=QWEN_MARKS, image="<|vision_start|><|image_pad|><|vision_end|>", pixels=PIXELS)
_CHATS = {
    "mistral3": _Chat(marks=PIXTRAL_MARKS, image="[IMG]", pixels=PIXTRAL_PIXELS, processor=PIXTRAL_PROCESSOR),
    "lighton_ocr": _Chat(marks=QWEN_MARKS, image="<|image_pad|>", pixels=PIXTRAL_PIXELS, processor=_LIGHTON_OCR),
    "paddleocr_vl": _Chat(marks=PADDLE_MARKS, image=PADDLE_MARKS[0], pixels=PADDLE_PIXELS, processor=_PADDLE),
    "glm_ocr": _Chat(marks=GLM_MARKS, image=GLM_MARKS[0], pixels=GLM_PIXELS),
    "lfm2_vl": _Chat(marks=LFM2_MARKS, image="<image>", pixels=LFM2_PIXELS),
}
