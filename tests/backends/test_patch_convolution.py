"""A vision encoder with convolutions over its grid of patches (LFM3-VL), on every device, against the NumPy reference.

On GPUs: .ci/lavapipe.sh pytest -m webgpu tests/backends/test_patch_convolution.py
On one of NVIDIA's: pytest -m gpu tests/backends/test_patch_convolution.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from embedllm import Model
from embedllm.export import Recipe, convert
from tests.support.dynamic_vision import DynamicImage, dynamic_checkpoint, dynamic_image
from tests.support.image_devices import Case, assert_close, case_fixture, cases, rows

WIDE, TALL, SMALL = dynamic_image(1, 3, 5), dynamic_image(2, 5, 2), dynamic_image(3, 1, 1)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("convolutions")
    return convert(dynamic_checkpoint(root / "checkpoint", "lfm3_vl"), root / "package", Recipe(bits=32))


case = case_fixture(cases())


@pytest.mark.parametrize("image", [WIDE, TALL, SMALL], ids=["wide", "tall", "small"])
def test_features_follow_the_reference(llm: Model, reference: Model, case: Case, image: DynamicImage) -> None:
    assert_close(rows(llm, image), rows(reference, image), case.tolerance)
