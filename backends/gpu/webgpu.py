"""ONNX Runtime's WebGPU provider, a plug-in: KV and logits stay on the GPU.

It runs on Vulkan, Direct3D 12 and Metal, through Dawn. There is one GPU of it in a process, which one thread at a time
may use. Which GPU that is the provider (0.4.0) does not tell and cannot be told: Dawn takes the one that it expects to
be fastest, and a software driver when there is no other.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from functools import cache
from pathlib import Path

import numpy as np

from embedllm.backends.base import LARGER_EXPORT, Device
from embedllm.backends.checks import cannot_run
from embedllm.backends.gpu.webgpu_attention_check import SAFE, attends_to_many
from embedllm.backends.gpu.webgpu_session import Buffers, WebGpuSession
from embedllm.backends.ort import plugins
from embedllm.backends.ort.runtime import device_errors, first_line, left_to_the_cpu, ort
from embedllm.backends.system import vulkan
from embedllm.errors import DeviceError
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import GPU_FLOAT32, WEBGPU_FLOAT16
from embedllm.package.package import Package

CHUNK = 512  # tokens of a prompt fed at once: short enough for a display driver's patience, and for an interrupt
ALLOW_SOFTWARE = "EMBEDLLM_ALLOW_SOFTWARE_GPU"  # environment variable: "1" makes software adapters available
_SPARE = 2  # buffers of closed sessions that wait for the next one
_QUIET = 4  # log severity "fatal": errors are raised here, and a library does not print
_WARM_UP = (32, 4, 1)  # tokens fed at once for which the provider has kernels of their own (docs/webgpu.md)
# operators that do the work: none of them may be left to the CPU
_HEAVY = {"MatMul", "MatMulNBits", "GroupQueryAttention", "GatherBlockQuantized", "SimplifiedLayerNormalization",
          "SkipSimplifiedLayerNormalization"}  # fmt: skip
_NO_FLOAT16 = "requires f16"  # "... Program MatMulNBits requires f16 but the device does not support it."
_DRIVER = "install the GPU's Vulkan driver: mesa-vulkan-drivers for Intel and AMD, NVIDIA's own for its GPUs"
_NO_GPU = ("ONNX Runtime finds no GPU here", "docs/webgpu.md tells where it looks")
_NUMBERS = {"tensor(float16)": np.float16, "tensor(float)": np.float32}


def devices() -> list[Device]:
    """The GPU that WebGPU runs on, others that it cannot be told to take, and what there is to say when there is none.

    They are called "webgpu", "webgpu:1" and so on, as ONNX Runtime lists them.
    """
    if not plugins.is_installed(plugins.WEBGPU):
        return [_missing(f"the package {plugins.WEBGPU.package} is not installed", plugins.WEBGPU.install)]
    try:
        found = plugins.devices(plugins.WEBGPU)
    except DeviceError as error:
        return [_missing(str(error), plugins.WEBGPU.install)]
    if not found:
        return [_missing(*_NO_GPU)]
    adapters = vulkan.adapters() if sys.platform == "linux" else []
    return [_listed(index, device, adapters) for index, device in enumerate(found)]


class WebGpuEngine:
    """A folder's float16 or float32 graph on the GPU."""

    def __init__(self, package: Package, graph: Graph, device: Device) -> None:
        """Loads the graph and runs it once, so that its shaders are compiled: the first time may take a minute.

        Raises DeviceUnavailable when the GPU cannot run this graph, or part of it would run on the CPU.
        """
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = LARGER_EXPORT
        self.dtype: type[np.floating] = np.float16 if graph.activations == "float16" else np.float32
        self.chunk = chunk()
        self.lock = LOCK
        self._spare: list[Buffers] = []
        if _is_packed(package.folder / graph.file):
            lack = f"'{graph.file}' is of an older version: its attention takes q, k and v in one tensor"
            rows = (WEBGPU_FLOAT16.name, GPU_FLOAT32.name)
            remedy = "; ".join(f"embedllm graph {package.folder} --variant {name}" for name in rows)
            raise cannot_run(device, lack, remedy)
        self._session: ort.InferenceSession | None = self._load(package.folder / graph.file)
        try:
            if left := left_to_the_cpu(self._session, _HEAVY):
                raise cannot_run(device, f"ONNX Runtime gave {', '.join(left)} to the CPU", "please report it")
            self._warm_up()
        except BaseException:
            self.close()
            raise

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def open(self, capacity: int = 0) -> WebGpuSession:
        return WebGpuSession(self, capacity)

    def close(self) -> None:
        self._spare.clear()
        self._session = None

    def place(self, array: np.ndarray) -> ort.OrtValue:
        with LOCK, device_errors(self.device):
            return put(array)

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None:
        with LOCK, device_errors(self.device):
            _write(value, array)

    def read(self, value: ort.OrtValue) -> np.ndarray:
        with LOCK, device_errors(self.device):
            return get(value)

    def take(self, capacity: int) -> Buffers:
        """Buffers for `capacity` tokens: those of a closed session when they are large enough."""
        with LOCK:
            for spare in self._spare:
                if spare.capacity >= capacity:
                    self._spare.remove(spare)
                    return spare
            return Buffers(self, capacity)

    def give_back(self, buffers: Buffers) -> None:
        with LOCK:
            if self._session is not None and len(self._spare) < _SPARE:
                self._spare.append(buffers)

    def _load(self, path: Path) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.log_severity_level = _QUIET
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        try:
            return start(os.fspath(path), options)
        except Exception as error:
            raise DeviceError(f"ONNX Runtime {ort.__version__} cannot load '{path}': {first_line(error)}") from error

    def _warm_up(self) -> None:
        start = time.monotonic()
        _log.info(
            "preparing '%s' for %s: the first time its shaders are compiled, which may take a minute; "
            "the driver keeps them", self.package.name, self.device.description,
        )  # fmt: skip
        session = self.open()
        try:
            for count in _WARM_UP:
                session.rewind(0)
                session.feed([0] * min(count, self.chunk, self.context))
        except DeviceError as error:
            if _NO_FLOAT16 not in str(error):
                raise
            lack, remedy = "the GPU has no 16-bit floats (shader-f16)", f"use the '{GPU_FLOAT32.name}' graph"
            raise cannot_run(self.device, lack, remedy) from error
        finally:
            session.close()
        _log.info("ready in %.1f s", time.monotonic() - start)


