"""Vision encoders with attention in plain operators, on the CPU provider, against the graph as it was exported."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from embedllm.backends.gpu.webgpu_vision import with_plain_attention
from embedllm.backends.image_grid import encoder_inputs
from embedllm.backends.ort.runtime import ort
from embedllm.export import Recipe, convert
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.package import open_package
from tests.support.dynamic_vision import dynamic_checkpoint, dynamic_image
from tests.support.gemma4 import gemma4_checkpoint

FILE = "vision.fp32.onnx"


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "gemma4"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first one has windows, whose attention has a mask; that of the last one has a scale of its own."""
    checkpoint, package = (tmp_path_factory.mktemp(request.param) / name for name in ("checkpoint", "package"))
    made = gemma4_checkpoint(checkpoint) if request.param == "gemma4" else dynamic_checkpoint(checkpoint, request.param)
    return convert(made, package, Recipe(bits=32))


def features(folder: Path, model: str | bytes, vision: DynamicVision) -> np.ndarray:
    options = ort.SessionOptions()
    if isinstance(model, bytes):
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.fspath(folder))
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = encoder_inputs(vision, dynamic_image(1, 3, 5).pixel_values)  # windows of two sizes
    return np.asarray(session.run(["image_features"], inputs)[0])


@pytest.mark.parametrize("masked_only", [False, True])
def test_attention_in_plain_operators_gives_the_same_features(folder: Path, masked_only: bool) -> None:
    vision = open_package(folder).decoder.vision
    assert isinstance(vision, DynamicVision)
    changed = with_plain_attention(folder / FILE, vision.hidden, masked_only=masked_only)
    left = [node for node in onnx.load_from_string(changed).graph.node if node.op_type == "MultiHeadAttention"]
    assert all(len(node.input) == 3 for node in left)
    assert bool(left) == masked_only
    expected = features(folder, os.fspath(folder / FILE), vision)
    np.testing.assert_allclose(features(folder, changed, vision), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
