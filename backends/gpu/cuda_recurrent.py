"""A recurrent model on one NVIDIA GPU: sequences take turns, kernel by kernel.

Not backends/gpu/io_binding_engine.py's slots: a step of several sequences would change the states of those that only
lie between them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import LARGER_EXPORT, Session
from embedllm.backends.gpu.cuda import index_of, lock_of, start
from embedllm.backends.gpu.images import RECURRENT_UNSUPPORTED
from embedllm.backends.gpu.io_binding_engine import CHUNK
from embedllm.backends.gpu.recurrent_session import RecurrentSession
from embedllm.backends.gpu.unbatched_session import Buffers
from embedllm.backends.ort.runtime import (
    HEAVY,
    check_assignments,
    device_errors,
    load_errors,
    ort,
    recording_options,
)
from embedllm.backends.sessions.recurrent_session import StatefulSession

if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.backends.gpu.webgpu_kv import KvCopier
    from embedllm.backends.images import ImageFeatures
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package


class RecurrentCudaEngine:
    """A folder's graph with states beside its KV."""

    def __init__(self, package: Package, graph: Graph, device: Device) -> None:
        """Raises DeviceUnavailable when part of the work would run on the CPU, DeviceError when it cannot be loaded."""
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = LARGER_EXPORT
        self.dtype: type[np.floating] = np.float16 if graph.activations == "float16" else np.float32
        self.chunk = CHUNK
        self.images: ImageFeatures | None = None
        self.images_unsupported = None if package.decoder.vision is None else RECURRENT_UNSUPPORTED
        self.copier: KvCopier | None = None  # KV that moves goes through the host
        self._index = index_of(device.name)
        self.lock = lock_of(self._index)
        self._session: ort.InferenceSession | None = None
        path = package.folder / graph.file
        with load_errors(path), self.lock:
            self._session = start(os.fspath(path), recording_options(), self._index, captures=False)
        check_assignments(self._session, HEAVY, device, "please report it")
        self._warm_up()

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> Session:
        return StatefulSession(self, RecurrentSession(self, capacity))

    def close(self) -> None:
        self._session = None

    def place(self, array: np.ndarray) -> ort.OrtValue:
        with self.lock, device_errors(self.device):
            return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", self._index)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        with self.lock, device_errors(self.device):
            value.update_inplace(np.ascontiguousarray(array))

    def read(self, value: ort.OrtValue) -> np.ndarray:
        with self.lock, device_errors(self.device):
            return value.numpy()

    def take(self, capacity: int) -> Buffers:
        return Buffers(self, capacity)

    def give_back(self, buffers: Buffers) -> None:
        buffers.close()

    def _warm_up(self) -> None:
        session = self.open()
        try:
            for count in {1, min(16, self.context)}:
                session.rewind(0)
                session.feed([0] * count)
        finally:
            session.close()
