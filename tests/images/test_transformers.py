"""A chat with images against transformers, from files to greedy tokens: its processor, template and model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import embedllm
from embedllm.backends.base import ImageInput
from embedllm.backends.images import FIRST_ID
from embedllm.export import Recipe, convert
from tests.support.dynamic_vision import (
    CONFIGS,
    END,
    IMAGE_TOKEN,
    SQUARE,
    START,
    dynamic_chat_checkpoint,
    siglip2_inputs,
)
from tests.support.gemma4 import CONFIGS as GEMMA4
from tests.support.gemma4 import gemma4_checkpoint, gemma4_config
from tests.support.vision import LONGEST_EDGE, TILE, TILE_TOKENS, chat_checkpoint, internvl_chat_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

REPLY = 8  # tokens


def pictures(*sizes: tuple[int, int]) -> list[Image.Image]:
    random = np.random.default_rng(3)
    return [Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)) for width, height in sizes]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_checkpoint(tmp_path_factory.mktemp("seeing") / "checkpoint")


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> tuple[Any, Any]:
    """transformers' processor and model of the same folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    edges = {"size": {"longest_edge": LONGEST_EDGE}, "max_image_size": {"longest_edge": TILE}}
    # SmolVLM's in all but videos, which need torchvision
    pixels = transformers.Idefics3ImageProcessorPil(**edges)
    processor = transformers.Idefics3Processor(pixels, tokenizer, image_seq_len=TILE_TOKENS)
    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
    return processor, model.eval()


@pytest.mark.parametrize("device", ["cpu", "openvino"])
@pytest.mark.parametrize("sizes", [[(40, 40)], [(64, 20)], [(30, 64), (17, 9)]], ids=str)
def test_a_chat_says_what_transformers_says(
    checkpoint: Path, theirs: tuple[Any, Any], tmp_path: Path, device: str, sizes: list[tuple[int, int]]
) -> None:
    package = convert(checkpoint, tmp_path / "package", Recipe(bits=32))
    processor, model = theirs
    images = pictures(*sizes)
    content = [{"type": "text", "text": "look: "}]
    for image in images:
        content += [{"type": "image", "image": image}, {"type": "text", "text": " and "}]
    messages = [{"role": "user", "content": content}]
    text = processor.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=text, images=images, return_tensors="pt")
    with torch.no_grad():
        reply = model.generate(**inputs, max_new_tokens=REPLY, min_new_tokens=REPLY, do_sample=False)
    expected = reply[0, inputs["input_ids"].shape[1] :].tolist()
    with embedllm.load(package, device=device, exact=True) as llm:
        found = llm.chat(messages, temperature=0, max_tokens=REPLY, min_tokens=REPLY, stop_tokens=[])  # type: ignore[arg-type]  # images are no JSON
        assert found.statistics.prompt_tokens == inputs["input_ids"].shape[1]
        assert list(found.tokens) == expected


@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_a_chat_with_internvl_says_what_transformers_says(tmp_path: Path, device: str) -> None:
    """Images in tiles with a thumbnail behind them, and one that is not split; its processor needs torchvision."""
    checkpoint = internvl_chat_checkpoint(tmp_path / "checkpoint")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = transformers.GotOcr2ImageProcessorPil.from_pretrained(checkpoint)
    images = pictures((40, 33), (17, 60), (90, 64))
    content = [{"type": "text", "text": "look: "}]
    for image in images:
        content += [{"type": "image", "image": image}, {"type": "text", "text": " and "}]
    messages = [{"role": "user", "content": content}]
    pixels = processor(images, crop_to_patches=True, return_tensors="pt")  # as InternVLProcessor calls it
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    for tiles in pixels.pop("num_patches").tolist():
        text = text.replace("<IMG_CONTEXT>\n", f"<img>{'<|>' * TILE_TOKENS * tiles}</img>\n", 1)
    ids = torch.tensor([tokenizer(text.replace("<|>", "<IMG_CONTEXT>"))["input_ids"]])
    with torch.no_grad():
        reply = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **pixels, max_new_tokens=REPLY,
                               min_new_tokens=REPLY, do_sample=False)  # fmt: skip
    with embedllm.load(convert(checkpoint, tmp_path / "package", Recipe(bits=32)), device=device, exact=True) as llm:
        request = llm.request(messages)  # type: ignore[arg-type]  # images are no JSON
        assert [len(image.pixel_values) for image in request.images] == [1, 5, 7]
        assert [IMAGE_TOKEN if token >= FIRST_ID else token for token in request.prompt] == ids[0].tolist()
        found = llm.chat(messages, temperature=0, max_tokens=REPLY, min_tokens=REPLY, stop_tokens=[])  # type: ignore[arg-type]  # images are no JSON
    assert list(found.tokens) == reply[0, ids.shape[1] :].tolist()


