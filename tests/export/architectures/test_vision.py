"""Vision-language models against transformers: tiny random ones of its own classes, from pixels to greedy tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import embedllm
from embedllm import Model
from embedllm.backends.images import image_ids, images_of
from embedllm.export import Recipe, convert
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.families import GEMMA3 as TEXT
from tests.support.vision import IMAGE_TOKEN, TILE, Image, image, seeing_logits, seeing_prompt, seeing_request

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

TOLERANCE = 1e-4  # of the spread: both sides compute in float32
REPLY = 12  # tokens
ONE, TWO = image(1), image(2, tiles=3)
PROMPTS: dict[str, tuple[Image | list[int], ...]] = {
    "text behind": (ONE, [5, 6, 7]),
    "text around": ([5, 6], ONE, [7, 8, 9]),
    "several images": ([5], ONE, [6, 7], TWO, [8], ONE, [9]),
    "text only": ([5, 6, 7, 8],),
}


class Made(NamedTuple):
    theirs: Any  # of transformers, without types
    package: Path


GEMMA3 = FAMILIES["gemma3"]  # whose windows are shorter than an image
TILED = ("smolvlm", "idefics3", "gemma3", "internvl")
CASES = {
    **{name: case for name, case in FAMILIES.items() if case.family in TILED},
    "gemma3 with wide windows": replace(
        GEMMA3, values={**GEMMA3.values, "text_config": {**TEXT, "sliding_window": 50}}
    ),
}


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("family")
    theirs = make_checkpoint(root / "checkpoint", CASES[request.param])
    return Made(theirs, convert(root / "checkpoint", root / "package", Recipe(bits=32)))


@pytest.fixture(scope="module", params=["reference", "cpu", "openvino"])
def llm(request: pytest.FixtureRequest, made: Made) -> Iterator[Model]:
    with embedllm.load(made.package, device=request.param, exact=request.param != "reference") as opened:
        yield opened


def pixels(made: Made, images: tuple[Image, ...]) -> dict[str, Any]:
    """As transformers takes them: of one prompt, the tiles of all images; of Gemma 3 and InternVL, of all prompts."""
    if not images:
        return {}
    tiles = torch.from_numpy(np.concatenate([one.pixel_values for one in images]))
    return {"pixel_values": tiles if family(made) in ("gemma3", "internvl") else tiles[None]}


def family(made: Made) -> str:
    return made.theirs.config.model_type


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.3  # else a term could be missing unseen
    assert np.abs(found - expected).max() <= TOLERANCE * expected.std()


def test_features_follow_transformers(made: Made, llm: Model) -> None:
    kept = images_of(llm.runner.engine)
    assert kept is not None
    kept.add([TWO])
    found = llm.runner.call(lambda: kept.rows(image_ids(TWO)))
    with torch.no_grad():
        expected = made.theirs.model.get_image_features(**pixels(made, (TWO,))).pooler_output
    # Granite's decoder multiplies rows of features as those of tokens; here the projector does
    multiplier = getattr(made.theirs.config.text_config, "embedding_multiplier", 1.0)
    assert_close(found, multiplier * torch.cat(list(expected)).numpy())


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_and_greedy_tokens_follow_transformers(made: Made, llm: Model, name: str) -> None:
    tokens, images = seeing_prompt(*PROMPTS[name])
    ids = torch.tensor([tokens])
    with torch.no_grad():
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pixels(made, images)}
        if family(made) == "gemma3":  # whose tokens of an image attend to one another
            given["token_type_ids"] = (ids == IMAGE_TOKEN).long()
        logits = made.theirs(**given).logits[0].numpy()
        reply = made.theirs.generate(**given, max_new_tokens=REPLY, min_new_tokens=REPLY, do_sample=False)
    assert_close(seeing_logits(llm, *PROMPTS[name]), logits)
    request = seeing_request(llm, *PROMPTS[name], tokens=REPLY)
    request = replace(request, stop_tokens=frozenset({2}), min_tokens=REPLY)  # as min_new_tokens has it
    found = [chunk.token for chunk in llm.runner.stream(request, embedllm.Cancel()) if chunk.token is not None]
    assert found == reply[0, len(tokens) :].tolist()


def test_the_tile_of_the_test_is_that_of_the_model(made: Made) -> None:
    assert set(np.ravel(made.theirs.config.vision_config.image_size)) == {TILE}
