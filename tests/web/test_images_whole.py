"""Images whose tokens attend to one another, in a page (Gemma 3): pixels, runs and replies of the desktop."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedllm
from embedllm.export import Recipe, convert
from embedllm.images.processors import open_processor
from embedllm.package.architecture.vision import Vision
from embedllm.package.package import MANIFEST, open_package
from tests.golden.make_image_processors import noise
from tests.support.vision import gemma_chat_checkpoint
from tests.web.support.calls import LONG_S, BrowserError
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import WebServer
from tests.web.support.software_gpu import SOFTWARE
from tests.web.test_images import ASK, OPEN, data_url, encoded, given

pytestmark = pytest.mark.browser

PROCESS = """
const [{ decode }, { FixedSizeProcessor }] = await Promise.all([import("/src/images/decode.js"),
  import("/src/images/fixed_size.js")]);
const texts = new Map(Object.entries(argument.texts));
const processor = new FixedSizeProcessor(texts, argument.vision, {});
const image = await decode(Uint8Array.from(atob(argument.image), (letter) => letter.charCodeAt(0)));
const [tile] = processor.tiles(image);
return { values: Array.from(processor.pixelValues(tile, (floats) => floats).data), tokens: processor.tokenCount(),
  text: processor.promptText() };
"""
ASK_EACH = """async ({ prompts, options }) => {
  const found = [];
  for (const prompt of prompts) {
    const { tokens, statistics } = await llm.generate(prompt, options);
    found.push([tokens, statistics.prompt_tokens]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gemma")
    return convert(gemma_chat_checkpoint(root / "checkpoint"), root / "package", Recipe(method="nearest"))


@pytest.fixture(scope="module")
def desktop(folder: Path) -> Iterator[embedllm.Model]:
    with embedllm.load(folder, device="reference") as opened:
        yield opened


def texts_of(folder: Path, **changed: object) -> dict[str, str]:
    """The settings of a folder's image processor."""
    names = ("preprocessor_config.json", "processor_config.json")
    texts = {name: json.loads((folder / name).read_text(encoding="utf-8")) for name in names}
    texts[names[0]] |= changed
    return {name: json.dumps(text) for name, text in texts.items()}


def vision_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["architecture"]["vision"]


@pytest.mark.parametrize("size", [(40, 33), (7, 90), (32, 32)], ids=str)
def test_pixels_are_exactly_those_of_the_desktop(page: Page, folder: Path, size: tuple[int, int]) -> None:
    vision, image = open_package(folder).decoder.vision, noise(*size)
    assert isinstance(vision, Vision)
    expected = open_processor(folder, vision, {})
    argument = {"texts": texts_of(folder), "vision": vision_of(folder), "image": encoded(image)}
    found = page.in_worker(PROCESS, argument)
    values = np.asarray(expected.pixel_values(image))
    np.testing.assert_array_equal(np.array(found["values"], np.float32), values.ravel())
    assert (found["text"], found["tokens"]) == (expected.prompt_text(*size), expected.token_count(*size))


@pytest.mark.parametrize(
    ("changed", "part"),
    [({"do_pan_and_scan": True}, "pan and scan, which is not supported"),
     ({"size": {"height": 16, "width": 16}}, "the vision encoder has 16 of 32 pixels a side"),
     ({"size": {"height": 32, "width": 16}}, "of {.*16.*}; the vision encoder"),
     ({"image_seq_length": 9}, "makes 9 tokens"), ({"processor_class": "Fuyu"}, "'Fuyu'")],
)  # fmt: skip
def test_what_a_page_does_not_process_is_refused(
    page: Page, folder: Path, changed: dict[str, object], part: str
) -> None:
    texts = texts_of(folder, **changed)
    if set(changed) & {"processor_class", "image_seq_length"}:
        texts["processor_config.json"] = "{}"
    argument = {"texts": texts, "vision": vision_of(folder), "image": encoded(noise(9, 9))}
    with pytest.raises(BrowserError, match=part):
        page.in_worker(PROCESS, argument)


def image_part(seed: int) -> dict[str, Any]:
    url = data_url(base64.b64decode(encoded(noise(20 + seed, 33))))
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


CONTENTS: list[Any] = [
    [text("look: "), image_part(1), text(" and "), image_part(2), text(" what?")],
    [text("look: "), image_part(1), text(" and "), image_part(3)],  # rewinds to where the second image begins
    "words alone, some more of them than a window holds, " * 3,
    [image_part(2), image_part(1), text("words " * 20)],
]


@pytest.mark.parametrize("device", ["wasm", SOFTWARE])
def test_images_are_read_as_on_the_desktop(
    device: str, page: Page, web_server: WebServer, folder: Path, desktop: embedllm.Model
) -> None:
    """Each at once, whatever is held before it; text before and behind is read as without images."""
    count = 12 if device == "wasm" else 3
    options: dict[str, Any] = {"temperature": 0, "max_tokens": count, "stop_tokens": []}
    prompts = [[{"role": "user", "content": content}] for content in CONTENTS]
    expected = [desktop.chat(prompt, **options) for prompt in prompts]
    assert page.evaluate(OPEN, probed(page, given(web_server, device, folder)), patience_s=LONG_S) == device
    assert page.evaluate("async () => llm.takesImages") is True
    found = page.evaluate(ASK_EACH, {"prompts": prompts, "options": options}, patience_s=LONG_S)
    assert found == [[list(each.tokens), each.statistics.prompt_tokens] for each in expected]


def test_a_folder_without_the_graph_of_images_says_which_and_goes_on(
    page: Page, web_server: WebServer, folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    manifest = json.loads((copy / MANIFEST).read_text(encoding="utf-8"))
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["variant"] != "images-gpu-float32"]
    (copy / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    page.evaluate(OPEN, given(web_server, "wasm", copy), patience_s=LONG_S)
    with pytest.raises(BrowserError, match="--variant images-gpu-float32"):
        page.evaluate(ASK, {"url": image_part(1)["image_url"]["url"], "question": "What?"}, patience_s=LONG_S)
    words = 'async () => (await llm.generate([{ role: "user", content: "Hello" }], { max_tokens: 2 })).tokens.length'
    assert page.evaluate(words, patience_s=LONG_S) > 0
