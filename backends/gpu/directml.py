"""ONNX Runtime's DirectML provider: any GPU of Windows that has Direct3D 12.

The graph and the session follow what its attention can do: docs/directml.md.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.checks import cannot_run
from embedllm.backends.gpu.directml_session import Buffers, DirectMLSession
from embedllm.backends.ort.runtime import (
    HEAVY,
    check_assignments,
    device_errors,
    first_line,
    load_errors,
    ort,
    recording_options,
)
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import DIRECTML
from embedllm.package.package import Package

PROVIDER = "DmlExecutionProvider"
_CPU = "CPUExecutionProvider"
_STEP = 1024  # tokens; capacities are multiples of it
_WINDOWS = sys.platform == "win32"
_INSTALL = "pip uninstall onnxruntime, then pip install onnxruntime-directml, which takes its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A GPU of Windows."""

    number: int  # DXGI's, which the provider takes
    description: str
    memory: int = 0  # bytes of its own; 0: the machine's, or not told


def devices() -> list[Device]:
    """The GPUs, those included that no session can be made on; without the provider, one that says what to install.

    They are called "directml", "directml:1" and so on, the fastest first where ONNX Runtime knows Windows' order.
    """
    backend = f"onnxruntime {ort.__version__}"
    if PROVIDER not in ort.get_available_providers():
        lack = f"the installed ONNX Runtime {ort.__version__} has no DirectML provider"
        remedy = _INSTALL if _WINDOWS else "DirectML is Windows only"
        return [Device(name="directml", backend=backend, description="", available=False, reason=lack, remedy=remedy)]
    listed = _adapters()
    gpus = [_device(rank, adapter, backend) for rank, adapter in enumerate(listed or _UNLISTED)]
    while not listed and len(gpus) > 1 and not gpus[-1].available:
        del gpus[-1]  # there may be no such adapter
    return gpus


def number_of(name: str) -> int:
    """Which adapter "directml" or "directml:1" is, as DXGI counts them."""
    return (_adapters() or _UNLISTED)[int(name.partition(":")[2] or 0)].number


class DirectMLEngine:
    """A folder's DirectML graph on one GPU."""

    def __init__(self, package: Package, graph: Graph, device: Device, *, provider: str = PROVIDER) -> None:
        """provider: "CPUExecutionProvider" runs the same graph and session without DirectML, for checking.

        Raises DeviceUnavailable for a model that DirectML cannot run, or when part of the work would run on the CPU.
        """
        self.device = device
        self.package = package
        self.context = package.context
        self.chunk = package.context  # a prompt goes in one piece
        self.remedy = package.larger_context
        self.dtype: type[np.floating] = np.float16 if graph.activations == "float16" else np.float32
        self.lock = LOCK
        number = number_of(device.name) if provider == PROVIDER else 0
        self._where = ("dml" if provider == PROVIDER else "cpu", number)  # of the KV, in ONNX Runtime's words
        if lack := DIRECTML.unsupported(package.decoder):
            raise cannot_run(device, lack, "use another device")
        path = package.folder / graph.file
        with load_errors(path), self.lock:
            self._session: ort.InferenceSession | None = start(os.fspath(path), provider, number)
        if provider == PROVIDER:
            check_assignments(self._session, HEAVY, device, "please report it")

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> DirectMLSession:
        return DirectMLSession(self, capacity)

    def close(self) -> None:
        self._session = None

    def place(self, array: np.ndarray) -> ort.OrtValue:
        with self.lock, device_errors(self.device):
            return ort.OrtValue.ortvalue_from_numpy(array, *self._where)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        with self.lock, device_errors(self.device):
            value.update_inplace(np.ascontiguousarray(array))

    def read(self, value: ort.OrtValue) -> np.ndarray:
        with self.lock, device_errors(self.device):
            return np.array(value.numpy())  # which is a view where memory is the host's

    def take(self, capacity: int) -> Buffers:
        """Buffers for `capacity` tokens."""
        with self.lock:
            return Buffers(self, min(-(-max(capacity, 1) // _STEP) * _STEP, self.context))

    def give_back(self, buffers: Buffers) -> None:
        """None are kept: their memory goes when nobody holds them."""


def start(model: str | bytes, provider: str, number: int) -> ort.InferenceSession:
    """A session that falls back to nothing else."""
    options = recording_options()
    options.enable_mem_pattern = False  # this and sequential execution: DirectML takes nothing else
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    with_options = (provider, {"device_id": str(number)}) if provider == PROVIDER else _CPU
    return ort.InferenceSession(model, options, providers=[with_options], enable_fallback=0)


def _lack(number: int) -> str:
    """Why no session can be made on an adapter; empty when one was made."""
    try:
        start(_NOTHING, PROVIDER, number)
    except Exception as error:  # noqa: BLE001 - whatever it is, the device cannot be used, and this says why
        return f"no session can be made on it: {first_line(error)}"
    return ""


def _device(rank: int, adapter: Adapter, backend: str) -> Device:
    lack = _lack(adapter.number)
    return Device(
        name=f"directml:{rank}" if rank else "directml",
        backend=backend,
        description=adapter.description,
        available=not lack,
        reason=lack,
        remedy="update the graphics driver; Direct3D 12 is needed" if lack else "",
        memory=adapter.memory,
    )


def _adapters() -> list[Adapter]:
    """The GPUs that this ONNX Runtime lists, in Windows' order of performance; none where it lists none."""
    listed = getattr(ort, "get_ep_devices", list)()
    metadata = [entry.device.metadata for entry in listed if entry.ep_name == PROVIDER]
    entries = [entry for entry in metadata if entry.get(_NUMBER, "").isdecimal()]
    return [_adapter(entry) for entry in sorted(entries, key=_slowness)]


def _slowness(metadata: Mapping[str, str]) -> tuple[float, bool, int]:
    """DXGI's own number often has the processor's GPU first, which shows the desktop."""
    rank = metadata.get("DxgiHighPerformanceIndex", "")
    return int(rank) if rank.isdecimal() else math.inf, not _is_discrete(metadata), int(metadata[_NUMBER])


def _adapter(metadata: Mapping[str, str]) -> Adapter:
    number, memory = int(metadata[_NUMBER]), metadata.get("DxgiVideoMemory", "").removesuffix(" MB")
    return Adapter(
        number=number,
        description=" ".join(metadata.get("Description", "").split()) or f"DirectML adapter {number}",
        # a GPU of the processor has a little of its own, and works in the machine's
        memory=int(memory) * 2**20 if memory.isdecimal() and _is_discrete(metadata) else 0,
    )


def _is_discrete(metadata: Mapping[str, str]) -> bool:
    return metadata.get("Discrete") == "1"


_NUMBER = "DxgiAdapterNumber"
# number of adapters to try where ONNX Runtime lists none
_UNLISTED = [Adapter(number=number, description=f"DirectML adapter {number}") for number in range(4)]
# an ONNX model of one Neg of float32 [1], opset 21
_NOTHING = bytes.fromhex(
    "080a3a320a0b0a017812017922034e656712016e5a0f0a0178120a0a0808011204"
    "0a020801620f0a0179120a0a08080112040a02080142040a001015"
)
# a session takes one run at a time; nothing says that several may make or copy buffers
LOCK = threading.RLock()
