"""A tiny vision-language model without torch, and random images for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from embedllm.backends.base import FeedsAll
from embedllm.backends.images import images_of, place_images
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from tests.support.described import RandomSource
from tests.support.families import GEMMA3, INTERNVIT, INTERNVL, SIGLIP, SMOLVLM
from tests.support.tiny import tiny_config, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedllm import Model
    from embedllm.backends.images import ImageFeatures
    from embedllm.generation.request import Request
    from embedllm.types import F32

IMAGE_TOKEN, TILE, TILE_TOKENS = 300, 32, 16  # of the tiny model: pixels a side, rows of a tile


@dataclass(frozen=True, eq=False)
class Image:
    """Noise, as a processor gives it."""

    pixel_values: F32  # [tiles, 3, TILE, TILE]

    @property
    def tokens(self) -> int:
        return TILE_TOKENS * len(self.pixel_values)

    @property
    def sha256(self) -> str:
        return sha256(self.pixel_values.tobytes()).hexdigest()

    @property
    def grid(self) -> None:
        return None


class CountedTiles:
    """Stands in front of an engine's encoder, and counts the tiles that it encodes from now on."""

    def __init__(self, features: ImageFeatures | None) -> None:
        assert features is not None
        self.count = 0
        self._encoder, self._open = features._encoder, features._open
        features._encoder, features._open = None, lambda: self

    def encode(self, pixel_values: F32) -> F32:
        self.count += 1
        self._encoder = self._encoder or self._open()
        return self._encoder.encode(pixel_values)


def image(seed: int, tiles: int = 1) -> Image:
    pixels = np.random.default_rng(seed).standard_normal((tiles, 3, TILE, TILE))
    return Image(pixels.astype(np.float32))


def vision_checkpoint(folder: Path, *, vision: Mapping[str, object] | None = None) -> Path:
    """A random SmolVLM with config.json, weights and tokenizer; returns the folder.

    vision: values of its encoder's configuration, in place of the tiny ones.
    """
    text = tiny_config("llama", attention_bias=False, eos_token_id=None, max_position_embeddings=512)
    config = {**SMOLVLM, "model_type": "smolvlm", "text_config": text, "vision_config": {**SIGLIP, **(vision or {})}}
    kernel = "model.vision_model.embeddings.patch_embedding"
    return _written(folder, config, RandomSource(describe(Config(config))).tensors, kernel=kernel)


def internvl_checkpoint(folder: Path, *, vision: Mapping[str, object] | None = None) -> Path:
    """A random InternVL with the names of published checkpoints, as vision_checkpoint()."""
    text = tiny_config("qwen3", eos_token_id=None, max_position_embeddings=512)
    config = {**INTERNVL, "model_type": "internvl", "text_config": text, "tie_word_embeddings": False,
              "vision_config": {**INTERNVIT, **(vision or {})}}  # fmt: skip
    tensors = RandomSource(describe(Config(config))).tensors
    embeddings = "vision_tower.embeddings"
    tensors[f"{embeddings}.cls_token"] = tensors[f"{embeddings}.cls_token"][None]
    tensors[f"{embeddings}.position_embeddings"] = tensors.pop(f"{embeddings}.position_embeddings.weight")[None]
    return _written(folder, config, tensors, kernel=f"{embeddings}.patch_embeddings.projection")


def gemma_checkpoint(
    folder: Path,
    window: int,
    *,
    tile: int = TILE,
    tile_tokens: int = TILE_TOKENS,
    text: Mapping[str, object] | None = None,
    vision: Mapping[str, object] | None = None,
) -> Path:
    """A random Gemma 3 with the names of published checkpoints, as vision_checkpoint(). window: in tokens.

    text, vision: values of the configurations, in place of the tiny ones.
    """
    of_text = {**GEMMA3, "eos_token_id": None, "max_position_embeddings": 512, "sliding_window": window,
               "rms_norm_eps": 1e-6, **(text or {})}  # fmt: skip
    of_vision = {**SIGLIP, "image_size": tile, **(vision or {})}
    config = {"model_type": "gemma3", "text_config": of_text, "vision_config": of_vision,
              "mm_tokens_per_image": tile_tokens, "image_token_index": IMAGE_TOKEN}  # fmt: skip
    tensors = RandomSource(describe(Config(config))).tensors
    projector = "multi_modal_projector.mm_input_projection_weight"
    tensors[projector] = np.ascontiguousarray(tensors.pop(f"{projector}.weight").T)
    kernel = "vision_tower.vision_model.embeddings.patch_embedding"
    return _written(folder, config, tensors, kernel=kernel, patch_size=int(str(of_vision["patch_size"])))


