"""Folders of models that see in openvino-genai: of the same images, the same tokens and logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.export import Recipe, convert
from tests.export.openvino.test_genai_peer import genai_tokens
from tests.support.genai_images import Parts, export_once, message, noise
from tests.support.gguf_mmproj import seeing_checkpoint, write_pair
from tests.support.openvino_images import EXACT, FAMILIES, openvino_checkpoint, replied

og = pytest.importorskip("openvino_genai")
pytest.importorskip("openvino_tokenizers")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer
COUNT = 8  # tokens of a reply
FLOATS, FOUR_BITS = Recipe(bits=32), Recipe(method="nearest", exact=True)
WITHIN = 1e-4  # of the sum of logarithms of probabilities: all compute in float32
SDPA = {**EXACT, "ATTENTION_BACKEND": "SDPA"}  # the default is PagedAttention
Make = Callable[[str, Recipe], Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    return export_once(tmp_path_factory, openvino_checkpoint, openvino_images=True)


SIZES = {"gemma3": ((64, 64),) * 3, **dict.fromkeys(("gemma4 small", "gemma4 large"), ((80, 56), (56, 80), (112, 40)))}


def image(folder: Path, family: str, number: int = 0) -> Path:
    """One of three that are not resized: openvino-genai's kernels are its own."""
    return noise(folder, *SIZES.get(family, ((40, 24), (16, 24), (24, 56)))[number])


def count_of(family: str, properties: dict[str, object]) -> int:
    """Tokens to compare: openvino-genai (2026.4.1) gives those of Gemma 3's replies positions that are one too low."""
    return 1 if family == "gemma3" and properties is SDPA else COUNT


def assert_equal(folder: Path, parts: Parts, properties: dict[str, object] = EXACT, count: int = COUNT) -> None:
    user: Any = message(parts)  # a path is no JSON
    with embedllm.load(folder, device="openvino", exact=True) as llm:
        ours = llm.chat([user], temperature=0, max_tokens=count, min_tokens=count)
    tokens, score = replied(og, folder, parts, count, properties)
    assert tokens == list(ours.tokens)
    assert score == pytest.approx(sum(ours.logprobs), abs=WITHIN)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recipe", [FLOATS, FOUR_BITS], ids=["floats", "four bits"])
def test_a_reply_to_an_image(make: Make, tmp_path: Path, family: str, recipe: Recipe) -> None:
    assert_equal(make(family, recipe), ("hello", image(tmp_path, family), "what is it"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("properties", [EXACT, SDPA], ids=["paged", "stateful"])
def test_several_images_of_different_sizes(
    make: Make, tmp_path: Path, family: str, properties: dict[str, object]
) -> None:
    images = [image(tmp_path, family, number) for number in range(3)]
    parts = (images[0], "and", images[1], "then", images[2], "what")
    assert_equal(make(family, FLOATS), parts, properties, count_of(family, properties))


@pytest.mark.parametrize("properties", [EXACT, SDPA], ids=["paged", "stateful"])
def test_several_beams(make: Make, tmp_path: Path, properties: dict[str, object]) -> None:
    """DeepStack gives one place of a token for all of them."""
    parts = ("hello", image(tmp_path, "qwen3_vl"), "what is it")
    with embedllm.load(make("qwen3_vl", FLOATS), device="openvino", exact=True) as llm:
        content: Any = message(parts)
        ours = llm.beam_search([content], 2, max_tokens=COUNT, length_penalty=0.0)
    _, score = replied(og, make("qwen3_vl", FLOATS), parts, COUNT, properties, beams=2)
    assert score == pytest.approx(sum(ours[0].logprobs), abs=WITHIN)


def test_the_pipeline_for_text_takes_the_folder_too(make: Make) -> None:
    """By stateful attention: for the other it takes the folder for one of VLMPipeline (2026.4.1)."""
    folder, prompt = make("qwen2_vl", FLOATS), [5, 9, 40, 41, 42, 77]
    with embedllm.load(folder, device="openvino", exact=True) as llm:
        ours = llm.generate(prompt, temperature=0, max_tokens=COUNT, min_tokens=COUNT).tokens
    assert list(genai_tokens(folder, "CPU", SDPA, prompt)[:COUNT]) == list(ours)


def test_windows_and_images(make: Make, tmp_path: Path) -> None:
    """Prompts of twice the window of Gemma 3, an image at its end and at its beginning."""
    text = " ".join(f"word {number}" for number in range(60))
    for parts in ((text, image(tmp_path, "gemma3")), (image(tmp_path, "gemma3"), text)):
        assert_equal(make("gemma3", FLOATS), parts)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("properties", [EXACT, SDPA], ids=["paged", "stateful"])
def test_text_alone(make: Make, family: str, properties: dict[str, object]) -> None:
    assert_equal(make(family, FLOATS), ("hello, world",), properties, count_of(family, properties))


def test_of_gguf_files(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "files", seeing_checkpoint(tmp_path / "checkpoint", "qwen2_5_vl"))
    folder = convert(pair.text, tmp_path / "package", FLOATS, mmproj=pair.mmproj, openvino_images=True)
    large_enough = noise(tmp_path, 64, 56)  # for the usual least number of pixels: such files say none
    assert_equal(folder, ("hello", large_enough, "what is it"))
