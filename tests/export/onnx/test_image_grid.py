"""What a graph computes of the size of an image, against what other encoders have as inputs."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from embedllm.backends.image_grid import encoder_inputs
from embedllm.export.layout import Layout
from embedllm.export.onnx.builder import Graph
from embedllm.export.onnx.image_grid import image_grid, image_inputs
from embedllm.package.architecture.vision import DynamicVision
from embedllm.package.graph_variants import (
    GENAI_VISION_OF_PATCHES,
    GENAI_VISION_OF_PIXELS,
    IMAGE_GRID,
    VISION,
    GraphVariant,
)
from tests.support.dynamic_vision import SQUARE, described

FAMILIES = ("mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def session(vision: DynamicVision, variant: GraphVariant) -> onnxruntime.InferenceSession:
    """A graph of these values alone."""
    graph, kind = Graph(Layout(b"", {}, 0), "float32"), 1
    image_grid(graph, vision, variant)
    wanted = [info for info in image_inputs(vision, VISION, kind) if info.name != "pixel_values"]
    outputs = [helper.make_tensor_value_info(one.name, one.type.tensor_type.elem_type, None) for one in wanted]
    model = graph.model("grid", image_inputs(vision, variant, kind), outputs)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module", params=FAMILIES)
def vision(request: pytest.FixtureRequest) -> DynamicVision:
    found = described(request.param).vision
    assert isinstance(found, DynamicVision)
    return found


@pytest.fixture(scope="module")
def of_pixels(vision: DynamicVision) -> onnxruntime.InferenceSession:
    return session(vision, GENAI_VISION_OF_PIXELS)


@pytest.fixture(scope="module")
def of_patches(vision: DynamicVision) -> onnxruntime.InferenceSession:
    return session(vision, GENAI_VISION_OF_PATCHES)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_values_equal_those_that_are_given_elsewhere(
    vision: DynamicVision,
    of_pixels: onnxruntime.InferenceSession,
    of_patches: onnxruntime.InferenceSession,
    rows: int,
    columns: int,
) -> None:
    pixels = np.zeros((1, 3, SQUARE * rows, SQUARE * columns), np.float32)
    expected = {name: value for name, value in encoder_inputs(vision, pixels).items() if name != "pixel_values"}
    merge = vision.merge_size
    patches = np.zeros((rows * columns * merge**2, 3 * vision.temporal_patch_size * vision.patch_size**2), np.float32)
    grid = np.array([[1, merge * rows, merge * columns]])
    for graph, feeds in (
        (of_pixels, {"pixel_values": pixels}),
        (of_patches, {"pixel_values": patches, IMAGE_GRID: grid}),
    ):
        names = [one.name for one in graph.get_outputs()]
        found = {name: np.asarray(value) for name, value in zip(names, graph.run(names, feeds), strict=True)}
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if not name.startswith("window"):
                np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)
        if vision.window:
            assert_same_windows(found, expected)


def assert_same_windows(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same patches in each window, in any order; a graph fills all windows up to the same length."""
    members = [
        [set(row[mask == 1]) for row, mask in zip(each["window_patches"], each["window_mask"], strict=True)]
        for each in (found, expected)
    ]
    assert members[0] == members[1]
    flat = found["window_patches"].reshape(-1)
    np.testing.assert_array_equal(flat[found["window_places"]], np.arange(len(found["window_places"])))
