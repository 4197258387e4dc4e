"""The engine of CUDA with the CPU provider as its device: what differs between GPUs is left out, all else is real."""

from __future__ import annotations

from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.ort.runtime import ort
from tests.support.host_memory import HostMemory


class HostEngine(ResidentEngine):
    """The device is the machine's own memory."""

    reduces = True

    def start(self, path: str, options: ort.SessionOptions, *, captures: bool) -> ort.InferenceSession:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    def open_memory(self) -> HostMemory:
        return HostMemory()
