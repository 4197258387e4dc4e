"""Gemma 4 with images against transformers: tiny random models of its own classes, from pixels to tokens.

On GPUs, beside torch: .ci/lavapipe.sh pytest -m "peer and webgpu" tests/export/architectures/test_gemma4_vision.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import embedllm
from embedllm import Model
from embedllm.backends.base import FeedsAll
from embedllm.backends.images import image_ids, images_of, place_images
from embedllm.backends.openvino.engine import OvEngine
from embedllm.errors import DeviceUnavailable
from embedllm.export import Recipe, convert
from tests.support.dynamic_vision import IMAGE_TOKEN, SQUARE, DynamicImage, dynamic_image, dynamic_prompt
from tests.support.families import FAMILIES, make_checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

TOLERANCE = 1e-4  # of the spread: both sides compute in float32
REPLY = 12  # tokens
STOP = 2  # as tests/support/families.py has it
DEVICES = ("reference", "cpu", "openvino", pytest.param("webgpu", marks=pytest.mark.webgpu))
WIDE, TALL, SMALL = dynamic_image(1, 3, 5), dynamic_image(2, 5, 2), dynamic_image(3, 1, 1)
PROMPTS: dict[str, tuple[DynamicImage | list[int], ...]] = {
    "text behind": (WIDE, [5, 6, 7]),
    "text around": ([5, 6], TALL, [7, 8, 9]),
    "several images": ([5], WIDE, [6, 7], TALL, SMALL, [8], WIDE, [9]),
    "text only": ([9, 4, 11],),
}
STANDARDIZED, UNIFIED = FAMILIES["gemma4 standardized"], FAMILIES["gemma4_unified images"]
CASES = {
    "clipped": FAMILIES["gemma4 clipped"],
    "standardized": STANDARDIZED,
    "unified": UNIFIED,
    "unified causal": replace(UNIFIED, values={
        **UNIFIED.values, "text_config": {**UNIFIED.values["text_config"], "use_bidirectional_attention": None},  # type: ignore[dict-item]  # a dict
    }),
    "narrow windows": replace(STANDARDIZED, values={
        **STANDARDIZED.values, "text_config": {**STANDARDIZED.values["text_config"], "sliding_window": 8},  # type: ignore[dict-item]  # a dict
    }),
}  # fmt: skip


class Made(NamedTuple):
    theirs: Any  # of transformers, without types
    package: Path


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("family")
    theirs = make_checkpoint(root / "checkpoint", CASES[request.param])
    # by which paged attention knows that no image is longer than a window of 30 tokens
    settings = {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 25}
    (root / "checkpoint" / "preprocessor_config.json").write_text(json.dumps(settings))
    return Made(theirs, convert(root / "checkpoint", root / "package", Recipe(bits=32)))


@pytest.fixture(scope="module", params=DEVICES)
def llm(request: pytest.FixtureRequest, made: Made) -> Iterator[Model]:
    try:
        opened = embedllm.load(made.package, device=request.param, exact=request.param != "reference")
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def patches(image: DynamicImage, side: int) -> np.ndarray:
    """Row by row, [patches, values], colours last."""
    height, width = image.pixel_values.shape[2:]
    apart = image.pixel_values[0].reshape(3, height // side, side, width // side, side)
    return apart.transpose(1, 3, 2, 4, 0).reshape(-1, 3 * side * side)


def logits_of(made: Made, tokens: Sequence[int], images: Sequence[DynamicImage]) -> np.ndarray:
    """Of transformers, with the masks of its create_masks_for_generate(), as vLLM has them.

    By itself forward() of Gemma 4 12B lets an image's tokens attend to one another in all layers, those of other Gemma
    4 in layers with a window only (transformers 5.24).
    """
    ids = torch.tensor([tokens])
    are_images = (ids == IMAGE_TOKEN).int()
    embeddings, positions = torch.zeros(*ids.shape, 1), torch.arange(len(tokens))[None]
    with torch.no_grad():
        masks = made.theirs.create_masks_for_generate(
            made.theirs.config, embeddings, torch.ones_like(ids), None, positions, mm_token_type_ids=are_images
        )
        inputs = {"input_ids": ids, "mm_token_type_ids": are_images, **pixels(made, images)}
        return made.theirs(**inputs, attention_mask=masks).logits[0].numpy()


def greedy(made: Made, tokens: Sequence[int], images: Sequence[DynamicImage]) -> list[int]:
    """A reply of REPLY tokens without the stop token."""
    known = list(tokens)
    for _ in range(REPLY):
        last = logits_of(made, known, images)[-1]
        last[STOP] = -np.inf
        known.append(int(last.argmax()))
    return known[len(tokens) :]


def pixels(made: Made, images: Sequence[DynamicImage]) -> dict[str, Any]:
    """Of one prompt, each filled up to the size of the largest, as transformers' model takes them.

    Pixels are from 0 to 1, which Gemma 4's encoder itself brings to ours, -1 to 1. That of 12B reads whole squares as
    they are.
    """
    if not images:
        return {}
    is_unified = made.theirs.config.model_type == "gemma4_unified"
    by = 1 if is_unified else 2  # patches along the side of a square
    side = SQUARE // by
    most = max(by**2 * image.tokens for image in images)
    values, places = np.zeros((len(images), most, 3 * side**2), np.float32), np.full((len(images), most, 2), -1)
    for at, image in enumerate(images):
        rows, columns = (by * length for length in image.grid)
        own = patches(image, side)
        values[at, : rows * columns] = own if is_unified else (own + 1) / 2
        row, column = np.divmod(np.arange(rows * columns), columns)
        places[at, : rows * columns] = np.stack([column, row], axis=1)
    return {"pixel_values": torch.from_numpy(values), "image_position_ids": torch.from_numpy(places)}


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.3  # else a term could be missing unseen
    assert np.abs(found - expected).max() <= TOLERANCE * expected.std()


def test_paged_attention_reads_images_that_no_window_cuts(made: Made, llm: Model) -> None:
    windows = [attention.window for attention in llm.package.decoder.attentions if attention.window]
    is_cut = llm.package.decoder.images_are_bidirectional and min(windows) < 25
    if llm.runner.engine.device.backend == "openvino":
        assert isinstance(llm.runner.engine, OvEngine) == is_cut


@pytest.mark.parametrize("image", [WIDE, TALL, SMALL], ids=["wide", "tall", "small"])
def test_features_follow_transformers(made: Made, llm: Model, image: DynamicImage) -> None:
    kept = images_of(llm.runner.engine)
    assert kept is not None
    kept.add([image])
    found = llm.runner.call(lambda: kept.rows(image_ids(image)))
    with torch.no_grad():
        expected = made.theirs.model.get_image_features(**pixels(made, [image])).pooler_output
    assert_close(found, torch.cat(list(expected)).numpy())


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_and_greedy_tokens_follow_transformers(made: Made, llm: Model, name: str) -> None:
    tokens, images = dynamic_prompt(*PROMPTS[name])
    kept = images_of(llm.runner.engine)
    assert kept is not None
    kept.add(images)
    prompt = place_images(tokens, images, IMAGE_TOKEN)

    def fed() -> np.ndarray:
        session = llm.runner.engine.open()
        assert isinstance(session, FeedsAll)
        return session.feed_all(prompt)

    assert_close(llm.runner.call(fed), logits_of(made, tokens, images))
    plain = llm.request([5], temperature=0, max_tokens=REPLY, stop_tokens=[])
    request = replace(plain, prompt=prompt, images=images, stop_tokens=frozenset({STOP}), min_tokens=REPLY)
    llm.runner.check(request)
    found = [chunk.token for chunk in llm.runner.stream(request, embedllm.Cancel()) if chunk.token is not None]
    assert found == greedy(made, tokens, images)
