"""Folders of models that see in onnxruntime-genai: of the same files of images, the same tokens and logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.export import Recipe, convert
from embedllm.text.tokenizer import Tokenizer
from tests.backends.genai.test_peer import genai_tokens
from tests.support.genai_images import FAMILIES, Parts, export_once, genai_checkpoint, greedy, message, noise

og = pytest.importorskip("onnxruntime_genai")
pytestmark = pytest.mark.peer
COUNT = 8  # tokens of a reply
FLOATS, FOUR_BITS = Recipe(bits=32), Recipe(method="nearest", exact=True)
WITHIN = 1e-4  # of logarithms of probabilities: all compute in float32; 3e-6 measured
Make = Callable[[str, Recipe], Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return export_once(tmp_path_factory, genai_checkpoint, genai_images=True)


def assert_equal(folder: Path, parts: Parts, *, device: str = "cpu") -> None:
    user: Any = message(parts)  # a path is no JSON
    with embedllm.load(folder, device=device) as llm:
        ours = llm.chat([user], temperature=0, max_tokens=COUNT, min_tokens=COUNT)
    tokens, logprobs = greedy(og, folder, parts, COUNT)
    assert tokens == list(ours.tokens)
    assert logprobs == pytest.approx(ours.logprobs, abs=WITHIN)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_to_an_image_is_that_of_the_reference(make: Make, tmp_path: Path, family: str) -> None:
    parts = ("hello", noise(tmp_path, 40, 24), "what is it")
    assert_equal(make(family, FLOATS), parts, device="reference")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantized_model_replies_as_on_cpu(make: Make, tmp_path: Path, family: str) -> None:
    assert_equal(make(family, FOUR_BITS), ("hello", noise(tmp_path, 40, 24), "what"))


@pytest.mark.parametrize("family", FAMILIES)
def test_several_images_of_different_sizes(make: Make, tmp_path: Path, family: str) -> None:
    """Each fits into the largest, and text is between them: onnxruntime-genai (0.18.0) asks for both with Mistral 3."""
    images = [noise(tmp_path, *size) for size in ((40, 24), (16, 24), (24, 16))]
    assert_equal(make(family, FLOATS), (images[0], "and", images[1], "then", images[2], "what"))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mistral3"])
def test_an_image_that_is_resized(make: Make, tmp_path: Path, family: str) -> None:
    assert_equal(make(family, FLOATS), (noise(tmp_path, 91, 53), "what"))


def test_a_large_image_of_mistral_3_is_resized_by_its_pixels(make: Make, tmp_path: Path) -> None:
    """Where its model has a limit for sides: an image has another size than in embedllm, and is read."""
    tokens, _ = greedy(og, make("mistral3", FLOATS), (noise(tmp_path, 91, 53), "what"), COUNT)
    assert len(tokens) == COUNT


@pytest.mark.parametrize("family", FAMILIES)
def test_text_alone(make: Make, family: str) -> None:
    assert_equal(make(family, FLOATS), ("hello, world",))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stop_token_in_a_prompt_is_seen(tmp_path: Path, family: str) -> None:
    """Not taken for padding, where the checkpoint names no other token for that."""
    checkpoint = genai_checkpoint(tmp_path / "checkpoint", family)
    stop = Tokenizer.open(checkpoint).token_id("<|im_end|>")
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": stop}))
    folder = convert(checkpoint, tmp_path / "package", FLOATS, genai_images=True)
    assert_equal(folder, ("hello", noise(tmp_path, 40, 24), "what"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_prompt_needs_no_processor(make: Make, family: str) -> None:
    folder, prompt = make(family, FLOATS), [5, 9, 40, 41, 42, 77]
    with embedllm.load(folder, device="cpu") as llm:
        ours = llm.generate(prompt, temperature=0, max_tokens=COUNT, min_tokens=COUNT).tokens
    assert list(ours) == genai_tokens(folder, prompt, COUNT)