def _written(
    folder: Path,
    config: dict[str, object],
    tensors: dict[str, F32],
    *,
    kernel: str,
    patch_size: int = int(str(SIGLIP["patch_size"])),
) -> Path:
    """The checkpoint; returns the folder. kernel: what patches are multiplied by, in the shape of a convolution."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight = f"{kernel}.weight"
    tensors[weight] = tensors[weight].reshape(-1, 3, patch_size, patch_size)
    save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder, 307)
    return folder


def seeing_prompt(*parts: Image | Sequence[int]) -> tuple[list[int], tuple[Image, ...]]:
    """Token ids, each image as its placeholder tokens; and the images."""
    tokens: list[int] = []
    for part in parts:
        tokens += [IMAGE_TOKEN] * part.tokens if isinstance(part, Image) else part
    return tokens, tuple(part for part in parts if isinstance(part, Image))


def seeing_logits(llm: Model, *parts: Image | Sequence[int]) -> F32:
    """The logits behind each token of a prompt with images, [T, vocabulary]."""
    tokens, images = seeing_prompt(*parts)
    engine = llm.runner.engine
    kept = images_of(engine)
    assert kept is not None
    kept.add(images)

    def fed() -> F32:
        session = engine.open()
        assert isinstance(session, FeedsAll)
        return session.feed_all(place_images(tokens, images, IMAGE_TOKEN))

    return llm.runner.call(fed)


def seeing_request(llm: Model, *parts: Image | Sequence[int], tokens: int = 8) -> Request:
    """A greedy request of a prompt with images."""
    ids, images = seeing_prompt(*parts)
    plain = llm.request(ids, temperature=0, max_tokens=tokens, stop_tokens=[])
    request = replace(plain, prompt=place_images(ids, images, IMAGE_TOKEN), images=images)
    llm.runner.check(request)
    return request


_TEMPLATE = (  # as SmolVLM's: contents are lists of parts
    "{% for message in messages %}<|im_start|>{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
LONGEST_EDGE = 2 * TILE  # of an image whose tiles are 2 by 2, or fewer


def chat_checkpoint(folder: Path) -> Path:
    """As vision_checkpoint(), with the tokens, the chat template and the image processor of SmolVLM."""
    vision_checkpoint(folder)
    write_smolvlm_chat(folder, tile=TILE, tile_tokens=TILE_TOKENS, longest_edge=LONGEST_EDGE)
    return folder


def write_smolvlm_chat(folder: Path, *, tile: int, tile_tokens: int, longest_edge: int) -> None:
    """The tokens, the chat template and the image processor of SmolVLM. tile, longest_edge: pixels."""
    tags = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    _write_chat(
        folder,
        special=["<image>", "<fake_token_around_image>", "<global-img>", *tags],
        named={"image_token": "<image>"},
        template=_TEMPLATE,
        processor={"processor_class": "SmolVLMProcessor", "image_seq_len": tile_tokens},
        pixels={"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": longest_edge},
                "max_image_size": {"longest_edge": tile}},
    )  # fmt: skip


def internvl_chat_checkpoint(folder: Path) -> Path:
    """As internvl_checkpoint(), with the tokens, the image processor and a template like that of InternVL."""
    internvl_checkpoint(folder)
    named = {"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"}
    _write_chat(
        folder,
        special=list(named.values()),
        named=named,
        template=_TEMPLATE.replace("<image>", "<IMG_CONTEXT>\n"),
        processor={"processor_class": "InternVLProcessor", "image_seq_length": TILE_TOKENS},
        pixels={"image_processor_type": "GotOcr2ImageProcessorFast", "size": {"height": TILE, "width": TILE},
                "crop_to_patches": False, "min_patches": 1, "max_patches": 6},
    )  # fmt: skip
    return folder


def gemma_chat_checkpoint(
    folder: Path,
    *,
    window: int = 50,
    tile: int = TILE,
    tile_tokens: int = TILE_TOKENS,
    text: Mapping[str, object] | None = None,
    vision: Mapping[str, object] | None = None,
) -> Path:
    """As gemma_checkpoint(), with the tokens, the image processor and a template like that of Gemma 3."""
    gemma_checkpoint(folder, window, tile=tile, tile_tokens=tile_tokens, text=text, vision=vision)
    _write_chat(
        folder,
        special=["<image_soft_token>", "<start_of_image>", "<end_of_image>"],
        named={"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"},
        template=_TEMPLATE.replace("<image>", "<start_of_image>"),
        processor={"processor_class": "Gemma3Processor", "image_seq_length": tile_tokens},
        pixels={"image_processor_type": "Gemma3ImageProcessor", "size": {"height": tile, "width": tile},
                "do_pan_and_scan": None},
    )  # fmt: skip
    return folder


def _write_chat(
    folder: Path,
    *,
    special: Sequence[str],
    named: dict[str, str],
    template: str,
    processor: dict[str, object],
    pixels: dict[str, object],
) -> None:
    """special: tokens, of which the first is the placeholder."""
    write_tokenizer(folder, IMAGE_TOKEN - 10)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"<unused{place}>" for place in range(IMAGE_TOKEN - tokenizer.get_vocab_size())])
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": template}))
    (folder / "processor_config.json").write_text(json.dumps(processor))
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