def tiles_of(images: Sequence[ImageInput]) -> dict[str, Any]:
    """As pixels_of(), of a processor that needs torchvision: the pixels are ours (tests/images/test_processors.py)."""
    tiles = siglip2_inputs([tile for image in images for tile in image.pixel_values])
    return {name: torch.from_numpy(values) for name, values in tiles.items()}


def pixels_of(checkpoint: Path, family: str, images: list[Image.Image]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """What transformers' model is given, and the grid of each image's rows of features."""
    if family in (
        "mistral3",
        "lighton_ocr",
    ):  # its processor, which needs torchvision, tells the other one of whole squares
        square = {"height": SQUARE, "width": SQUARE}
        processor = transformers.PixtralImageProcessorPil.from_pretrained(checkpoint, patch_size=square)
        pixels = processor(images, return_tensors="pt")
        grids = pixels["image_sizes"] // SQUARE
    else:
        kind = {"paddleocr_vl": "PaddleOCRVL", "glm_ocr": "Glm46V"}.get(family, "Qwen2VL")
        processor = getattr(transformers, f"{kind}ImageProcessorPil").from_pretrained(checkpoint)
        pixels = processor(images, return_tensors="pt")
        grids = pixels["image_grid_thw"][:, 1:] // 2
    return dict(pixels), [(rows, columns) for rows, columns in grids.tolist()]


@pytest.mark.parametrize("device", ["cpu", "openvino"])
@pytest.mark.parametrize("family", [each for each in CONFIGS if each != "lfm2_vl"])
def test_a_chat_with_images_of_any_size_says_what_transformers_says(tmp_path: Path, family: str, device: str) -> None:
    checkpoint = dynamic_chat_checkpoint(tmp_path / "checkpoint", family)
    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    images = pictures((40, 33), (17, 60), (3, 9))
    content = [{"type": "text", "text": "look: "}]
    for image in images:
        content += [{"type": "image", "image": image}, {"type": "text", "text": " and "}]
    messages = [{"role": "user", "content": content}]
    pixels, grids = pixels_of(checkpoint, family, images)
    with embedllm.load(convert(checkpoint, tmp_path / "package", Recipe(bits=32)), device=device, exact=True) as llm:
        request = llm.request(messages)  # type: ignore[arg-type]  # images are no JSON
        assert [image.grid for image in request.images] == grids
        if family == "mistral3":  # a token ends each row, another one the last
            ends = [request.prompt.count(token) for token in (START, END)]
            assert ends == [sum(rows - 1 for rows, _ in grids), len(grids)]
        ids = torch.tensor([[IMAGE_TOKEN if token >= FIRST_ID else token for token in request.prompt]])
        with torch.no_grad():
            types = (
                {}
                if family in ("mistral3", "lfm3_vl", "lighton_ocr")
                else {"mm_token_type_ids": (ids == IMAGE_TOKEN).int()}
            )
            reply = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **pixels, **types,
                                   max_new_tokens=REPLY, min_new_tokens=REPLY, do_sample=False)  # fmt: skip
        found = llm.chat(messages, temperature=0, max_tokens=REPLY, min_tokens=REPLY, stop_tokens=[])  # type: ignore[arg-type]  # images are no JSON
    assert list(found.tokens) == reply[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("device", ["cpu", "openvino"])
def test_a_chat_with_tiles_and_a_thumbnail_says_what_transformers_says(tmp_path: Path, device: str) -> None:
    """LFM2-VL: an image in tiles of one size and all of it in another one, and images that are not split."""
    checkpoint = dynamic_chat_checkpoint(tmp_path / "checkpoint", "lfm2_vl")
    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    content = [{"type": "text", "text": "look: "}]
    for image in pictures((40, 33), (17, 60), (100, 20)):
        content += [{"type": "image", "image": image}, {"type": "text", "text": " and "}]
    messages = [{"role": "user", "content": content}]
    with embedllm.load(convert(checkpoint, tmp_path / "package", Recipe(bits=32)), device=device, exact=True) as llm:
        request = llm.request(messages)  # type: ignore[arg-type]  # images are no JSON
        assert [len(image.pixel_values) for image in request.images] == [5, 1, 6]
        assert [request.prompt.count(token) for token in range(START, START + 4)] == [3, 3, 2, 2]
        ids = torch.tensor([[IMAGE_TOKEN if token >= FIRST_ID else token for token in request.prompt]])
        with torch.no_grad():
            reply = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **tiles_of(request.images),
                                   max_new_tokens=REPLY, min_new_tokens=REPLY, do_sample=False)  # fmt: skip
        found = llm.chat(messages, temperature=0, max_tokens=REPLY, min_tokens=REPLY, stop_tokens=[])  # type: ignore[arg-type]  # images are no JSON
    assert list(found.tokens) == reply[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("device", ["cpu", "openvino"])
@pytest.mark.parametrize("size", GEMMA4)
def test_a_chat_with_gemma_4_says_what_transformers_says(tmp_path: Path, size: str, device: str) -> None:
    # generate() of 12B lets an image's tokens attend to one another in all layers (test_gemma4_vision.py)
    causal = {"use_bidirectional_attention": None} if size == "unified" else {}
    checkpoint = gemma4_checkpoint(tmp_path / "checkpoint", config=gemma4_config(size, causal))
    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    settings = json.loads((checkpoint / "processor_config.json").read_text())["image_processor"]
    settings.pop("image_processor_type")
    if size == "unified":  # whose own processor needs torchvision: it makes patches of whole squares
        settings |= {"patch_size": settings["patch_size"] * settings["pooling_kernel_size"], "pooling_kernel_size": 1}
    processor = transformers.Gemma4ImageProcessorPil(**settings)
    images = pictures((40, 33), (17, 60), (3, 90))
    content = [{"type": "text", "text": "look: "}]
    for image in images:
        content += [{"type": "image", "image": image}, {"type": "text", "text": " and "}]
    messages = [{"role": "user", "content": content}]
    pixels = processor(images, return_tensors="pt")
    counts = pixels.pop("num_soft_tokens_per_image")
    with embedllm.load(convert(checkpoint, tmp_path / "package", Recipe(bits=32)), device=device, exact=True) as llm:
        request = llm.request(messages)  # type: ignore[arg-type]  # images are no JSON
        assert [image.tokens for image in request.images] == list(counts)
        ids = torch.tensor([[IMAGE_TOKEN if token >= FIRST_ID else token for token in request.prompt]])
        text = "<|endoftext|><|turn>user\nlook:" + "".join(
            f"<|image>{count * '<|image|>'}<image|>and" for count in counts
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
        assert ids[0].tolist() == tokenizer(f"{text}<turn|>\n<|turn>model\n")["input_ids"]
        with torch.no_grad():
            reply = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **pixels,
                                   mm_token_type_ids=(ids == IMAGE_TOKEN).int(), max_new_tokens=REPLY,
                                   min_new_tokens=REPLY, do_sample=False)  # fmt: skip
        found = llm.chat(messages, temperature=0, max_tokens=REPLY, min_tokens=REPLY, stop_tokens=[])  # type: ignore[arg-type]  # images are no JSON
    assert list(found.tokens) == reply[0, ids.shape[1] :].tolist()
