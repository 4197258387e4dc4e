"""Folders of models that see in openvino-genai: of the same images, the same tokens and logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.export import Recipe, convert
from tests.export.test_genai_images_peer import noise
from tests.support.genai_images import Parts, message
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
    """A function that exports the tiny model of a family, once for each recipe."""
    made: dict[tuple[str, Recipe], Path] = {}

    def exported(family: str, recipe: Recipe) -> Path:
        if (family, recipe) not in made:
            root = tmp_path_factory.mktemp(family)
            checkpoint = openvino_checkpoint(root / "checkpoint", family)
            made[family, recipe] = convert(checkpoint, root / "package", recipe, openvino_images=True)
        return made[family, recipe]

    return exported


SIZES = {"gemma3": ((64, 64),) * 3, **dict.fromkeys(("gemma4 small", "gemma4 large"), ((80, 56), (56, 80), (112, 40)))}


def image(folder: Path, family: str, number: int = 0) -> Path:
    """One of three that are not resized: openvino-genai's kernels are its own."""
    return noise(folder, *SIZES.get(family, ((40, 24), (16, 24), (24, 56)))[number])


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
def test_stateful_attention(make: Make, tmp_path: Path, family: str) -> None:
    """Of Gemma 3 the first token: openvino-genai (2026.4.1) gives the second one the position of the first."""
    count = 1 if family == "gemma3" else COUNT
    assert_equal(make(family, FLOATS), ("hello", image(tmp_path, family), "what is it"), SDPA, count)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_images_of_different_sizes(make: Make, tmp_path: Path, family: str) -> None:
    images = [image(tmp_path, family, number) for number in range(3)]
    assert_equal(make(family, FLOATS), (images[0], "and", images[1], "then", images[2], "what"))


def test_windows_and_images(make: Make, tmp_path: Path) -> None:
    """Prompts of twice the window of Gemma 3, an image at its end and at its beginning."""
    text = " ".join(f"word {number}" for number in range(60))
    for parts in ((text, image(tmp_path, "gemma3")), (image(tmp_path, "gemma3"), text)):
        assert_equal(make("gemma3", FLOATS), parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_alone(make: Make, family: str) -> None:
    assert_equal(make(family, FLOATS), ("hello, world",))


def test_of_gguf_files(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "files", seeing_checkpoint(tmp_path / "checkpoint", "qwen2_5_vl"))
    folder = convert(pair.text, tmp_path / "package", FLOATS, mmproj=pair.mmproj, openvino_images=True)
    large_enough = noise(tmp_path, 64, 56)  # for the usual least number of pixels: such files say none
    assert_equal(folder, ("hello", large_enough, "what is it"))
