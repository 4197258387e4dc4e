"""A vision encoder and its projector on ONNX Runtime."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.images import check_tile
from embedllm.backends.ort.runtime import first_line, load_errors, ort
from embedllm.errors import DeviceError
from embedllm.package.graph_variants import VISION

if TYPE_CHECKING:
    from embedllm.package.package import Package
    from embedllm.types import F32


class OrtVision:
    """The graph of a folder's vision encoder on the CPU."""

    def __init__(self, package: Package, options: ort.SessionOptions) -> None:
        """Raises DeviceError."""
        vision, graph = package.decoder.vision, package.graph(VISION.name)
        assert vision is not None
        if graph is None:
            raise DeviceError(
                f"'{package.name}' has no graph of its vision encoder. Write it with: embedllm graph {package.folder} "
                f"--variant {VISION.name}"
            )
        self._vision = vision
        path = package.folder / graph.file
        with load_errors(path):
            self._session = ort.InferenceSession(
                os.fspath(path), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )

    def encode(self, pixel_values: F32) -> F32:
        tile = check_tile(self._vision, pixel_values)
        try:
            return np.asarray(self._session.run(["image_features"], {"pixel_values": tile})[0])[0]
        except Exception as error:
            raise DeviceError(f"ONNX Runtime failed on an image: {first_line(error)}") from error
