"""Models that see in GGUF files that the tests write, computed by llama.cpp (mtmd): what embedllm computes of them.

Images have sizes that neither side changes, as llama.cpp resizes by other kernels. SmolVLM and Idefics 3 are missing:
their last tile is always resized; so are Gemma 4 E2B and E4B, which llama.cpp knows by the size of their embedding.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import embedllm
from embedllm import Model
from embedllm.backends.base import FeedsAll, ImageInput
from embedllm.backends.images import images_of, place_images
from embedllm.export import Recipe, convert
from tests.support.dynamic_vision import END, IMAGE_TOKEN, START
from tests.support.gguf_mmproj import QWEN, changed, seeing_checkpoint, write_pair
from tests.support.llama_cpp_server import LlamaCpp

pytestmark = [pytest.mark.peer, pytest.mark.slow]
# of log-probabilities: llama.cpp's KV cache is float16; of Gemma 4 that is 0.03 for a text alone, and QuickGELU in its
# encoder 0.2
LIMITS = {"gemma4 large": 0.08}
LIMIT = 0.02
TEXTS = ("what is it", "a b c", "why not", "12 3 4 5", "look", "so be it")
PIXELS = {"clip.vision.image_min_pixels": 256, "clip.vision.image_max_pixels": 1 << 15}
# llama.cpp takes QuickGELU for what Gemma 4's files leave out
MORE = {**dict.fromkeys(QWEN, PIXELS), "gemma4 large": {"clip.use_gelu": True}}
# of Qwen2.5-VL four windows; llama.cpp knows those of 112 pixels only
SIZES = {"qwen2_vl": (40, 24), "qwen2_5_vl": (160, 128), "qwen3_vl": (24, 40), "gemma3": (32, 32),
         "mistral3": (40, 24), "lfm2_vl": (96, 64), "gemma4 large": (160, 112)}  # fmt: skip


@pytest.mark.parametrize("family", SIZES)
def test_probabilities_behind_an_image_are_those_of_llama_cpp(family: str, tmp_path: Path) -> None:
    folder, (width, height) = seeing_checkpoint(tmp_path / "checkpoint", family), SIZES[family]
    if family == "qwen2_5_vl":
        vision = json.loads((folder / "config.json").read_text())["vision_config"]
        changed(folder / "config.json", vision_config={**vision, "window_size": 112})
    if family == "gemma4 large":  # the image is no longer than a window
        text = json.loads((folder / "config.json").read_text())["text_config"]
        changed(folder / "config.json", text_config={**text, "sliding_window": 400})
    pair = write_pair(tmp_path / "gguf", folder, more=MORE.get(family, {}))
    server = LlamaCpp(pair.text, mmproj=pair.mmproj, context=512)
    picture = Image.fromarray(np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8))
    file = io.BytesIO()
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    compared = 0
    with embedllm.load(convert(pair.text, tmp_path / "out", Recipe(bits=32)), device="cpu", exact=True) as llm:
        images = llm.request([{"role": "user", "content": [{"type": "image", "image": picture}]}]).images  # type: ignore[arg-type]  # images are no JSON
        kept = images_of(llm.runner.engine)
        assert kept is not None
        kept.add(images)
        for text in TEXTS:
            behind = llm.tokenizer.encode(text, special=True)
            tokens = [*shown(family, images[0]), *behind]
            prompt = {"prompt_string": f"{server.image_marker}{text}", "multimodal_data": [data]}
            answer = server.post("completion", prompt=prompt, n_predict=1, n_probs=8, temperature=1.0, samplers=[],
                                 cache_prompt=False)  # fmt: skip
            if not answer.get("completion_probabilities"):  # the token is only the beginning of a letter
                continue
            assert answer["tokens_evaluated"] == len(tokens)
            expected = log_probabilities(llm, tokens, images)
            found = answer["completion_probabilities"][0]["top_logprobs"]
            assert max(abs(each["logprob"] - expected[each["id"]]) for each in found) < LIMITS.get(family, LIMIT)
            compared += 1
    assert compared, "no answer had a token that is a whole letter"


def shown(family: str, image: ImageInput) -> list[int]:
    """The tokens of an image; of Mistral 3 START ends a row, END the last."""
    if family != "mistral3" or image.grid is None:
        return [START, *[IMAGE_TOKEN] * image.tokens, END]
    rows, columns = image.grid
    return [token for row in range(rows) for token in [IMAGE_TOKEN] * columns + [END if row == rows - 1 else START]]


def log_probabilities(llm: Model, tokens: list[int], images: Sequence[ImageInput]) -> np.ndarray:
    """Of the token behind all of these."""

    def fed() -> np.ndarray:
        session = llm.runner.engine.open()
        assert isinstance(session, FeedsAll)
        return session.feed_all(place_images(tokens, images, IMAGE_TOKEN))[-1]

    logits = llm.runner.call(fed).astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
