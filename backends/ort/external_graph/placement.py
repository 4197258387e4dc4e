"""Where a graph runs that another exporter has written: how it is loaded there, and where its keys and values lie."""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.backends.ort.engine import CHUNK, session_options
from embedllm.backends.ort.runtime import device_errors, ort

# operators that do the work: none of them may be left to the CPU
HEAVY_OPERATORS = frozenset(
    {"Attention", "DynamicQuantizeMatMul", "Gemm", "GroupQueryAttention", "MatMul", "MatMulBnb4", "MatMulInteger",
     "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "QMoE"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One device, as the engine of external graphs needs it."""

    device: Device
    start: Callable[[str], ort.InferenceSession]  # loads a graph, without falling back to another device
    where: tuple[str, int] = ("cpu", 0)  # in ONNX Runtime's words: type and index
    put: Callable[[np.ndarray], ort.OrtValue] = ort.OrtValue.ortvalue_from_numpy  # the host's is no copy
    get: Callable[[ort.OrtValue], np.ndarray] = ort.OrtValue.numpy  # nor is this one
    chunk: int = CHUNK  # most tokens that are fed at once
    # held while anything is bound, run or copied
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    heavy: Set[str] = frozenset()  # operators of which none may be left to the CPU
    pads: bool = False  # where attention appends in place, masks are as long as its buffers, with zeros at their end

    @property
    def is_host(self) -> bool:
        return self.where[0] == "cpu"

    def hold(self, array: np.ndarray) -> ort.OrtValue:
        """An array on the device; on the host when it is empty, where a device has nothing to keep."""
        with self.lock, device_errors(self.device):
            return self.put(array) if array.size else ort.OrtValue.ortvalue_from_numpy(array)

    def read(self, value: ort.OrtValue) -> np.ndarray:
        """What is there; on the host that itself, else a copy."""
        with self.lock, device_errors(self.device):
            return value.numpy() if value.device_name().lower() == "cpu" else self.get(value)


def on_host(device: Device, runtime: RuntimeOptions = DEFAULT, *, exact: bool = False) -> Placement:
    """The CPU's provider. exact: float activations, whatever the graph allows."""

    def start(path: str) -> ort.InferenceSession:
        options = session_options(runtime, exact)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    return Placement(device=device, start=start)
