"""Images of Gemma 4 in a page: pixels within a budget of tokens, inputs of the encoder and replies of the desktop."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedllm
from embedllm.backends.image_grid import encoder_inputs
from embedllm.export import Recipe, convert
from embedllm.images.processors import open_processor
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.package import MANIFEST, open_package
from tests.golden.make_image_processors import noise
from tests.support.gemma4 import gemma4_checkpoint
from tests.web.support.calls import LONG_S, BrowserError
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import WebServer
from tests.web.support.software_gpu import SOFTWARE
from tests.web.test_images import OPEN, data_url, encoded, given
from tests.web.test_images_any_size import INPUTS, PROCESS, assert_tiles
from tests.web.test_images_whole import ASK_EACH

pytestmark = pytest.mark.browser


# causal with per-layer embeddings; with images whose tokens attend to one another; these without an encoder
@pytest.fixture(scope="module", params=["small", "large", "unified"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gemma4")
    return convert(
        gemma4_checkpoint(root / "checkpoint", request.param), root / request.param, Recipe(method="nearest")
    )


@pytest.fixture(scope="module")
def desktop(folder: Path) -> Iterator[embedllm.Model]:
    with embedllm.load(folder, device="reference") as opened:
        yield opened


def argument_of(folder: Path, size: tuple[int, int], **changed: object) -> dict[str, Any]:
    processor = json.loads((folder / "processor_config.json").read_text(encoding="utf-8"))
    settings = processor["image_processor"] | changed
    vision = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["architecture"]["vision"]
    return {"settings": settings, "vision": vision, "size": size, "image": encoded(noise(*size))}


@pytest.mark.parametrize("folder", ["small", "unified"], indirect=True)
@pytest.mark.parametrize("size", [(40, 33), (1, 300), (290, 3), (97, 140)], ids=str)
def test_pixels_and_inputs_are_exactly_those_of_the_desktop(page: Page, folder: Path, size: tuple[int, int]) -> None:
    vision = open_package(folder).decoder.vision
    assert isinstance(vision, DynamicVision)
    expected, argument = open_processor(folder, vision, {}), argument_of(folder, size)
    values = np.asarray(expected.pixel_values(noise(*size)))
    found = page.in_worker(PROCESS, argument)
    assert_tiles(found["tiles"], values)
    assert (tuple(found["grid"]), found["text"]) == (expected.grid(*size), expected.prompt_text(*size))
    height, width = values.shape[2:]
    inputs = encoder_inputs(vision, values)
    found = page.in_worker(INPUTS, {"vision": argument["vision"], "width": width, "height": height})
    assert set(found) == set(inputs) - {"pixel_values"}
    for name, one in found.items():
        array = np.array(one["data"], one["type"]).reshape(one["dims"])
        np.testing.assert_allclose(array, inputs[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("folder", ["small", "unified"], indirect=True)
@pytest.mark.parametrize(
    ("changed", "part"),
    [({"patch_size": 9}, "has patches of 9 pixels in squares of 2"), ({"pooling_kernel_size": 3}, "in squares of 3"),
     ({"max_soft_tokens": 560}, "560 of them at most; .* positions for 7[24] in a row")],
)  # fmt: skip
def test_settings_of_another_encoder_are_refused(
    page: Page, folder: Path, changed: dict[str, object], part: str
) -> None:
    with pytest.raises(BrowserError, match=part):
        page.in_worker(PROCESS, argument_of(folder, (9, 9), **changed))


@pytest.mark.parametrize(
    ("device", "folder"),
    [("wasm", "large"), ("wasm", "unified"), pytest.param(*SOFTWARE.values, "small", marks=SOFTWARE.marks)],
    indirect=["folder"],
)
def test_images_are_read_as_on_the_desktop(
    device: str, page: Page, web_server: WebServer, folder: Path, desktop: embedllm.Model
) -> None:
    """Several, then one of them again behind other words, then text alone."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 8 if device == "wasm" else 3, "stop_tokens": []}
    first, second = (
        {"type": "image_url", "image_url": {"url": data_url(base64.b64decode(encoded(noise(*size))))}}
        for size in ((40, 33), (17, 60))
    )
    words = {"type": "text", "text": " and "}
    contents: list[Any] = [[words, first, words, second, words], [words, words, second], "words alone"]
    prompts = [[{"role": "user", "content": content}] for content in contents]
    expected = [desktop.chat(prompt, **options) for prompt in prompts]
    page.evaluate(OPEN, probed(page, given(web_server, device, folder)), patience_s=LONG_S)
    assert page.evaluate("async () => llm.takesImages") is True
    found = page.evaluate(ASK_EACH, {"prompts": prompts, "options": options}, patience_s=LONG_S)
    assert found == [[list(each.tokens), each.statistics.prompt_tokens] for each in expected]


@pytest.mark.parametrize("folder", ["small"], indirect=True)
def test_the_cpu_refuses_layers_that_share_keys(page: Page, web_server: WebServer, folder: Path) -> None:
    """Whose attention gives NaN in onnxruntime-web 1.30: try again with a later one."""
    with pytest.raises(BrowserError, match="share keys and values, of which onnxruntime-web"):
        page.evaluate(OPEN, given(web_server, "wasm", folder), patience_s=LONG_S)
