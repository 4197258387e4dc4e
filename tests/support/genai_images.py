"""Tiny models that see, of the sizes that onnxruntime-genai takes, and what it gives for messages with images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from embedllm.export import Recipe, convert
from embedllm.text.chat_template import ChatTemplate
from tests.support.dynamic_vision import dynamic_chat_checkpoint, dynamic_config
from tests.support.families import EXPERTS, QWEN_EXPERTS
from tests.support.vision import gemma_chat_checkpoint

FAMILIES = ("gemma3", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5",
            "qwen3_5_moe")  # fmt: skip
_MIXTURES = {"qwen3_vl_moe": {**EXPERTS, "moe_intermediate_size": 48}, "qwen3_5_moe": QWEN_EXPERTS}
CONTEXT = 1024  # tokens
WINDOW = 150  # of Gemma 3, fewer than the tokens of an image
Parts = Sequence[Path | str]  # of a message: images, texts


def genai_checkpoint(folder: Path, family: str, window: int = WINDOW) -> Path:
    """A random model with the tokens, the image processor and a chat template like those of its family.

    window: in tokens, of Gemma 3.
    """
    if family == "gemma3":  # 256 tokens are what onnxruntime-genai writes for an image
        gemma_chat_checkpoint(folder, window=window, tile=64, tile_tokens=256)
    elif family in _MIXTURES:
        dense, experts = family.removesuffix("_moe"), _MIXTURES[family]
        config = dynamic_config(dense)
        text = {**config["text_config"], **experts}
        dynamic_chat_checkpoint(folder, dense, {**config, "model_type": family, "text_config": text})
    else:
        dynamic_chat_checkpoint(folder, family)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = CONTEXT
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def export_once(
    factory: pytest.TempPathFactory,
    write: Callable[[Path, str], Path],
    *,
    genai_images: bool = False,
    openvino_images: bool = False,
) -> Callable[[str, Recipe], Path]:
    """A function that exports the tiny model of a family, once for each recipe. write: its checkpoint into a folder."""
    made: dict[tuple[str, Recipe], Path] = {}

    def exported(family: str, recipe: Recipe) -> Path:
        if (family, recipe) not in made:
            root = factory.mktemp(family)
            checkpoint = write(root / "checkpoint", family)
            made[family, recipe] = convert(checkpoint, root / "package", recipe, genai_images=genai_images,
                                           openvino_images=openvino_images)  # fmt: skip
        return made[family, recipe]

    return exported


def noise(folder: Path, width: int, height: int) -> Path:
    """A file of an image."""
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"{width}x{height}.png")
    return folder / f"{width}x{height}.png"


def message(parts: Parts) -> dict[str, object]:
    """As Model.chat() takes it."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
               for part in parts]  # fmt: skip
    return {"role": "user", "content": content}


def greedy(og: ModuleType, folder: Path, parts: Parts, count: int) -> tuple[list[int], list[float]]:
    """Tokens by onnxruntime-genai, as its documentation has it, and the logarithms of their probabilities."""
    model = og.Model(os.fspath(folder))
    messages = json.dumps([_without_files(message(parts))])
    # given, since it reads one of folders whose tokenizer_config.json names a class
    template = ChatTemplate.open(folder).templates["default"]
    prompt = og.Tokenizer(model).apply_chat_template(messages, template_str=template, add_generation_prompt=True)
    files = [os.fspath(part) for part in parts if isinstance(part, Path)]
    images = {"images": og.Images.open(*files)} if files else {}
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=CONTEXT)
    generator = og.Generator(model, parameters)
    generator.set_inputs(model.create_multimodal_processor()(prompt, **images))
    tokens, logprobs = list[int](), list[float]()
    for _ in range(count):
        logits = np.asarray(generator.get_logits(), np.float64).reshape(-1)
        generator.generate_next_token()
        tokens.append(int(generator.get_sequence(0)[-1]))
        logits -= logits.max()
        logprobs.append(float(logits[tokens[-1]] - np.log(np.exp(logits).sum())))
    return tokens, logprobs


def _without_files(of_user: Mapping[str, object]) -> dict[str, object]:
    content = of_user["content"]
    assert isinstance(content, list)
    return {**of_user, "content": [{"type": "image"} if part["type"] == "image" else part for part in content]}
