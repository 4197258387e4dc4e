"""Images of any size in a page (Qwen's models, Mistral 3): pixels, inputs, positions and replies of the desktop."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import embedllm
from embedllm.backends.image_grid import encoder_inputs
from embedllm.export import Recipe, convert
from embedllm.images.processors import open_processor
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.package import MANIFEST
from tests.golden.make_image_processors import noise
from tests.support.dynamic_vision import CONFIGS, PIXELS, PIXTRAL_PIXELS, SQUARE, described, dynamic_chat_checkpoint
from tests.web.support.calls import LONG_S, BrowserError
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import WebServer
from tests.web.test_images import OPEN, data_url, encoded, given

if TYPE_CHECKING:
    from embedllm.types import F32

pytestmark = pytest.mark.browser

SIZES = ((40, 33), (17, 60), (3, 9))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "stop_tokens": []}
PROCESS = """
const [{ decode }, { openProcessor }] = await Promise.all([import("/src/images/decode.js"),
  import("/src/images/any_size.js")]);
const texts = new Map([["preprocessor_config.json", JSON.stringify(argument.settings)]]);
const processor = await openProcessor(texts, argument.vision, {});
const [width, height] = argument.size;
const found = { grid: processor.grid(width, height), tokens: processor.tokenCount(width, height),
  text: processor.promptText(width, height) };
if (!argument.image) return found;
const image = await decode(Uint8Array.from(atob(argument.image), (letter) => letter.charCodeAt(0)));
const tiles = processor.tiles(image).map((tile) => processor.pixelValues(tile, (floats) => floats));
return { ...found, tiles: tiles.map(({ data, dims }) => ({ values: Array.from(data), dims })) };
"""
INPUTS = """
const { gridInputs } = await import("/src/images/image_grid.js");
const { vision, width, height } = argument;
return Object.fromEntries(Object.entries(gridInputs(vision, width, height)).map(([name, { type, data, dims }]) =>
  [name, { type, dims, data: Array.from(data, Number) }]));
"""


@pytest.fixture(
    scope="module", params=[each for each in CONFIGS if each not in ("glm_ocr", "lfm3_vl", "lighton_ocr")]
)  # as Qwen's and Mistral 3's
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    return convert(
        dynamic_chat_checkpoint(root / "checkpoint", request.param), root / "package", Recipe(method="nearest")
    )


@pytest.fixture(scope="module")
def desktop(folder: Path) -> Iterator[embedllm.Model]:
    with embedllm.load(folder, device="reference") as opened:
        yield opened


def vision_of(folder: Path) -> dict[str, Any]:
    """As the manifest has it."""
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["architecture"]["vision"]


def vision(family: str) -> DynamicVision:
    found = described(family).vision
    assert isinstance(found, DynamicVision)
    return found


def assert_tiles(found: Sequence[dict[str, Any]], expected: F32 | list[F32]) -> None:
    """Pixel values of tiles, each [3, height, width], are exactly these."""
    assert [tile["dims"] for tile in found] == [[1, *values.shape] for values in expected]
    for tile, values in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(tile["values"], np.float32), values.ravel())


@pytest.mark.parametrize(
    ("size", "settings"),
    [((40, 33), PIXELS), ((17, 60), PIXELS), ((3, 9), PIXELS), ((200, 7), PIXELS), ((640, 480), PIXELS),
     ((68, 100), {**PIXELS, "resample": 2}), ((1, 1), {**PIXELS, "image_mean": 0.5, "image_std": 0.25}),
     ((33, 190), {**PIXELS, "size": None, "max_pixels": 6400, "min_pixels": 64}),
     ((3, 100), {**PIXELS, "image_processor_type": "PaddleOCRVLImageProcessor"}),
     ((40, 33), {**PIXTRAL_PIXELS, "image_processor_type": "LightOnOcrImageProcessor"}),
     ((3, 100), {**PIXELS, "image_processor_type": "Glm46VImageProcessor"}),
     ((40, 33), PIXTRAL_PIXELS), ((17, 100), PIXTRAL_PIXELS), ((1, 300), PIXTRAL_PIXELS),
     ((100, 75), {**PIXTRAL_PIXELS, "patch_size": 4, "spatial_merge_size": 2, "size": {"height": 24, "width": 96}})],
)  # fmt: skip
def test_pixels_are_exactly_those_of_the_desktop(
    page: Page, tmp_path: Path, size: tuple[int, int], settings: dict[str, Any]
) -> None:
    """Of an image that is made larger or smaller, whose sides are rounded to whole squares."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    expected, image = open_processor(tmp_path, vision("qwen3_vl"), {}), noise(*size)
    own = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "layers": [{"attention": {"heads": 2}}]}
    argument = {"settings": settings, "vision": own, "size": size, "image": encoded(image)}
    found = page.in_worker(PROCESS, argument)
    assert_tiles(found["tiles"], expected.pixel_values(image))
    assert (tuple(found["grid"]), found["tokens"]) == (expected.grid(*size), expected.token_count(*size))
    assert found["text"] == expected.prompt_text(*size)


