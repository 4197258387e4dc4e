"""A vision encoder and its projector on OpenVINO, and the inputs by which a decoder takes what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.images import check_tile
from embedllm.backends.openvino.runtime import as_device_error, core, ov
from embedllm.errors import DeviceError
from embedllm.package.graph_variants import VISION_OPENVINO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedllm.package.architecture import Decoder
    from embedllm.package.package import Package
    from embedllm.types import F32

op = ov.opset13
IMAGE_INPUTS = ("image_features", "image_positions")
# what a decoder's first layer is given, by the first of these layers that the model has
_EMBEDDED = ("embedding.normed", "embedding.with_positions", "embedding.multiplied", "embedding.columns", "embedding")


class OvVision:
    """The model of a folder's vision encoder."""

    def __init__(self, package: Package, target: str, properties: Mapping[str, object]) -> None:
        """Raises DeviceError."""
        vision, graph = package.decoder.vision, package.graph(VISION_OPENVINO)
        assert vision is not None
        if graph is None:
            raise DeviceError(
                f"'{package.name}' has no OpenVINO model of its vision encoder. Write it with: embedllm graph "
                f"{package.folder} --variant {VISION_OPENVINO}"
            )
        self._vision = vision
        path = package.folder / graph.file
        with as_device_error(f"cannot load '{path}' on {target}"):
            model = core().read_model(path, package.weights)
            model.reshape({"pixel_values": [1, 3, vision.image_size, vision.image_size]})
            self._request = core().compile_model(model, target, dict(properties)).create_infer_request()

    def encode(self, pixel_values: F32) -> F32:
        tile = check_tile(self._vision, pixel_values)
        with as_device_error("failed on an image"):
            self._request.infer({"pixel_values": tile})
            return self._request.get_output_tensor(0).data[0].astype(np.float32)  # a copy


def add_images(model: ov.Model, decoder: Decoder) -> None:
    """Adds the inputs `image_features` [rows, hidden] and `image_positions` [rows], places among all tokens of a run.

    Not in the file, because openvino-genai takes four inputs and no more. Raises RuntimeError.
    """
    named = {node.get_friendly_name(): node for node in model.get_ops()}
    node = next((named[name] for name in _EMBEDDED if name in named), None)
    if node is None:
        raise RuntimeError("the model has no layer 'embedding'")
    features = op.parameter([-1, decoder.hidden], ov.Type.f32, name="image_features")
    positions = op.parameter([-1], ov.Type.i64, name="image_positions")
    for parameter, name in zip((features, positions), IMAGE_INPUTS, strict=True):
        parameter.output(0).set_names({name})
    readers = node.output(0).get_target_inputs()
    flat = op.reshape(node, op.constant([-1, decoder.hidden], ov.Type.i64), special_zero=False)
    placed = op.scatter_update(flat, positions, features, op.constant(0, ov.Type.i64))
    whole = op.reshape(placed, op.shape_of(node), special_zero=False)
    for reader in readers:
        reader.replace_source_output(whole.output(0))
    model.add_parameters([features, positions])
    model.validate_nodes_and_infer_types()


def image_inputs(decoder: Decoder, features: F32 | None, places: Sequence[int]) -> dict[str, np.ndarray]:
    """Those inputs; features: None where all tokens are text."""
    if features is None:
        features = np.zeros((0, decoder.hidden), np.float32)
    return {"image_features": features, "image_positions": np.array(places, np.int64)}