def start(path: str, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session on the GPU, without falling back to another device."""
    with LOCK, plugins.quiet():
        _attach(options)
        return ort.InferenceSession(path, options, enable_fallback=0)


def put(array: np.ndarray) -> ort.OrtValue:
    """A copy of an array on the GPU. Called with the lock held."""
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "webgpu")
    _write(value, array)
    return value


def get(value: ort.OrtValue) -> np.ndarray:
    """A copy of what is on the GPU. Called with the lock held."""
    copy = ort.OrtValue.ortvalue_from_shape_and_type(value.shape(), _NUMBERS[value.data_type()])
    ort.copy_tensors([value], [copy])
    return copy.numpy()


def chunk() -> int:
    """Most tokens that attention may be given at once. Raises DeviceError when the provider does not run."""
    return CHUNK if _attends_to_many() else SAFE


def _write(value: ort.OrtValue, array: np.ndarray) -> None:
    ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))], [value])


def _is_packed(path: Path) -> bool:
    """Whether a graph lacks the Split that this provider's attention needs for it: docs/webgpu.md#faults."""
    data = path.read_bytes()
    return b"Split" not in data and (b"qk_norm_epsilon" in data or b"local_window_size" in data)


def _attach(options: ort.SessionOptions) -> None:
    """Gives a session the provider."""
    options.add_provider_for_devices([plugins.devices(plugins.WEBGPU)[0].handle], {})


@cache
def _attends_to_many() -> bool:
    """Whether prompts may be fed in pieces of more than SAFE tokens."""
    try:
        with LOCK, plugins.quiet():
            right = attends_to_many(_attach)
    except Exception as error:
        raise DeviceError(f"ONNX Runtime {ort.__version__} cannot run on WebGPU: {first_line(error)}") from error
    if not right:
        _log.info("attention over many tokens is wrong here: prompts are fed by %d (docs/webgpu.md#faults)", SAFE)
    return right


def _listed(index: int, found: plugins.ProviderDevice, adapters: list[vulkan.Adapter] | None) -> Device:
    """A device of the provider. adapters: what the system's drivers drive, on Linux; None without a Vulkan loader."""
    name = f"webgpu:{index}" if index else "webgpu"
    backend = f"onnxruntime {ort.__version__}, WebGPU plug-in {found.version}"
    is_software, description, memory = found.kind == "CPU", found.description, found.memory
    lack, remedy = "", ""
    if index:
        lack = f"the plug-in ({found.version}) cannot be told which GPU to take; 'webgpu' is the one that it takes"
    elif sys.platform == "linux" and is_software and not adapters:
        lack, remedy = _NO_GPU
    elif sys.platform == "linux" and adapters is None:
        lack, remedy = "there is no Vulkan loader (libvulkan.so.1)", f"install libvulkan1; {_DRIVER}"
    elif sys.platform == "linux" and not adapters:
        lack, remedy = "no Vulkan driver drives a GPU here", _DRIVER
    elif adapters:
        is_software, description, memory = adapters[0].is_software, adapters[0].name, adapters[0].memory
    if is_software and not lack:
        description = f"{description}, software"
        if os.environ.get(ALLOW_SOFTWARE) != "1":
            lack = "only a software driver is there, slower than the CPU itself"
            needed = {ALLOW_SOFTWARE: "1", **plugins.WEBGPU.environment}  # without the second it lists no such adapter
            remedy = f"{_DRIVER}; for tests, set {' and '.join(f'{name}={value}' for name, value in needed.items())}"
    return Device(name=name, backend=backend, description=description, available=not lack, reason=lack, remedy=remedy,
                  memory=memory)  # fmt: skip


def _missing(reason: str, remedy: str) -> Device:
    backend = f"onnxruntime {ort.__version__}"
    return Device(name="webgpu", backend=backend, description="", available=False, reason=reason, remedy=remedy)


_log = logging.getLogger("embedllm")
LOCK = threading.RLock()  # one GPU, one queue of its work, for all engines of the process
