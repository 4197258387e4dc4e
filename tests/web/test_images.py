"""Images in a page: the pixels, the encoders' features and the replies of the desktop, on WebAssembly and on WebGPU."""

from __future__ import annotations

import base64
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import embedllm
from embedllm.backends.ort.runtime import ort
from embedllm.backends.ort.vision import open_on_cpu
from embedllm.export import Recipe, convert
from embedllm.images.decode import decode
from embedllm.images.processors import Processor, open_processor
from embedllm.loading.resolve import package_folder
from embedllm.package.architecture.vision import Vision
from embedllm.package.graph_variants import VISION_GPU_FLOAT32
from embedllm.package.package import MANIFEST, open_package
from tests.golden.make_image_processors import noise
from tests.support.vision import chat_checkpoint
from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S, BrowserError
from tests.web.support.chat_page import packing
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import ROOT, WebServer
from tests.web.support.site import urls
from tests.web.support.software_gpu import SOFTWARE
from tests.web.test_docs import examples
from tests.web.test_engine import LOAD

pytestmark = pytest.mark.browser

SEEING = ROOT / "samples/seeing"
PICTURES = SEEING / "pictures"
OPEN = """async ({ url, device, urls }) => {
  const { EmbedLLM } = await import("/src/index.js");
  globalThis.llm = await EmbedLLM.load(url, { engine: "javascript", device, urls, worker: globalThis.keptWorker });
  return llm.device.name;
}"""
ASK = """async ({ url, question }) => {
  const content = [{ type: "image_url", image_url: { url } }, { type: "text", text: question }];
  return (await llm.generate([{ role: "user", content }], { temperature: 0, max_tokens: 20 })).tokens;
}"""
TILES = """
const [{ decode }, { TilingProcessor }] = await Promise.all([import("/src/images/decode.js"),
  import("/src/images/processor.js")]);
const image = await decode(Uint8Array.from(atob(argument.image), (letter) => letter.charCodeAt(0)));
const texts = new Map([["preprocessor_config.json", JSON.stringify(argument.settings)]]);
const processor = new TilingProcessor(texts, argument.vision, {});
const tiles = processor.tiles(image);
return { tiles: tiles.map(({ data }) => Array.from(data)), tokens: processor.tokenCount(image.width, image.height),
  text: processor.promptText(image.width, image.height), size: [image.width, image.height],
  values: Array.from(processor.pixelValues(tiles[0], (floats) => floats).data) };
"""
VISION = {"image_size": 32, "patch_size": 8, "pixel_shuffle": 2}
SETTINGS: dict[str, Any] = {
    "processor_class": "SmolVLMProcessor",
    "size": {"longest_edge": 96},
    "max_image_size": {"longest_edge": 32},
    "image_mean": [0.48, 0.46, 0.4],
    "image_std": [0.27, 0.26, 0.28],
}


