"""Features of images of any size in a page: those of the desktop, in one tile or several, each computed once."""

from __future__ import annotations

import base64
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.ort.runtime import ort
from embedllm.backends.ort.vision import open_on_cpu
from embedllm.export import Recipe, convert
from embedllm.images.processors import Processor, open_processor
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import VISION_GPU_FLOAT32
from embedllm.package.package import open_package
from tests.golden.make_image_processors import noise
from tests.support.dynamic_vision import dynamic_chat_checkpoint
from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import WebServer
from tests.web.support.software_gpu import SOFTWARE
from tests.web.test_engine import LOAD
from tests.web.test_images import given
from tests.web.test_images_any_size import SIZES, contents

pytestmark = pytest.mark.browser

ENCODE = """
const [{ openEncoder }, { openProcessor }] = await Promise.all([import("/src/images/encoder.js"),
  import("/src/images/any_size.js")]);
const { manifest, texts, tokenizer, engine } = loaded;
const processor = await openProcessor(texts, manifest.architecture.vision, tokenizer.named);
engine.attendsToMany = true;
const { width, height } = argument;
const data = Uint8Array.from(atob(argument.pixels), (letter) => letter.charCodeAt(0));
const encoder = await openEncoder(loaded, processor);
const found = [];
for (const tile of processor.tiles({ width, height, data })) found.push(Array.from((await encoder.encode(tile)).rows));
return found;
"""
ON_GPU = [
    pytest.param(*SOFTWARE.values, family, marks=SOFTWARE.marks)
    for family in ("qwen3_vl", "mistral3", "lfm2_vl")  # with DeepStack, without, without RoPE
]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    return convert(
        dynamic_chat_checkpoint(root / "checkpoint", request.param), root / "package", Recipe(method="nearest")
    )


def opened(folder: Path) -> Processor:
    vision = open_package(folder).decoder.vision
    assert isinstance(vision, DynamicVision)
    return open_processor(folder, vision, {})


@pytest.mark.parametrize(
    ("device", "folder"), [("wasm", "qwen3_5"), ("wasm", "lfm2_vl"), ("wasm", "lfm3_vl"), *ON_GPU], indirect=["folder"]
)
def test_images_are_encoded_as_on_the_desktop(device: str, page: Page, web_server: WebServer, folder: Path) -> None:
    """On a GPU of so few patches that the attention of software is right."""
    image = noise(*((40, 33) if device == "wasm" else (16, 20)))
    encoder = open_on_cpu(open_package(folder), ort.SessionOptions(), VISION_GPU_FLOAT32)
    tiles = opened(folder).pixel_values(image)
    expected = np.concatenate([encoder.encode(tile[None]) for tile in tiles])
    page.in_worker(LOAD, probed(page, given(web_server, device, folder)), patience_s=LONG_S)
    argument = {"pixels": base64.b64encode(image.tobytes()).decode(), "width": image.width, "height": image.height}
    found = page.in_worker(ENCODE, argument, patience_s=LONG_S)
    assert len(found) == len(tiles)
    found = np.reshape([*chain(*found)], expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


TURNS = """
const { ModelImages } = await import("/src/images/prompt.js");
const model = await ModelImages.open(loaded);
const counts = { decoded: 0, encoded: 0 };
const [{ images }, { createImageBitmap: decode }] = [loaded.engine, globalThis];
globalThis.createImageBitmap = (...given) => (counts.decoded++, decode(...given));
const encoder = await images.open();
const { encode } = encoder;
encoder.encode = (tile) => (counts.encoded++, encode(tile));
const turns = [];
for (const more of [[], [5, 6]]) {
  const { images: seen } = await model.split([{ role: "user", content: argument.content }]);
  images.set(seen);
  const tokens = seen.flatMap(({ first, tokens }) => [5, ...Array.from({ length: tokens }, (_, row) => first + row)]);
  session.rewind(Math.max(0, session.position - 2)); // into the last image
  await session.feed([...tokens, ...more].slice(session.position));
  turns.push({ ...counts });
}
return turns;
"""


@pytest.mark.parametrize("folder", ["qwen3_5", "lfm2_vl"], indirect=True)
def test_a_second_turn_decodes_and_encodes_nothing(page: Page, web_server: WebServer, folder: Path) -> None:
    """Tokens of an image are fed again where the states of a recurrent model go back to before it."""
    processor = opened(folder)
    tiles = sum(len(processor.pixel_values(noise(*size))) for size in SIZES)
    page.in_worker(LOAD, given(web_server, "wasm", folder), patience_s=LONG_S)
    found = page.in_worker(TURNS, {"content": contents()}, patience_s=LONG_S)
    assert found == [{"decoded": len(SIZES), "encoded": tiles}] * 2
