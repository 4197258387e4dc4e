"""Image processors against those of transformers: recorded pixel values, and any size where torchvision is installed.

Both round between the two directions of a resize, and after it. transformers' kernels have weights of 16 bits: a resize
differs by a level of 255 at most from Pillow's, seldom by two where an image becomes larger; three in a row, by three.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from embedllm.errors import PackageError
from embedllm.images.processors import Processor, open_processor
from embedllm.package.architecture.vision import DynamicVision, Vision
from tests.golden import make_image_processors
from tests.golden.make_image_processors import CASES, PATH, flat, noise
from tests.support.dynamic_vision import SQUARE, described

FEW = 1e-3  # the part of the values that differ by more than a level


def opened(folder: Path, name: str) -> Processor:
    """The processor of a case."""
    case = CASES[name]
    (folder / "preprocessor_config.json").write_text(json.dumps(case.settings))
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": case.processor}))
    tiled = cast("Vision", SimpleNamespace(image_size=case.tile, tile_tokens=4))
    return open_processor(folder, tiled if case.tile else dynamic_vision(), {})


def dynamic_vision() -> DynamicVision:
    """An encoder of squares of 8 pixels; the processor reads nothing else of it."""
    vision = described("qwen3_vl").vision
    assert isinstance(vision, DynamicVision)
    return vision


def rows_of(name: str, pixels: np.ndarray) -> int:
    """Rows of features that these pixels become."""
    return 4 * len(pixels) if CASES[name].tile else pixels.size // (3 * SQUARE**2)


def check_levels(found: np.ndarray, expected: np.ndarray, most: int) -> None:
    """Both in levels of 255."""
    assert found.shape == expected.shape
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert difference.max() <= most
    assert (difference > 1).mean() <= FEW


def levels(values: np.ndarray) -> np.ndarray:
    """Pixel values of mean 0.5 and deviation 0.5 as levels of 255."""
    return np.rint((values * 0.5 + 0.5) * 255)


@pytest.mark.parametrize("name", CASES)
def test_pixel_values_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    processor, recorded = opened(tmp_path, name), json.loads(PATH.read_text())[name]
    assert recorded
    for entry in recorded:
        width, height = entry["size"]
        found = flat(processor.pixel_values(noise(width, height)))
        assert list(found.shape) == entry["shape"]
        expected = np.frombuffer(zlib.decompress(base64.b64decode(entry["levels"])), np.uint8).reshape(entry["shape"])
        check_levels(levels(found), expected, most=3)
        assert processor.token_count(width, height) == rows_of(name, found)


@pytest.mark.slow  # imports transformers
@pytest.mark.peer
@pytest.mark.parametrize("name", CASES)
def test_any_size_is_processed_as_transformers_does(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    # Not of [peer]: one built for another torch (PyPI's is for CUDA) breaks all imports of transformers' models
    pytest.importorskip("torchvision")
    theirs, processor = make_image_processors.opened(CASES[name]), opened(tmp_path_factory.mktemp(name), name)

    @settings(max_examples=25, deadline=None)
    @given(width=st.integers(1, 300), height=st.integers(1, 300))
    def check(width: int, height: int) -> None:
        # Qwen's refuse narrower ones; transformers leaves no pixel of Pixtral's, and fails
        assume(min(width, height) * (64 if name == "pixtral" else 200) >= max(width, height))
        image = noise(width, height)
        check_levels(levels(flat(processor.pixel_values(image))), levels(theirs(image)), most=3)

    check()


def test_the_text_of_an_image_is_that_of_transformers(tmp_path: Path) -> None:
    """As processing_idefics3.py writes it for two rows of one tile, and for an image that is not split."""
    processor = opened(tmp_path, "smolvlm")
    fake, tokens = "<fake_token_around_image>", "<image>" * 4
    rows = f"{fake}<row_1_col_1>{tokens}\n{fake}<row_2_col_1>{tokens}\n"
    whole = f"{fake}<global-img>{tokens}{fake}"
    assert processor.prompt_text(20, 40) == f"{rows}\n{whole}"
    (tmp_path / "whole").mkdir()
    assert opened(tmp_path / "whole", "smolvlm whole").prompt_text(20, 40) == whole


def test_the_text_of_gemma_3_is_that_of_transformers(tmp_path: Path) -> None:
    text = opened(tmp_path, "gemma 3").prompt_text(9, 9)
    assert text == f"\n\n<start_of_image>{'<image_soft_token>' * 4}<end_of_image>\n\n"


def test_an_image_fills_the_budget_of_gemma_4(tmp_path: Path) -> None:
    """Sides are rounded down; a side that would be 0 is 1."""
    processor = opened(tmp_path, "gemma 4")
    assert processor.grid(40, 40) == (8, 8)  # 8.4 each: 70 are no square
    assert processor.grid(4000, 2000) == (5, 11)  # 5.9 and 11.8
    assert processor.grid(300, 4) == (1, 70)
    assert processor.grid(4, 75 * 4) == (70, 1)
    assert processor.prompt_text(40, 20) == f"<|image>{55 * '<|image|>'}<image|>"


def test_the_text_of_an_image_of_any_size_is_its_tokens(tmp_path: Path) -> None:
    processor = opened(tmp_path, "qwen")
    assert processor.grid(40, 33) == (4, 5)
    assert processor.prompt_text(40, 33) == 20 * "<|image_pad|>"
    assert processor.grid(3, 3) == (4, 4)  # 900 pixels at least
    assert processor.grid(400, 200) == (5, 11)  # 4,000 at most
    with pytest.raises(ValueError, match="at most 200 times the shorter one"):
        processor.token_count(201, 1)


def test_a_narrow_image_of_paddleocr_vl_becomes_as_wide_as_a_square(tmp_path: Path) -> None:
    """As smart_resize() of image_processing_paddleocr_vl.py has it: 533 pixels by 8, then 1,920 of them at most."""
    settings = {"processor_class": "PaddleOCRVLProcessor", "size": {"shortest_edge": 256, "longest_edge": 1920}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processor = open_processor(tmp_path, dynamic_vision(), {})
    assert (processor.grid(3, 200), processor.grid(200, 3)) == ((44, 1), (1, 44))
    assert processor.prompt_text(16, 24) == 6 * "<|IMAGE_PLACEHOLDER|>"


def test_limits_of_glm_ocr_count_an_image_twice(tmp_path: Path) -> None:
    """As smart_resize() of image_processing_glm46v.py has it: both times of a patch, 960 pixels of an image at most."""
    settings = {"processor_class": "Glm46VProcessor", "size": {"shortest_edge": 256, "longest_edge": 1920}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processor = open_processor(tmp_path, dynamic_vision(), {})
    assert (processor.grid(40, 40), processor.grid(24, 40)) == ((3, 3), (5, 3))
    assert processor.grid(3, 100) == (22, 1)  # of 8 by 266
    assert processor.prompt_text(16, 24) == 6 * "<|image|>"


def test_the_text_of_lighton_ocr_is_that_of_transformers(tmp_path: Path) -> None:
    """As replace_image_token() of processing_lighton_ocr.py writes it: nothing but placeholders."""
    settings = {"processor_class": "LightOnOcrProcessor", **CASES["pixtral"].settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert open_processor(tmp_path, dynamic_vision(), {}).prompt_text(17, 16) == 6 * "<|image_pad|>"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patch_size": 14}, "'patch_size' is 14.*, and 4 in its vision encoder"),
        ({"do_resize": False}, "do_resize false"),
        ({"min_pixels": 5000}, "asks for 5000 pixels at least and 4000 at most"),
        ({"max_pixels": True}, "'max_pixels' is"),
        ({"size": {"shortest_edge": 0, "longest_edge": 10}}, "'size' is"),
        (
            {"processor_class": "SmolVLMProcessor"},
            "are Gemma4Processor, Gemma4UnifiedProcessor, Glm46VProcessor, Lfm2VlProcessor, Lfm3VlProcessor, ",
        ),
        (
            {"processor_class": "Gemma4Processor", "pooling_kernel_size": 3},
            "'pooling_kernel_size' is 3.*, and 2 in its",
        ),
        ({"processor_class": "Gemma4Processor", "do_resize": False}, "do_resize false"),
        (
            {"processor_class": "Gemma4UnifiedProcessor", "pooling_kernel_size": 2},
            "'patch_size' is 4 and 'pooling_kernel_size' 2 .*; its model reads squares of 4 pixels",
        ),
    ],
)
def test_settings_that_do_not_fit_an_encoder_of_any_size_are_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    settings = {"processor_class": "Qwen3VLProcessor", **CASES["qwen"].settings, **change}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(PackageError, match=words):
        open_processor(tmp_path, dynamic_vision(), {})


def test_the_text_of_pixtral_is_that_of_transformers(tmp_path: Path) -> None:
    """As replace_image_token() of processing_pixtral.py writes it: a token ends each row, another one the last."""
    processor = opened(tmp_path, "pixtral")
    assert processor.prompt_text(17, 16) == "[IMG][IMG][IMG][IMG_BREAK][IMG][IMG][IMG][IMG_END]"
    assert processor.prompt_text(1, 1) == "[IMG][IMG_END]"
    assert (processor.grid(17, 16), processor.token_count(17, 16)) == ((2, 3), 6)
    assert processor.grid(100, 75) == (6, 8)  # of 64 by 48
    assert processor.grid(300, 1) == (1, 8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patch_size": 14}, "'patch_size' is 14 .*has 4 and squares of 2 patches a side"),
        ({"patch_size": {"height": 4, "width": 8}}, "'patch_size' is {'height': 4, 'width': 8}"),
        ({"spatial_merge_size": 1}, "'spatial_merge_size' is 1"),
        ({"do_resize": False}, "do_resize false"),
        ({"size": {"height": 64}}, "'size' is {'height': 64} .*expected a 'longest_edge', or 'height' and 'width'"),
    ],
)
def test_settings_that_do_not_fit_pixtral_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    settings = {"processor_class": "PixtralProcessor", **CASES["pixtral"].settings, **change}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(PackageError, match=words):
        open_processor(tmp_path, dynamic_vision(), {})


def test_what_settings_of_pixtral_leave_out_has_a_default(tmp_path: Path) -> None:
    """As published: sides of a patch in one file; a size of two sides."""
    settings = {"image_processor_type": "PixtralImageProcessorFast", "patch_size": {"height": 4, "width": 4},
                "size": {"height": 16, "width": 64}}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert open_processor(tmp_path, dynamic_vision(), {}).grid(64, 32) == (2, 4)


def test_the_text_of_lfm2_vl_is_that_of_transformers(tmp_path: Path) -> None:
    """As _build_image_tokens() of processing_lfm2_vl.py writes it: tiles row by row, then all of the image."""
    processor, tokens = opened(tmp_path, "lfm2_vl"), "<image>" * 4
    tiles = "".join(f"<|img_row_{row}_col_{column}|>{tokens}" for row in (1, 2) for column in (1, 2, 3))
    whole = "<|img_thumbnail|>" + "<image>" * 12
    assert processor.prompt_text(100, 75) == f"<|image_start|>{tiles}{whole}<|image_end|>"
    assert [tile.shape for tile in processor.pixel_values(noise(100, 75))] == [(3, 16, 16)] * 6 + [(3, 24, 32)]
    assert processor.prompt_text(17, 16) == f"<|image_start|>{tokens}<|image_end|>"
    assert (processor.grid(17, 16), processor.token_count(17, 16)) == (None, 4)
    assert processor.token_count(1, 1) == 4  # at least
    (tmp_path / "whole").mkdir()
    assert opened(tmp_path / "whole", "lfm2_vl whole").token_count(300, 300) == 16  # at most


def test_tiles_of_lfm2_vl_may_stand_without_marks(tmp_path: Path) -> None:
    settings = {**CASES["lfm2_vl"].settings, "use_image_special_tokens": False, "use_thumbnail": False}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processor = open_processor(tmp_path, dynamic_vision(), {})
    assert processor.prompt_text(100, 75) == "<image>" * 24
    assert processor.prompt_text(9, 9) == "<image>" * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder_patch_size": 16}, "'encoder_patch_size' is 16 .*, and 4 in its vision encoder"),
        ({"downsample_factor": 1}, "'downsample_factor' is 1 .*, and 2 in"),
        ({"tile_size": 20}, "'tile_size' is 20 .*a multiple of 8 pixels"),
        ({"min_tiles": 7}, "asks for 7 tiles at least and 6 at most"),
        ({"max_tiles": 257}, "'max_tiles' is 257 .*; expected 256 at most"),
        ({"min_image_tokens": 17}, "asks for 17 tokens of an image at least and 16 at most"),
        ({"max_pixels_tolerance": 0}, "'max_pixels_tolerance' is 0"),
    ],
)
def test_settings_that_do_not_fit_lfm2_vl_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    settings = {**CASES["lfm2_vl"].settings, **change}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(PackageError, match=words):
        open_processor(tmp_path, dynamic_vision(), {})


def test_the_text_of_internvl_is_that_of_transformers(tmp_path: Path) -> None:
    """As replace_image_token() of processing_internvl.py writes it: tiles, then all of the image where it is split."""
    processor, tokens = opened(tmp_path, "internvl"), "<IMG_CONTEXT>" * 4
    assert processor.prompt_text(9, 9) == f"<img>{tokens}</img>"
    assert processor.prompt_text(40, 20) == f"<img>{3 * tokens}</img>"
    assert (processor.grid(40, 20), processor.token_count(40, 20)) == (None, 12)
    (tmp_path / "whole").mkdir()
    assert opened(tmp_path / "whole", "internvl whole").token_count(300, 100) == 4


def test_internvl_splits_images_whatever_its_image_processor_says(tmp_path: Path) -> None:
    """As published: crop_to_patches is false in the file, and true in transformers' processor."""
    settings = {**CASES["internvl"].settings, "crop_to_patches": False}
    for name in ("InternVLProcessor", None):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**settings, "processor_class": name}))
        tiled = cast("Vision", SimpleNamespace(image_size=16, tile_tokens=4))
        named = {"context_image_token": "<i>", "start_image_token": "[", "end_image_token": "]"}
        assert open_processor(tmp_path, tiled, named).prompt_text(40, 20) == f"[{12 * '<i>'}]"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": {"height": 16, "width": 32}}, "of size {'height': 16, 'width': 32}; expected a square"),
        ({"size": 32}, "makes tiles of 32 pixels; its vision encoder reads 16"),
        ({"do_resize": False}, "expected a square to resize to"),
        ({"min_patches": 7}, "asks for 7 tiles at least .* and 6 at most"),
        ({"max_patches": 257}, "257 at most .*expected 1 to 256"),
        ({"max_patches": 0}, "'max_patches' is 0"),
        ({"image_seq_length": 9}, "'image_seq_length' is 9 .*makes 4 rows of a tile"),
    ],
)
def test_settings_that_do_not_fit_internvl_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    settings = {**CASES["internvl"].settings, **change}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(PackageError, match=words):
        open_processor(tmp_path, cast("Vision", SimpleNamespace(image_size=16, tile_tokens=4)), {})


def test_a_flat_image_stays_flat(tmp_path: Path) -> None:
    values = flat(opened(tmp_path, "smolvlm").pixel_values(Image.new("RGB", (7, 5), (0, 255, 128))))
    assert np.allclose(values[:, 0], -1, atol=1e-6)
    assert np.allclose(values[:, 1], 1, atol=1e-6)