def given(server: WebServer, device: str, folder: Path = SEEING / "model") -> dict[str, Any]:
    url = server.serve(f"/models/{folder.parent.name}", folder) + "/"
    return {"url": url, "device": device, "urls": urls(server)}


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> str:
    """A file in base64."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def processor_of(folder: Path, settings: dict[str, Any]) -> Processor:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    vision = open_package(SEEING / "model").decoder.vision
    assert isinstance(vision, Vision)
    return open_processor(folder, replace(vision, **VISION), {})


def levels(values: np.ndarray) -> np.ndarray:
    """Pixel values [tiles, 3, S, S] as levels of 255."""
    mean, std = (np.array(SETTINGS[name])[:, None, None] for name in ("image_mean", "image_std"))
    return np.rint((values * std + mean) * 255)


@pytest.mark.parametrize(
    ("resample", "size"),
    [(1, (200, 131)), (2, (33, 190)), (3, (50, 7)), (4, (640, 480)), (5, (97, 96)), (0, (70, 91)), (1, (1, 1))],
)
def test_tiles_are_exactly_those_of_the_desktop(
    page: Page, tmp_path: Path, resample: int, size: tuple[int, int]
) -> None:
    """Whose pixels Pillow resizes, by each of its kernels, larger and smaller."""
    settings, image = {**SETTINGS, "resample": resample}, noise(*size)
    expected = processor_of(tmp_path, settings)
    found = page.in_worker(TILES, {"image": encoded(image), "settings": settings, "vision": VISION})
    values = np.asarray(expected.pixel_values(image))
    tiles = np.array(found["tiles"]).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(tiles, levels(values))
    np.testing.assert_array_equal(np.array(found["values"], np.float32), values[0].ravel())
    assert found["text"] == expected.prompt_text(*size)
    assert found["tokens"] == expected.token_count(*size)


FILES = {
    "a photo on its side": ("JPEG", "RGB", 6),
    "transparent": ("PNG", "RGBA", 1),
    "a palette": ("PNG", "P", 1),
    "grey": ("PNG", "L", 1),
    "lossless": ("WEBP", "RGB", 1),
    "a bitmap": ("BMP", "RGB", 1),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_decoded_as_on_the_desktop(page: Page, name: str) -> None:
    """Upright, on white, without a colour profile."""
    kind, mode, orientation = FILES[name]
    image = noise(90, 60).resize((45, 30))
    image.putalpha(image.getchannel("R")) if mode == "RGBA" else None
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"exif": exif, "quality": 95} if kind == "JPEG" else {}
    file = encoded(image.convert(mode), kind, **options)
    decoded = """
    const { decode } = await import("/src/images/decode.js");
    const { width, height, data } = await decode(Uint8Array.from(atob(argument), (letter) => letter.charCodeAt(0)));
    return { size: [width, height], data: Array.from(data) };
    """
    found = page.in_worker(decoded, file)
    expected = decode(base64.b64decode(file))
    assert tuple(found["size"]) == expected.size == ((30, 45) if orientation == 6 else (45, 30))
    pixels = np.array(found["data"]).reshape(np.asarray(expected).shape)
    assert np.abs(pixels - np.asarray(expected).astype(int)).max() <= 1


REFUSED = {
    "an address": ("https://example.org/cat.png", "downloads no images"),
    "a path": ("pictures/cat.png", "expected a data URL"),
    "text": ("data:image/png;base64," + base64.b64encode(b"no image at all").decode(), "begins with"),
    "damage": (data_url((PICTURES / "word.png").read_bytes()[:700] + bytes(2000)), "damaged PNG"),
    "a bomb": (data_url(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (40_000).to_bytes(4, "big") * 2 + bytes(9)), "40000x40000"),
}


def test_a_page_answers_about_pictures_as_the_desktop(page: Page, web_server: WebServer) -> None:
    """From each form that a page has images in; and says what is wrong with others."""
    assert page.evaluate(OPEN, given(web_server, "wasm"), patience_s=LONG_S) == "wasm"
    questions = json.loads((PICTURES / "questions.json").read_text())[:5:2]
    with embedllm.load(SEEING / "model", device="cpu") as llm:
        for name, question, _ in questions:
            content: list[Any] = [{"type": "image", "image": PICTURES / name}, {"type": "text", "text": question}]
            expected = llm.generate(
                [{"role": "user", "content": content}], embedllm.Sampling(temperature=0), max_tokens=20
            )
            url = data_url((PICTURES / name).read_bytes())
            assert page.evaluate(ASK, {"url": url, "question": question}, patience_s=LONG_S) == list(expected.tokens)
    forms = page.evaluate(FORMS, [data_url((PICTURES / "word.png").read_bytes()), "Read the word."], patience_s=LONG_S)
    assert forms["texts"] == dict.fromkeys(forms["texts"], 'The word is "river".')
    assert len(forms["texts"]) == 6
    assert forms["history"] == ["data:image/png;base64,", "Read the word.", 'The word is "river".']
    assert forms["cached"] > 64, "the second turn has the image of the first"
    assert forms["many"] == "ContextFull"
    for url, part in REFUSED.values():
        with pytest.raises(BrowserError, match=part):
            page.evaluate(ASK, {"url": url, "question": "What is it?"}, patience_s=LONG_S)


FORMS = """async ([url, question]) => {
  const blob = await (await fetch(url)).blob();
  const bitmap = await createImageBitmap(blob);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  const element = new Image();
  element.src = url;
  const images = { blob, bitmap, canvas, element, file: new File([blob], "word.png"), bytes: await blob.arrayBuffer() };
  const options = { temperature: 0, max_tokens: 20 };
  const message = (...images) => ({ role: "user",
    content: [...images.map((image) => ({ type: "image", image })), { type: "text", text: question }] });
  const texts = {};
  const read = FileReader.prototype.readAsDataURL;
  FileReader.prototype.readAsDataURL = () => { throw new Error("the page is to post a file as it is"); };
  for (const [name, image] of Object.entries(images)) {
    texts[name] = (await llm.generate([message(image)], options)).text;
  }
  FileReader.prototype.readAsDataURL = read;
  const talk = llm.conversation();
  for await (const _ of talk.say(message(blob), options));
  let last;
  for await (last of talk.say("What colour is it?", options));
  const [{ content }, reply] = JSON.parse(JSON.stringify(talk.save())).messages;
  const many = await llm.generate([message(...Array(8).fill(blob))], options).catch(({ name }) => name);
  return { texts, cached: last.statistics.cached_tokens, many,
    history: [content[0].image_url.url.slice(0, 22), content[1].text, reply.content] };
}"""


def test_the_data_url_of_a_large_file_is_that_of_its_bytes(page: Page) -> None:
    """It is read in pieces, of which one more ends at each of their lengths."""
    assert page.evaluate(URLS_OF) == [True] * 4


URLS_OF = """async () => {
  const { storable } = await import("/src/images/posting.js");
  const found = [];
  for (const length of [1, 3 << 19, (3 << 19) + 1, 4_000_001]) {
    const bytes = Uint8Array.from({ length }, (_, place) => place % 251);
    const image = new Blob([bytes], { type: "image/png" });
    const { content: [{ image_url: { url } }] } = await storable({ role: "user", content: [{ type: "image", image }] });
    const read = new Uint8Array(await (await fetch(url)).arrayBuffer());
    const isSame = read.length === length && read.every((byte, place) => byte === place % 251);
    found.push(isSame && url.startsWith("data:image/png;base64,"));
  }
  return found;
}"""


def test_a_model_that_reads_text_only_says_so(page: Page, web_server: WebServer) -> None:
    page.evaluate(OPEN, given(web_server, "wasm", package_folder("demo")), patience_s=LONG_S)
    url = data_url((PICTURES / "word.png").read_bytes())
    with pytest.raises(BrowserError, match="reads text only"):
        page.evaluate(ASK, {"url": url, "question": "Read the word."}, patience_s=LONG_S)


def test_a_folder_without_graphs_for_images_says_which_and_goes_on(
    page: Page, web_server: WebServer, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(SEEING / "model", tmp_path / "model"))
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["variant"] != "vision-float32"]
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    page.evaluate(OPEN, given(web_server, "wasm", folder), patience_s=LONG_S)
    asked = {"url": data_url((PICTURES / "word.png").read_bytes()), "question": "Read the word."}
    with pytest.raises(BrowserError, match="--variant vision-float32"):
        page.evaluate(ASK, asked, patience_s=LONG_S)
    text = 'async () => (await llm.generate([{ role: "user", content: "Hello" }], { max_tokens: 2 })).tokens.length'
    assert page.evaluate(text, patience_s=LONG_S) > 0


def test_the_example_of_the_guide_runs(
    browser: Browser, web_server: WebServer, node_modules: Path, tmp_path: Path
) -> None:
    """In the folder that pack.py writes, whose model sees; with the words of a page's user."""
    pack = packing()
    site = pack.pack(pack.roots("chat", model=SEEING / "model", modules=node_modules), tmp_path / "site")
    (site / "mine.html").write_text("<!doctype html><title>example</title><body><input type=file></body>")
    program = examples("docs/guide-images.md", "js").replace("models/my-vlm/", "models/demo/")
    (site / "example.js").write_text(program.replace("What is on this picture?", "Read the word."), encoding="utf-8")
    tab = browser.context().page(web_server.serve("/site", site) + "/mine.html")
    tab.attach("input", [PICTURES / "word.png"])
    tab.evaluate("async () => void await import('./example.js')", patience_s=LONG_S)
    assert 'The word is "river".' in tab.text("body")


