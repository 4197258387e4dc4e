"""ONNX Runtime's CUDA provider: decoding steps are replayed as a captured CUDA graph.

A step of a small model is hundreds of kernels of microseconds each, and launching them one by one costs more than they
do. A captured graph is launched as a whole.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from embedllm.backends.base import Device
from embedllm.backends.cuda_driver import gpus, stream
from embedllm.backends.ort import first_line, ort
from embedllm.backends.resident import ResidentEngine
from embedllm.package import Graph, Package

PROVIDER = "CUDAExecutionProvider"
_QUIET, _WARNING = 4, 2  # log severities; the second is what ONNX Runtime starts with


def devices() -> list[Device]:
    """The NVIDIA GPUs that a session can be made on; without the provider, one that says what to install."""
    backend = f"onnxruntime {ort.__version__}"
    if PROVIDER not in ort.get_available_providers():
        lack, remedy = "this build of ONNX Runtime has no CUDA provider", _INSTALL
        return [Device(name="cuda", backend=backend, description="", available=False, reason=lack, remedy=remedy)]
    missing = _load_libraries()
    known = gpus()
    found: list[Device] = []
    for index in range(max(1, len(known))):
        lack = _lack(index)
        if lack and missing:  # ONNX Runtime's own message does not tell of libraries
            lack += f". {missing.splitlines()[0]}"
        remedy = _CHECK if lack else ""
        gpu = known[index] if known else None
        found.append(
            Device(
                name="cuda" if index == 0 else f"cuda:{index}",
                backend=backend,
                description=f"{gpu.name}, compute capability {gpu.capability}" if gpu else "",
                available=not lack,
                reason=lack,
                remedy=remedy,
                memory=gpu.memory if gpu else 0,
            )
        )
    return found


# by GPU, whose stream all engines share
_LOCKS: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)
_CHECK = "check the driver with nvidia-smi; the CUDA libraries come with onnxruntime-gpu[cuda,cudnn]"
_INSTALL = "pip uninstall onnxruntime, then pip install onnxruntime-gpu[cuda,cudnn], which takes its place"


def index_of(name: str) -> int:
    """0 for "cuda", 1 for "cuda:1"."""
    return int(name.partition(":")[2] or 0)


class CudaEngine(ResidentEngine):
    """A folder's graph on one NVIDIA GPU."""

    reduces = True

    def __init__(self, package: Package, graph: Graph, device: Device, *, capture: bool = True) -> None:
        self.index = index_of(device.name)
        self.where = ("cuda", self.index)
        _load_libraries()
        super().__init__(package, graph, device, capture=capture, lock=_LOCKS[self.index])

    def start(self, path: str, options: ort.SessionOptions) -> ort.InferenceSession:
        with _unlogged(), _fast_attention():
            options.add_provider(PROVIDER, _provider_options(self.index, capture=self.captures))
            return ort.InferenceSession(path, options, enable_fallback=0)


def _provider_options(index: int, *, capture: bool) -> dict[str, str]:
    options = {
        "device_id": str(index),
        "arena_extend_strategy": "kSameAsRequested",
        "use_ep_level_unified_stream": "1",  # all nodes on one stream: a step waits for nothing else
    }
    if shared := stream(index):
        options |= {"has_user_compute_stream": "1", "user_compute_stream": str(shared)}
    return options | ({"enable_cuda_graph": "1"} if capture else {})


@contextmanager
def _unlogged() -> Iterator[None]:
    """Without the warning that CUDA is no plug-in, which ONNX Runtime 1.31 writes whatever a session's severity."""
    ort.set_default_logger_severity(_QUIET)
    try:
        yield
    finally:
        ort.set_default_logger_severity(_WARNING)


@contextmanager
def _fast_attention() -> Iterator[None]:
    """With cuDNN's attention for steps where it is there, instead of the kernel that ONNX Runtime 1.31 prefers.

    It was faster at every length from 500 to 30,000 tokens; without cuDNN that kernel is (docs/cuda.md). A session
    chooses when it is made. What the environment says goes before.
    """
    if _XQA in os.environ or not _has_cudnn():
        yield
        return
    os.environ[_XQA] = "0"
    try:
        yield
    finally:
        os.environ.pop(_XQA, None)


_XQA = "ORT_ENABLE_XQA"


def _has_cudnn() -> bool:
    try:
        ctypes.CDLL("cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9")
    except OSError:
        return False
    return True


def _load_libraries() -> str:
    """CUDA's libraries from where pip puts them; those of the system are found without. What was not found there."""
    preload = getattr(ort, "preload_dlls", None)
    said = io.StringIO()
    if preload is not None:
        with redirect_stdout(said):  # it prints that
            preload()
    if said.getvalue():
        _log.info("%s", said.getvalue().strip())
    return said.getvalue().strip()


def _lack(index: int) -> str:
    """Why no session can be made on a GPU; empty when one was made."""
    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    try:
        with _unlogged():
            options.add_provider(PROVIDER, _provider_options(index, capture=False))
            ort.InferenceSession(_NOTHING, options, enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - whatever it is, the device cannot be used, and this says why
        return f"no session can be made on it: {first_line(error)}"
    return ""


_log = logging.getLogger("embedllm")
# an ONNX model of one Neg of float32 [1], opset 21
_NOTHING = bytes.fromhex(
    "080a3a320a0b0a017812017922034e656712016e5a0f0a0178120a0a08080112040a020801620f0a0179120a0a0808011204"
    "0a02080142040a001015"
)
