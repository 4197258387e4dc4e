"""An embedding or reranker (cross-encoder) model on a device of OpenVINO."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.openvino.engine import compile_folder
from embedllm.backends.openvino.properties import properties
from embedllm.backends.openvino.runtime import as_device_error, target_of
from embedllm.backends.options import OpenVINOOptions
from embedllm.backends.reference.encoder_engine import EncoderEngine, describe_size

if TYPE_CHECKING:
    from embedllm.backends.base import OpenOptions
    from embedllm.backends.reference.encoder_engine import Inputs
    from embedllm.types import F32


def open_openvino(options: OpenOptions) -> EncoderEngine:
    """Raises DeviceError."""
    target, own = target_of(options.device.name), options.openvino or OpenVINOOptions()
    config = properties(options.package, target, own, options.runtime.threads, options.exact)
    compiled = compile_folder(options.package, options.require_graph(), target, config, cut_logits=False)
    lock = threading.Lock()  # as in backends/openvino/engine.py

    def run(inputs: Inputs) -> F32:
        with lock, as_device_error(f"failed on {describe_size(inputs)}"):
            request = compiled.create_infer_request()
            request.infer(inputs)
            return request.get_output_tensor(0).data.astype(np.float32)  # a copy: the request goes

    return EncoderEngine(options.package, options.device, run)
