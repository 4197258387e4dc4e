"""Images of InternVL in a page: the tiles, the tokens and the replies of the desktop."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

import embedllm
from embedllm.export import Recipe, convert
from embedllm.images.processors import Processor, open_processor
from embedllm.package.architecture.vision import Vision
from tests.golden.make_image_processors import noise
from tests.support.vision import internvl_chat_checkpoint
from tests.web.support.calls import LONG_S, BrowserError
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import WebServer
from tests.web.support.software_gpu import SOFTWARE
from tests.web.test_images import OPEN, data_url, encoded, given
from tests.web.test_images_any_size import assert_tiles
from tests.web.test_images_whole import ASK_EACH

pytestmark = pytest.mark.browser

OWN = {"image_size": 32, "patch_size": 8, "pixel_shuffle": 2}
SETTINGS: dict[str, Any] = {"processor_class": "InternVLProcessor", "size": {"height": 32, "width": 32}}
CASES: dict[str, dict[str, Any]] = {
    "as published": SETTINGS,
    "several": {**SETTINGS, "min_patches": 3, "max_patches": 7, "resample": 2, "image_mean": [0.5, 0.5, 0.5]},
    "whole": {**SETTINGS, "max_patches": 1},
}
PROCESS = """
const [{ decode }, { InternVLProcessor }] = await Promise.all([import("/src/images/decode.js"),
  import("/src/images/internvl.js")]);
const texts = new Map([["preprocessor_config.json", JSON.stringify(argument.settings)]]);
const processor = new InternVLProcessor(texts, argument.vision, {});
const layouts = argument.sizes.map(([width, height]) =>
  [processor.tokenCount(width, height), processor.promptText(width, height)]);
if (!argument.image) return { layouts };
const image = await decode(Uint8Array.from(atob(argument.image), (letter) => letter.charCodeAt(0)));
const tiles = processor.tiles(image).map((tile) => processor.pixelValues(tile, (floats) => floats));
return { layouts, tiles: tiles.map(({ data, dims }) => ({ values: Array.from(data), dims })) };
"""


def opened(folder: Path, settings: dict[str, Any]) -> Processor:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return open_processor(folder, cast("Vision", SimpleNamespace(image_size=32, tile_tokens=4)), {})


@pytest.mark.parametrize("name", CASES)
def test_tiles_and_tokens_are_exactly_those_of_the_desktop(page: Page, tmp_path: Path, name: str) -> None:
    expected, random = opened(tmp_path, CASES[name]), Random(5)
    sizes = [(random.randint(1, most), random.randint(1, most)) for most in (20, 100, 4000) for _ in range(100)]
    for size in ((40, 33), (17, 60), (1, 1), (3, 200), (131, 97)):
        image, sizes = noise(*size), [*sizes, size]
        argument = {"settings": CASES[name], "vision": OWN, "sizes": sizes, "image": encoded(image)}
        found = page.in_worker(PROCESS, argument)
        assert_tiles(found["tiles"], expected.pixel_values(image))
        assert found["layouts"] == [[expected.token_count(*each), expected.prompt_text(*each)] for each in sizes]
        sizes = []


@pytest.mark.parametrize(
    ("changed", "part"),
    [({"size": {"height": 32, "width": 16}}, "tiles of 16 x 32 pixels and 4 tokens; the vision encoder has 32 and 4"),
     ({"size": 16}, "tiles of 16 x 16 pixels"), ({"image_seq_length": 9}, "and 9 tokens"),
     ({"do_resize": False}, "the vision encoder has 32 and 4"), ({"min_patches": 13}, "13 to 12 tiles"),
     ({"max_patches": 257}, "1 to 257 tiles; expected 1 to 256"), ({"processor_class": "Fuyu"}, "'Fuyu'")],
)  # fmt: skip
def test_what_a_page_does_not_process_is_refused(page: Page, changed: dict[str, object], part: str) -> None:
    with pytest.raises(BrowserError, match=part):
        page.in_worker(PROCESS, {"settings": {**SETTINGS, **changed}, "vision": OWN, "sizes": []})


@pytest.mark.parametrize("device", ["wasm", SOFTWARE])
def test_images_are_read_as_on_the_desktop(device: str, page: Page, web_server: WebServer, tmp_path: Path) -> None:
    folder = convert(internvl_chat_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(method="nearest"))
    urls = [data_url(base64.b64decode(encoded(noise(*size)))) for size in ((60, 41), (20, 33))]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [images[0], {"type": "text", "text": "and"}, images[1], {"type": "text", "text": "<img> is text"}]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 12 if device == "wasm" else 3, "stop_tokens": []}
    prompt: Any = [{"role": "user", "content": content}]
    with embedllm.load(folder, device="reference") as llm:
        expected = llm.chat(prompt, **options)
    assert page.evaluate(OPEN, probed(page, given(web_server, device, folder)), patience_s=LONG_S) == device
    found = page.evaluate(ASK_EACH, {"prompts": [prompt], "options": options}, patience_s=LONG_S)
    assert found == [[list(expected.tokens), expected.statistics.prompt_tokens]]
