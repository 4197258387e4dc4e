"""Images of LFM2-VL in a page: the tiles, of several sizes, and the tokens of the desktop."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from embedllm.images.processors import Processor, open_processor
from tests.golden.make_image_processors import noise
from tests.support.dynamic_vision import LFM2_PIXELS
from tests.web.support.calls import BrowserError
from tests.web.support.page import Page
from tests.web.test_images import encoded
from tests.web.test_images_any_size import PROCESS, assert_tiles, vision

pytestmark = pytest.mark.browser

OWN = {"patch_size": 4, "merge_size": 2, "layers": [{"attention": {"heads": 3}}]}
SETTINGS: dict[str, dict[str, Any]] = {
    "tiles": LFM2_PIXELS,
    "without a thumbnail": {**LFM2_PIXELS, "use_thumbnail": False, "max_pixels_tolerance": 0.5},
    "whole": {**LFM2_PIXELS, "do_image_splitting": False},
    "without marks": {**LFM2_PIXELS, "use_image_special_tokens": False, "min_tiles": 1},
    "as published": {"image_processor_type": "Lfm2VlImageProcessor", "tile_size": 128},
}
LAYOUTS = """
const { openProcessor } = await import("/src/images/any_size.js");
const texts = new Map([["preprocessor_config.json", JSON.stringify(argument.settings)]]);
const processor = await openProcessor(texts, argument.vision, {});
return argument.sizes.map(([width, height]) =>
  [processor.tokenCount(width, height), processor.promptText(width, height)]);
"""


def opened(folder: Path, settings: dict[str, Any]) -> Processor:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return open_processor(folder, vision("lfm2_vl"), {})


@pytest.mark.parametrize("name", SETTINGS)
def test_tiles_are_exactly_those_of_the_desktop(page: Page, tmp_path: Path, name: str) -> None:
    expected, argument = opened(tmp_path, SETTINGS[name]), {"settings": SETTINGS[name], "vision": OWN}
    for size in ((40, 33), (17, 60), (1, 1), (3, 200), (131, 97)):
        image = noise(*size)
        found = page.in_worker(PROCESS, {**argument, "size": size, "image": encoded(image)})
        assert_tiles(found["tiles"], expected.pixel_values(image))
        assert found["grid"] is None


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_the_desktop_for_any_size(page: Page, tmp_path: Path, name: str) -> None:
    expected, random = opened(tmp_path, SETTINGS[name]), Random(5)
    sizes = [(random.randint(1, most), random.randint(1, most)) for most in (20, 100, 400, 4000) for _ in range(100)]
    found = page.in_worker(LAYOUTS, {"settings": SETTINGS[name], "vision": OWN, "sizes": sizes})
    assert found == [[expected.token_count(*size), expected.prompt_text(*size)] for size in sizes]


@pytest.mark.parametrize(
    ("changed", "part"),
    [({"encoder_patch_size": 16}, "has patches of 16 pixels in squares of 2, tiles of 16 pixels, 2 to 6 of them"),
     ({"downsample_factor": 1}, "in squares of 1, .*; the vision encoder has patches of 4 in squares of 2"),
     ({"tile_size": 20}, "tiles of 20 pixels"), ({"min_tiles": 7}, "7 to 6 of them"),
     ({"max_tiles": 257}, "'max_tiles' is 257; expected 256 at most"),
     ({"min_image_tokens": 17}, "17 to 16 tokens"), ({"max_pixels_tolerance": 0}, "'max_pixels_tolerance' is 0"),
     ({"tile_size": 1024}, "does not fit a page's memory; about 151296 pixels do")],
)  # fmt: skip
def test_what_a_page_does_not_process_is_refused(page: Page, changed: dict[str, object], part: str) -> None:
    with pytest.raises(BrowserError, match=part):
        page.in_worker(PROCESS, {"settings": {**LFM2_PIXELS, **changed}, "vision": OWN, "size": (4000, 3000)})