FAULT = 0.1  # of the largest feature: software's attention is off by 0.04 (docs/webgpu.md#faults), noise would be by 1
ENCODE = """
const [{ openEncoder }, { TilingProcessor }, { decode }] = await Promise.all([import("/src/images/encoder.js"),
  import("/src/images/processor.js"), import("/src/images/decode.js")]);
const { manifest, texts, tokenizer, engine } = loaded;
const processor = new TilingProcessor(texts, manifest.architecture.vision, tokenizer.named);
const [tile] = processor.tiles(await decode(Uint8Array.from(atob(argument.image), (letter) => letter.charCodeAt(0))));
engine.attendsToMany = argument.isOnGpu;
const { rows: features } = await (await openEncoder(loaded, processor)).encode(tile);
if (features instanceof Float32Array) return Array.from(features);
const { widen } = await import("/src/engine/float_bytes.js");
const floats = new Float32Array(features.length);
widen(features, floats);
return Array.from(floats);
"""


@pytest.mark.slow
@pytest.mark.software_gpu
def test_a_gpu_answers_about_a_picture_as_the_desktop(page: Page, web_server: WebServer) -> None:
    argument = probed(page, given(web_server, "webgpu-software"))
    assert page.evaluate(OPEN, argument, patience_s=LONG_S) == "webgpu-software"
    asked = {"url": data_url((PICTURES / "shapes.png").read_bytes()), "question": "What is in the picture?"}
    tokens = page.evaluate(ASK, asked, patience_s=LONG_S)
    with embedllm.load(SEEING / "model", device="cpu") as llm:
        assert llm.tokenizer.decode(tokens) == "A red circle and a purple star."


