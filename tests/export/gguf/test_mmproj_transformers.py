"""Models that see in two GGUF files, computed by transformers: what embedllm computes of them, with an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedllm
from embedllm.backends.base import FeedsAll
from embedllm.backends.images import images_of, place_images
from embedllm.export import Recipe, convert
from tests.support.dynamic_vision import (
    IMAGE_TOKEN,
    SQUARE,
    DynamicImage,
    dynamic_image,
    dynamic_prompt,
    siglip2_inputs,
    write_dynamic_chat,
)
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.gemma4 import write_gemma4_chat
from tests.support.gguf_mmproj import write_pair

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

TOLERANCE = 1e-4  # of the spread: both sides compute in float32
PLAIN = FAMILIES["lfm2_vl plain"].values
# files cannot say another activation than that of published checkpoints
ACTIVATION = {"hidden_act": "gelu_pytorch_tanh"}
CASES = {
    **FAMILIES,
    "lfm2_vl plain": replace(FAMILIES["lfm2_vl plain"], values={
        **PLAIN, "vision_config": {**PLAIN["vision_config"], **ACTIVATION},  # type: ignore[dict-item]  # a dict
    }),
}  # fmt: skip
CHATS: dict[str, Callable[[Path], None]] = {
    "gemma4 clipped": write_gemma4_chat,
    "gemma4 standardized": write_gemma4_chat,
    "lfm2_vl": lambda folder: write_dynamic_chat(folder, "lfm2_vl"),
    "lfm2_vl plain": lambda folder: write_dynamic_chat(folder, "lfm2_vl"),
}


@pytest.mark.parametrize("case", CHATS)
def test_logits_behind_an_image_follow_transformers(case: str, tmp_path: Path) -> None:
    theirs = make_checkpoint(tmp_path / "checkpoint", CASES[case])
    CHATS[case](tmp_path / "checkpoint")
    pair = write_pair(tmp_path / "gguf", tmp_path / "checkpoint")
    package = convert(pair.text, tmp_path / "package", Recipe(bits=32))
    image = dynamic_image(1, 3, 5)
    tokens, images = dynamic_prompt([5, 6], image, [7, 8, 9])
    with embedllm.load(package, device="cpu", exact=True) as llm:
        kept = images_of(llm.runner.engine)
        assert kept is not None
        kept.add(images)

        def fed() -> np.ndarray:
            session = llm.runner.engine.open()
            assert isinstance(session, FeedsAll)
            return session.feed_all(place_images(tokens, images, IMAGE_TOKEN))

        found = llm.runner.call(fed)
    ids = torch.tensor([tokens])
    with torch.no_grad():
        expected = (
            theirs(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs(case, image, ids)).logits[0].numpy()
        )
    assert expected.std() > 0.3  # else a term could be missing unseen
    assert np.abs(found - expected).max() <= TOLERANCE * expected.std()


def inputs(case: str, image: DynamicImage, ids: Any) -> dict[str, Any]:  # noqa: ANN401  # a tensor, without types
    """An image as transformers takes it."""
    if case.startswith("lfm2_vl"):
        return {name: torch.from_numpy(values) for name, values in siglip2_inputs(list(image.pixel_values)).items()}
    side, (height, width) = SQUARE // 2, image.pixel_values.shape[2:]
    apart = image.pixel_values[0].reshape(3, height // side, side, width // side, side)
    values = (apart.transpose(1, 3, 2, 4, 0).reshape(1, -1, 3 * side * side) + 1) / 2
    row, column = np.divmod(np.arange(values.shape[1]), width // side)
    places = np.stack([column, row], axis=1)[None]
    return {"pixel_values": torch.from_numpy(values), "image_position_ids": torch.from_numpy(places),
            "mm_token_type_ids": (ids == IMAGE_TOKEN).int()}  # fmt: skip
