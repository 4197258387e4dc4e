"""Exports of Gemma 4 with images: quantized ones, what is refused, and folders without the encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import embedllm
from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.verify import verify_folder
from embedllm.package.architecture.vision import DynamicVision
from tests.support.gemma4 import CONFIGS, gemma4_checkpoint, gemma4_config


def asked(width: int, height: int) -> list[Any]:
    pixels = np.random.default_rng(4).integers(0, 256, (height, width, 3), dtype=np.uint8)
    parts = [{"type": "image", "image": Image.fromarray(pixels)}, {"type": "text", "text": "what is it?"}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that exports a size in 4 bits, once. kv_shared: of how many layers keys and values are others'."""

    @cache
    def export(size: str, kv_shared: int | None = None) -> Path:
        root = tmp_path_factory.mktemp(size)
        config = None if kv_shared is None else gemma4_config(size, {"num_kv_shared_layers": kv_shared})
        checkpoint = gemma4_checkpoint(root / "checkpoint", size, config)
        return convert(checkpoint, root / "package", Recipe(bits=4, method="nearest"))

    return export


@pytest.mark.parametrize("size", CONFIGS)
def test_quantized_graphs_follow_the_reference(exported: Callable[..., Path], size: str) -> None:
    package = exported(size)
    verified = verify_folder(package)
    assert {"vision.onnx", "openvino_vision.xml"} <= verified.keys()
    assert ("model.multimodal.onnx" in verified) == (size != "small")
    for device in ("cpu", "openvino"):
        with embedllm.load(package, device=device) as llm:
            assert len(llm.chat(asked(50, 21), max_tokens=4, stop_tokens=[]).tokens) == 4


def attributes(node: onnx.NodeProto) -> dict[str, int]:
    return {one.name: one.i for one in node.attribute}


@pytest.mark.parametrize("file", ["model.fp16.onnx", "model.webgpu.onnx", "model.fp32.onnx"])
def test_windows_of_layers_that_share_keys_are_masks_on_webgpu(exported: Callable[..., Path], file: str) -> None:
    """Its operator forgets them there: docs/webgpu.md#faults."""
    graph = onnx.load(str(exported("small") / file), load_external_data=False).graph
    attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    windows = ["local_window_size" in attributes(node) for node in attentions]
    masks = [len(node.input) > 10 and bool(node.input[10]) for node in attentions]
    shared = [False] * 3 + [file != "model.fp16.onnx"] * 2 + [False]  # the last three, of which one has no window
    assert masks == shared
    assert windows == [has and not is_masked for has, is_masked in zip([True, True, False] * 2, shared, strict=True)]


@pytest.mark.parametrize("file", ["model.images.fp16.onnx", "model.images.webgpu.onnx"])
def test_graphs_of_gpus_attend_in_both_directions_in_layers_with_a_window_only(
    exported: Callable[..., Path], file: str
) -> None:
    """CUDA's operator does; WebGPU's appends, and plain operators attend with what hides later keys in other layers."""
    package = exported("large", kv_shared=3)  # the last three layers read the keys of two others
    graph = onnx.load(str(package / file), load_external_data=False).graph
    attentions = [attributes(node) for node in graph.node if node.op_type == "GroupQueryAttention"]
    if file == "model.images.webgpu.onnx":
        assert len(attentions) == 3
        biases = {node.input[1] for node in graph.node if node.name.endswith("scores.masked")}
        assert len(biases) == 2  # of windows in both directions, and of what is earlier
    else:
        assert [found.get("causal", 1) for found in attentions] == [0, 0, 1, 0, 0, 1]
        assert not any("local_window_size" in found for found in attentions)


@pytest.mark.parametrize("size", CONFIGS)
def test_encoders_of_gpus_are_written(exported: Callable[..., Path], size: str) -> None:
    package = exported(size)
    for file in ("vision.fp16.onnx", "vision.fp32.onnx"):
        graph = onnx.load(str(package / file), load_external_data=False).graph
        clips = sum(node.op_type == "Clip" for node in graph.node)
        assert bool(clips) == (size == "small")
    assert (package / "model.images.fp16.onnx").exists() == (size != "small")


def test_a_folder_without_the_encoder_reads_text(tmp_path: Path) -> None:
    checkpoint = gemma4_checkpoint(tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "vision_config": None}))
    with embedllm.load(convert(checkpoint, tmp_path / "package", Recipe(bits=4)), device="cpu") as llm:
        assert len(llm.chat([{"role": "user", "content": "hello"}], max_tokens=3, stop_tokens=[]).tokens) == 3
        with pytest.raises(ValueError, match="it takes no images"):
            llm.chat(asked(20, 20), max_tokens=3)


@pytest.mark.parametrize(
    ("section", "change", "error", "says"),
    [
        ("vision_config", {"num_key_value_heads": 1}, UnsupportedModel, "3 heads of 16 values and 1 key/value heads"),
        ("vision_config", {"attention_bias": True}, UnsupportedModel, "attention_bias is true"),
        ("vision_config", {"rope_parameters": {"rope_type": "linear"}}, UnsupportedModel, "rope_type is 'linear'"),
        ("text_config", {"pad_token_id": 3}, UnsupportedModel, "pad_token_id is 3 in text_config; expected 0"),
        ("", {"image_token_id": 307}, ExportError, "image_token_id is 307; expected a token of the model"),
    ],
)
def test_what_the_encoder_does_not_do_is_refused(
    section: str, change: dict[str, object], error: type[Exception], says: str
) -> None:
    config = gemma4_config()
    changed = {section: {**config[section], **change}} if section else change
    with pytest.raises(error, match=says):
        describe(Config({**config, **changed}))


def test_sizes_that_a_config_leaves_out_are_those_of_published_models() -> None:
    config = gemma4_config()
    vision = describe(Config({**config, "vision_config": {"model_type": "gemma4_vision"}})).vision
    assert isinstance(vision, DynamicVision)
    assert (vision.factor, vision.hidden, len(vision.layers), vision.positions_side) == (48, 768, 16, 10_240)
    assert vision.rope_base == 100
    assert not vision.bidirectional_in_windows


def test_a_projector_of_another_size_than_the_patches_is_refused() -> None:
    config = gemma4_config("unified")
    with pytest.raises(UnsupportedModel, match="output_proj_dims is 64 in vision_config; expected mm_embed_dim, 48"):
        describe(Config({**config, "vision_config": {**config["vision_config"], "output_proj_dims": 64}}))


def test_sizes_that_a_config_without_an_encoder_leaves_out_are_those_of_published_models() -> None:
    config = gemma4_config("unified")
    vision = describe(Config({**config, "vision_config": {"model_type": "gemma4_unified_vision"}})).vision
    assert isinstance(vision, DynamicVision)
    assert (vision.factor, vision.hidden, vision.layers, vision.positions_side) == (48, 3840, (), 1120)
    assert vision.bidirectional_in_windows
    text = {**config["text_config"], "use_bidirectional_attention": None}
    assert not describe(Config({**config, "text_config": text})).images_are_bidirectional
