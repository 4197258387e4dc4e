"""Folders of tiny models that see in openvino-genai, and what its VLMPipeline gives for messages with images."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from embedllm.text.chat_template import ChatTemplate
from tests.support.gemma4 import gemma4_checkpoint
from tests.support.genai_images import Parts, genai_checkpoint

FAMILIES = ("gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe",
            "gemma4 small", "gemma4 large")  # fmt: skip
WINDOW = 300  # of Gemma 3: more than the 256 tokens of an image, which see each other in PagedAttention even beyond it
# float activations and KV, no rounding to int8: what exact=True sets
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"}


def openvino_checkpoint(folder: Path, family: str) -> Path:
    """As genai_checkpoint(), with a tokenizer that transformers takes as it is, whatever the model's type."""
    if family.startswith("gemma4"):
        gemma4_checkpoint(folder, family.removeprefix("gemma4 "))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens(["<|video|>"])
        tokenizer.save(str(folder / "tokenizer.json"))
    else:
        genai_checkpoint(folder, family, WINDOW)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def replied(
    og: ModuleType, folder: Path, parts: Parts, count: int, properties: Mapping[str, object], *, beams: int = 1
) -> tuple[list[int], float]:
    """Greedy tokens by openvino-genai, and the sum of the logarithms of their probabilities; of beams the best sum."""
    import openvino

    images: list[openvino.Tensor] = []
    content: list[str] = []
    for part in parts:
        if isinstance(part, Path):
            content.append(f"<ov_genai_image_{len(images)}>")
            images.append(openvino.Tensor(np.asarray(Image.open(part))[None]))
        else:
            content.append(part)
    message = {"role": "user", "content": [{"type": "text", "text": text} for text in content]}
    prompt = ChatTemplate.open(folder).render([message], add_generation_prompt=True)
    tokens: list[int] = []

    class Streamer(og.StreamerBase):  # type: ignore[misc, name-defined]
        def write(self, token: int | list[int]) -> object:
            tokens.extend(token if isinstance(token, list) else [token])
            return og.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    settings = og.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False, logprobs=1)
    settings.apply_chat_template = False
    if beams > 1:
        settings.num_beams, settings.length_penalty, settings.logprobs = beams, 0.0, 0
    pipeline = og.VLMPipeline(os.fspath(folder), "CPU", **properties)
    reply = pipeline.generate(prompt, images=images, generation_config=settings,
                              **({} if beams > 1 else {"streamer": Streamer()}))  # fmt: skip
    return tokens, reply.scores[0]