@pytest.mark.parametrize("device", ["wasm", SOFTWARE])
def test_tiles_of_an_image_are_placed_as_on_the_desktop(
    device: str, page: Page, web_server: WebServer, tmp_path: Path
) -> None:
    """By a model of random weights, whose every token depends on every tile; two images, with text between them."""
    folder = convert(chat_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(method="nearest"))
    files = [base64.b64decode(encoded(noise(*size))) for size in ((60, 41), (20, 33))]
    count = 12 if device == "wasm" else 3
    with embedllm.load(folder, device="reference") as llm:
        content: list[Any] = [{"type": "image", "image": files[0]}, {"type": "text", "text": "and"}]
        content += [{"type": "image", "image": files[1]}, {"type": "text", "text": "<image> is text"}]
        sampling = embedllm.Sampling(temperature=0)
        expected = llm.generate([{"role": "user", "content": content}], sampling, max_tokens=count, stop_tokens=[])
    page.evaluate(OPEN, probed(page, given(web_server, device, folder)), patience_s=LONG_S)
    found = page.evaluate(
        """async ({ urls: [first, second], count }) => {
          const image = (url) => ({ type: "image_url", image_url: { url } });
          const content = [image(first), { type: "text", text: "and" }, image(second),
            { type: "text", text: "<image> is text" }];
          const options = { temperature: 0, max_tokens: count, stop_tokens: [] };
          const { tokens, statistics } = await llm.generate([{ role: "user", content }], options);
          return { tokens, prompt: statistics.prompt_tokens };
        }""",
        {"urls": [data_url(file) for file in files], "count": count},
        patience_s=LONG_S,
    )
    assert found == {"tokens": list(expected.tokens), "prompt": expected.statistics.prompt_tokens}


@pytest.mark.slow  # software takes seconds for a run
@pytest.mark.software_gpu
@pytest.mark.parametrize("is_on_gpu", [True, False])
def test_features_beside_a_gpu_are_those_of_the_desktop(is_on_gpu: bool, page: Page, web_server: WebServer) -> None:
    """Where attention is wrong over many patches, as software has it, images go to the CPU beside the GPU."""
    folder, picture = SEEING / "model", PICTURES / "word.png"
    package = open_package(folder)
    vision = package.decoder.vision
    assert isinstance(vision, Vision)
    pixels = np.asarray(open_processor(folder, vision, {}).pixel_values(Image.open(picture).convert("RGB")))
    expected = open_on_cpu(package, ort.SessionOptions(), VISION_GPU_FLOAT32).encode(pixels[:1])
    page.in_worker(LOAD, probed(page, given(web_server, "webgpu-software", folder)), patience_s=LONG_S)
    image = {"image": base64.b64encode(picture.read_bytes()).decode(), "isOnGpu": is_on_gpu}
    found = page.in_worker(ENCODE, image, patience_s=LONG_S)
    spread = np.abs(expected).max()
    np.testing.assert_allclose(
        np.reshape(found, expected.shape), expected, rtol=0, atol=FAULT * spread if is_on_gpu else 1e-5 * spread
    )
