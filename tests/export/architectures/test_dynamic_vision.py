"""Models of images of any size against transformers: tiny random ones of its own classes, from pixels to tokens.

On GPUs, beside torch: .ci/lavapipe.sh pytest -m "peer and webgpu" tests/export/architectures/test_dynamic_vision.py
"""

from __future__ import annotations

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
from embedllm.errors import DeviceUnavailable
from embedllm.export import Recipe, convert
from tests.support.dynamic_vision import (
    IMAGE_TOKEN,
    SQUARE,
    DynamicImage,
    dynamic_image,
    dynamic_prompt,
    siglip2_inputs,
)
from tests.support.families import FAMILIES, make_checkpoint

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

TOLERANCE = 1e-4  # of the spread: both sides compute in float32
RECURRENT = 3e-4  # the rounding of a state adds up over the tokens: 0.00011 in 20 of them
REPLY = 12  # tokens
DEVICES = ("reference", "cpu", "openvino", pytest.param("webgpu", marks=pytest.mark.webgpu))
WITHOUT_TYPES = ("mistral3", "lfm2_vl", "lfm3_vl", "lighton_ocr")  # those whose positions images do not move
WIDE, TALL, SMALL = dynamic_image(1, 3, 5), dynamic_image(2, 5, 2), dynamic_image(3, 1, 1)
PROMPTS: dict[str, tuple[DynamicImage | list[int], ...]] = {
    "text behind": (WIDE, [5, 6, 7]),
    "text around": ([5, 6], TALL, [7, 8, 9]),
    "several images": ([5], WIDE, [6, 7], TALL, SMALL, [8], WIDE, [9]),
    "text only": ([5, 6, 7, 8],),
}


class Made(NamedTuple):
    theirs: Any  # of transformers, without types
    package: Path


SLOW = pytest.mark.slow
FAMILIES_THAT_SEE = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", pytest.param("qwen3_vl_moe", marks=SLOW),
                     pytest.param("qwen3_5_moe", marks=SLOW), "mistral3", "mistral3 small", "lfm2_vl",
                     "lfm2_vl plain", "lfm3_vl", pytest.param("lighton_ocr", marks=SLOW), "paddleocr_vl",
                     "glm_ocr"]  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES_THAT_SEE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("family")
    theirs = make_checkpoint(root / "checkpoint", FAMILIES[request.param])
    return Made(theirs, convert(root / "checkpoint", root / "package", Recipe(bits=32)))


@pytest.fixture(scope="module", params=DEVICES)
def llm(request: pytest.FixtureRequest, made: Made) -> Iterator[Model]:
    try:
        opened = embedllm.load(made.package, device=request.param, exact=request.param != "reference")
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def patches(image: DynamicImage) -> np.ndarray:
    """As transformers takes them: [patches, values], squares one behind the other, each patch twice in time."""
    rows, columns = image.grid
    side = SQUARE // 2
    apart = image.pixel_values[0].reshape(3, rows, 2, side, columns, 2, side)
    ordered = apart.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    return np.repeat(ordered, 2, axis=5).reshape(4 * rows * columns, -1)


def in_rows(image: DynamicImage) -> np.ndarray:
    """As PaddleOCR-VL takes them: [patches, 3, side, side], row by row."""
    side = SQUARE // 2
    rows, columns = (length // side for length in image.pixel_values.shape[2:])
    apart = image.pixel_values[0].reshape(3, rows, side, columns, side)
    return apart.transpose(1, 3, 0, 2, 4).reshape(rows * columns, 3, side, side)


def pixels(model_type: str, images: Sequence[DynamicImage]) -> dict[str, Any]:
    """Of one prompt."""
    if not images:
        return {}
    if model_type in ("mistral3", "lighton_ocr"):
        return padded(images)
    if model_type == "lfm2_vl":
        inputs = siglip2_inputs([image.pixel_values[0] for image in images])
        return {name: torch.from_numpy(values) for name, values in inputs.items()}
    grids = torch.tensor([[1, *(2 * side for side in image.grid)] for image in images])
    ordered = in_rows if model_type == "paddleocr_vl" else patches
    return {
        "pixel_values": torch.from_numpy(np.concatenate([ordered(image) for image in images])),
        "image_grid_thw": grids,
    }


def padded(images: Sequence[DynamicImage]) -> dict[str, Any]:
    """As Pixtral takes them: all as large as the largest, and their sizes."""
    if sum(image.tokens for image in images) == 1:
        images = [*images, *images]  # transformers 5.24 takes a single row for a batch of values
    sizes = [image.pixel_values.shape[2:] for image in images]
    whole = np.zeros((len(images), 3, *np.max(sizes, axis=0)), np.float32)
    for place, (height, width) in enumerate(sizes):
        whole[place, :, :height, :width] = images[place].pixel_values[0]
    return {"pixel_values": torch.from_numpy(whole), "image_sizes": torch.tensor(sizes)}


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert expected.std() > 0.3  # else a term could be missing unseen
    assert np.abs(found - expected).max() <= tolerance * expected.std()


@pytest.mark.parametrize("image", [WIDE, TALL, SMALL], ids=["wide", "tall", "small"])
def test_features_follow_transformers(made: Made, llm: Model, image: DynamicImage) -> None:
    kept = images_of(llm.runner.engine)
    assert kept is not None
    kept.add([image])
    found = llm.runner.call(lambda: kept.rows(image_ids(image)))
    with torch.no_grad():
        seen = made.theirs.model.get_image_features(**pixels(made.theirs.config.model_type, [image]))
    parts = [seen.pooler_output[0], *(part for each in getattr(seen, "deepstack_features", ()) for part in each)]
    assert_close(found, torch.cat(parts, dim=1).numpy())


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

    ids = torch.tensor([tokens])
    model_type = made.theirs.config.model_type
    types = {} if model_type in WITHOUT_TYPES else {"mm_token_type_ids": (ids == IMAGE_TOKEN).int()}
    inputs = {"input_ids": ids, **types, **pixels(model_type, images)}
    with torch.no_grad():
        logits = made.theirs(**inputs).logits[0].numpy()
        reply = made.theirs.generate(**inputs, attention_mask=torch.ones_like(ids), max_new_tokens=REPLY,
                                     min_new_tokens=REPLY, do_sample=False)  # fmt: skip
    tolerance = RECURRENT if llm.package.decoder.is_recurrent else TOLERANCE
    assert_close(llm.runner.call(fed), logits, tolerance)
    plain = llm.request([5], temperature=0, max_tokens=REPLY, stop_tokens=[])
    request = replace(plain, prompt=prompt, images=images, stop_tokens=frozenset({2}), min_tokens=REPLY)
    llm.runner.check(request)
    found = [chunk.token for chunk in llm.runner.stream(request, embedllm.Cancel()) if chunk.token is not None]
    assert found == reply[0, len(tokens) :].tolist()
