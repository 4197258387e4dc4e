"""Where a graph runs that another exporter has written: how it is loaded there, and where its keys and values lie."""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.gpu.session import device_errors
from embedllm.backends.options import DEFAULT, RuntimeOptions
from embedllm.backends.ort.engine import CHUNK, session_options
from embedllm.backends.ort.runtime import ort

_QUIET = 4  # log severity "fatal": errors are raised here, and a library does not print
# operators that do the work: none of them may be left to the CPU
_HEAVY = frozenset(
    {"Attention", "DynamicQuantizeMatMul", "Gemm", "GroupQueryAttention", "MatMul", "MatMulBnb4", "MatMulInteger",
     "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "QMoE"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One device, as the engine of traced graphs needs it."""

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

    def held(self, value: ort.OrtValue) -> np.ndarray:
        """What is there; on the host that itself, else a copy."""
        with self.lock, device_errors(self.device):
            return value.numpy() if value.device_name().lower() == "cpu" else self.get(value)


def on_host(device: Device, runtime: RuntimeOptions = DEFAULT, *, exact: bool = False) -> Placement:
    """The CPU's provider. exact: float activations, whatever the graph allows."""

    def start(path: str) -> ort.InferenceSession:
        options = session_options(runtime, exact)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    return Placement(device=device, start=start)


def on_cuda(device: Device) -> Placement:
    """An NVIDIA GPU."""
    from embedllm.backends.gpu import cuda
    from embedllm.backends.gpu.io_binding_engine import CHUNK

    index = cuda.index_of(device.name)
    return Placement(
        device=device,
        start=lambda path: cuda.start(path, _options(), index, captures=False, tf32=False),
        where=("cuda", index),
        put=lambda array: ort.OrtValue.ortvalue_from_numpy(array, "cuda", index),
        chunk=CHUNK,
        lock=cuda.lock_of(index),
        heavy=_HEAVY,
    )


def on_webgpu(device: Device) -> Placement:
    """The GPU that the WebGPU plug-in takes. Raises DeviceError when it does not run."""
    from embedllm.backends.gpu import webgpu

    return Placement(
        device=device,
        start=lambda path: webgpu.start(path, _options()),
        where=("webgpu", 0),
        put=webgpu.put,
        get=webgpu.get,
        chunk=webgpu.chunk(),
        lock=webgpu.LOCK,
        heavy=_HEAVY,
    )


def on_directml(device: Device, context: int, *, provider: str = "") -> Placement:
    """A GPU of Windows, whose attention is told how long its buffers are, and takes a prompt in one piece.

    As docs/directml.md has it. context: tokens that a session can hold.
    provider: as DirectMLEngine has it, for checking; empty: DirectML's.
    """
    from embedllm.backends.gpu import directml

    chosen = provider or directml.PROVIDER
    number = directml.number_of(device.name) if chosen == directml.PROVIDER else 0
    where = ("dml" if chosen == directml.PROVIDER else "cpu", number)
    return Placement(
        device=device,
        start=lambda path: directml.start(path, chosen, number),
        where=where,
        put=lambda array: ort.OrtValue.ortvalue_from_numpy(array, *where),
        chunk=context,
        lock=directml.LOCK,
        heavy=_HEAVY if chosen == directml.PROVIDER else frozenset(),
        pads=True,
    )


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options
