"""Images of any size in a model without M-RoPE, on every device that takes them, against the NumPy reference.

On GPUs: .ci/lavapipe.sh pytest -m webgpu tests/backends/test_pixtral.py
On one of NVIDIA's: pytest -m gpu tests/backends/test_pixtral.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import embedllm
from embedllm import Model
from embedllm.export import Recipe, convert
from embedllm.export.verify import verify_folder
from tests.support.dynamic_vision import DynamicImage, dynamic_chat_checkpoint, dynamic_checkpoint, dynamic_image
from tests.support.image_devices import Case, assert_close, case_fixture, cases, fed, prompt, rows

WIDE, TALL, SMALL = dynamic_image(1, 2, 3), dynamic_image(2, 4, 1), dynamic_image(3, 1, 1)
PROMPT: tuple[DynamicImage | list[int], ...] = ([5, 6], WIDE, [7], TALL, SMALL, [8, 9, 10])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pixtral")
    return convert(dynamic_checkpoint(root / "checkpoint", "mistral3"), root / "package", Recipe(bits=32))


case = case_fixture(cases())


@pytest.mark.parametrize("image", [WIDE, TALL, SMALL], ids=["wide", "tall", "small"])
def test_features_follow_the_reference(llm: Model, reference: Model, case: Case, image: DynamicImage) -> None:
    assert_close(rows(llm, image), rows(reference, image), case.tolerance)


@pytest.mark.parametrize("step", [0, 1, 5])  # cuts in the middle of images
def test_logits_follow_the_reference_in_pieces_too(llm: Model, reference: Model, case: Case, step: int) -> None:
    found = fed(llm, prompt(llm, *PROMPT), step=step)
    assert_close(found, fed(reference, prompt(reference, *PROMPT)), case.tolerance)


def test_images_that_differ_in_their_sides_only_differ(llm: Model) -> None:
    """The same patches, at other rows and columns."""
    values = np.tile(np.random.default_rng(4).standard_normal((1, 3, 4, 4)).astype(np.float32), (1, 1, 4, 12))
    flat, upright = (DynamicImage(np.ascontiguousarray(each)) for each in (values, values.transpose(0, 1, 3, 2)))
    assert flat.tokens == upright.tokens
    assert np.abs(rows(llm, flat) - rows(llm, upright)).max() > 1e-3


def test_the_export_is_checked_against_the_reference(package: Path) -> None:
    found = verify_folder(package)
    for file in ("vision.onnx", "openvino_vision.xml"):
        assert "deviation" in cast("dict[str, object]", found[file])


def test_a_folder_of_the_text_decoder_alone_runs_and_says_what_to_do(tmp_path: Path) -> None:
    """As versions that knew no vision encoder wrote it."""
    checkpoint = dynamic_chat_checkpoint(tmp_path / "checkpoint", "mistral3")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "vision_config": None}))
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with embedllm.load(convert(checkpoint, tmp_path / "package", Recipe(bits=32)), device="cpu") as llm:
        assert llm.generate([5, 6, 7], max_tokens=3, stop_tokens=[]).tokens
        with pytest.raises(ValueError, match=r"reads text only.*; export it again where"):
            llm.chat([{"role": "user", "content": [part]}])