@pytest.mark.parametrize(
    ("size", "settings", "part"),
    [((2, 500), {}, "at most 200 times"), ((4000, 4000), {}, "does not fit a page's memory; about 185344 pixels do"),
     ((9, 9), {"patch_size": 14}, "'patch_size' is 14"), ((9, 9), {"min_pixels": 10**9}, "1000000000 pixels at least"),
     ((9, 9), {"size": {"longest_edge": 0}}, "'size' is"), ((9, 9), {"image_processor_type": "Fuyu"}, "'Fuyu'"),
     ((9, 9), {**PIXTRAL_PIXELS, "patch_size": 14}, 'patches of {"height":14,"width":14} in squares of 2'),
     ((9, 9), {**PIXTRAL_PIXELS, "size": {"height": 9}}, "'size' is .*expected a longest_edge"),
     ((4000, 4000), {**PIXTRAL_PIXELS, "size": {"longest_edge": 1 << 13}}, "does not fit a page's memory; about 185")],
)  # fmt: skip
def test_what_a_page_does_not_process_is_refused(
    page: Page, size: tuple[int, int], settings: dict[str, Any], part: str
) -> None:
    own = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "layers": [{"attention": {"heads": 2}}]}
    large = {**PIXELS, "size": {"shortest_edge": 64, "longest_edge": 1 << 24}}
    with pytest.raises(BrowserError, match=part):
        page.in_worker(PROCESS, {"settings": {**large, **settings}, "vision": own, "size": size})


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 2)], ids=str)
def test_the_inputs_of_an_encoder_are_those_of_the_desktop(page: Page, folder: Path, size: tuple[int, int]) -> None:
    """Order of patches, rotations, positions and windows, for a number of squares down and across."""
    family = folder.parent.name[:-1]
    height, width = (side * SQUARE for side in size)
    expected = encoder_inputs(vision(family), np.zeros((1, 3, height, width), np.float32))
    found = page.in_worker(INPUTS, {"vision": vision_of(folder), "width": width, "height": height})
    assert set(found) == set(expected) - {"pixel_values"}
    for name, one in found.items():
        values = np.array(one["data"], one["type"]).reshape(one["dims"])
        assert values.dtype == expected[name].dtype, name
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-6 if values.dtype == np.float32 else 0)


def contents() -> list[Any]:
    """Text, and images of several sizes with text behind each."""
    parts: list[Any] = [{"type": "text", "text": "look: "}]
    for size in SIZES:
        url = data_url(base64.b64decode(encoded(noise(*size))))
        parts += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": " and "}]
    return parts


def test_images_are_placed_as_on_the_desktop(
    page: Page, web_server: WebServer, folder: Path, desktop: embedllm.Model
) -> None:
    """By models whose tokens of images have rows and columns; and after a rewind into an image."""
    prompts = [[{"role": "user", "content": contents()[:stop]}] for stop in (7, 3, 7)]
    expected = [desktop.chat(prompt, **GREEDY) for prompt in prompts]
    page.evaluate(OPEN, given(web_server, "wasm", folder), patience_s=LONG_S)
    found = page.evaluate(
        """async ({ prompts, options }) => {
          const found = [];
          for (const prompt of prompts) {
            const { tokens, statistics } = await llm.generate(prompt, options);
            found.push([tokens, statistics.prompt_tokens]);
          }
          return found;
        }""",
        {"prompts": prompts, "options": GREEDY},
        patience_s=LONG_S,
    )
    assert found == [[list(each.tokens), each.statistics.prompt_tokens] for each in expected]


def test_a_conversation_goes_on_from_its_stored_cache(
    page: Page, web_server: WebServer, folder: Path, desktop: embedllm.Model
) -> None:
    """Whose positions are known again: the next turn has the images of the first."""
    page.evaluate(OPEN, given(web_server, "wasm", folder), patience_s=LONG_S)
    found = page.evaluate(
        """async ({ content, options }) => {
          const talk = llm.conversation();
          for await (const _ of talk.say({ role: "user", content }, options));
          await talk.save("seen");
          const again = await llm.openConversation("seen");
          const tokens = [];
          let last;
          for await (last of again.say("more", options)) tokens.push(last.token);
          return { tokens, cached: last.statistics.cached_tokens, messages: again.save().messages };
        }""",
        {"content": contents(), "options": GREEDY},
        patience_s=LONG_S,
    )
    assert found["cached"] > 20
    expected = desktop.chat(found["messages"][:-1], **GREEDY)
    assert found["tokens"] == list(expected.tokens)


SOME: dict[str, Any] = {**GREEDY, "max_tokens": 4}
ASK_AGAIN = """async ({ prompts, options }) => {
  const found = [];
  for (const prompt of prompts) found.push((await llm.generate(prompt, options)).tokens);
  return found;
}"""


@pytest.mark.slow  # software takes seconds to load a model
@pytest.mark.software_gpu
# with windows and M-RoPE, with states and tiles; with both Qwen 3.5 in test_images_python.py
@pytest.mark.parametrize("folder", ["qwen2_5_vl", "lfm2_vl"], indirect=True)
def test_a_gpu_places_images_as_the_desktop(
    page: Page, web_server: WebServer, folder: Path, desktop: embedllm.Model
) -> None:
    """Also in captured steps, which read the positions of one prompt after those of another, or of text."""
    contents_of = [contents()[:3], "Hello", contents()[:5]]
    prompts: list[Any] = [[{"role": "user", "content": content}] for content in contents_of]
    expected = [desktop.chat(prompt, **SOME) for prompt in prompts]
    page.evaluate(OPEN, probed(page, given(web_server, "webgpu-software", folder)), patience_s=LONG_S)
    assert page.evaluate("async () => llm.takesImages") is True
    found = page.evaluate(ASK_AGAIN, {"prompts": prompts, "options": SOME}, patience_s=LONG_S)
    assert found == [list(each.tokens) for each in expected]
