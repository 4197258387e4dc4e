"""An embedding or reranker (cross-encoder) model on ONNX Runtime's CUDA provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.backends.gpu.cuda import index_of, lock_of, start
from embedllm.backends.ort.encoder import open_on_ort
from embedllm.backends.ort.engine import session_options

if TYPE_CHECKING:
    from embedllm.backends.base import OpenOptions
    from embedllm.backends.reference.encoder_engine import EncoderEngine


def open_cuda(options: OpenOptions) -> EncoderEngine:
    """Raises DeviceError."""
    index, own = index_of(options.device.name), session_options(options.runtime, exact=False)
    return open_on_ort(options, lambda path: start(path, own, index, captures=False), lock=lock_of(index))
