"""A vision encoder and its projector on ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.image_grid import encoder_inputs
from embedllm.backends.ort.runtime import first_line, load_errors, ort
from embedllm.errors import DeviceError
from embedllm.files.command_line import graph_command
from embedllm.package.graph_variants import VISION

if TYPE_CHECKING:
    from embedllm.package.graph_variants import GraphVariant
    from embedllm.package.package import Package
    from embedllm.types import F32


class OrtVision:
    """A graph of a folder's vision encoder on one device."""

    def __init__(
        self,
        package: Package,
        variant: GraphVariant,
        start: Callable[[str], ort.InferenceSession],
        *,
        lock: AbstractContextManager[object] | None = None,
        options: ort.RunOptions | None = None,
    ) -> None:
        """start: makes a session of a file. lock: taken for every run. options: of every run. Raises DeviceError."""
        vision, graph = package.decoder.vision, package.graph(variant.name)
        assert vision is not None
        if graph is None:
            raise DeviceError(
                f"'{package.name}' has no graph of its vision encoder. Write it with: "
                f"{graph_command(package.folder, variant.name)}"
            )
        self._vision = vision
        self._dtype = np.dtype(graph.activations)
        self._lock, self._options = lock or nullcontext(), options
        path = package.folder / graph.file
        with load_errors(path):
            self._session = start(os.fspath(path))

    def encode(self, pixel_values: F32) -> F32:
        inputs = {name: array.astype(self._dtype, copy=False) if array.dtype == np.float32 else array
                  for name, array in encoder_inputs(self._vision, pixel_values).items()}  # fmt: skip
        try:
            with self._lock:
                features = self._session.run(["image_features"], inputs, self._options)[0]
        except Exception as error:
            raise DeviceError(f"ONNX Runtime failed on an image: {first_line(error)}") from error
        return np.asarray(features)[0].astype(np.float32, copy=False)


def open_on_cpu(package: Package, options: ort.SessionOptions, variant: GraphVariant = VISION) -> OrtVision:
    """On ONNX Runtime's CPU provider. Raises DeviceError."""
    return OrtVision(package, variant, lambda path: ort.InferenceSession(
        path, options, providers=["CPUExecutionProvider"], enable_fallback=0))  # fmt: skip
