"""An embedding or reranker (cross-encoder) model on ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.ort.engine import session_options
from embedllm.backends.ort.runtime import first_line, load_errors, ort
from embedllm.backends.reference.encoder_engine import EncoderEngine, describe_size
from embedllm.errors import DeviceError

if TYPE_CHECKING:
    from embedllm.backends.base import OpenOptions
    from embedllm.backends.reference.encoder_engine import Inputs
    from embedllm.types import F32


def open_cpu(options: OpenOptions) -> EncoderEngine:
    """On ONNX Runtime's CPU provider. Raises DeviceError."""
    own = session_options(options.runtime, options.exact)
    return open_on_ort(options, lambda path: ort.InferenceSession(
        path, own, providers=["CPUExecutionProvider"], enable_fallback=0))  # fmt: skip


def open_on_ort(
    options: OpenOptions,
    start: Callable[[str], ort.InferenceSession],
    *,
    lock: AbstractContextManager[object] | None = None,
) -> EncoderEngine:
    """lock: taken for every run. Raises DeviceError."""
    path = options.package.folder / options.require_graph().file
    with load_errors(path):
        session = start(os.fspath(path))

    def run(inputs: Inputs) -> F32:
        try:
            with lock or nullcontext():
                hidden = session.run(["hidden"], inputs)[0]
        except Exception as error:
            raise DeviceError(f"ONNX Runtime failed on {describe_size(inputs)}: {first_line(error)}") from error
        return np.asarray(hidden).astype(np.float32, copy=False)

    return EncoderEngine(options.package, options.device, run)
