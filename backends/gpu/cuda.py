"""ONNX Runtime's CUDA provider: decoding steps are replayed as a captured CUDA graph.

A step of a small model is hundreds of kernels of microseconds each, and launching them one by one costs more than they
do. A captured graph is launched as a whole.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from embedllm.backends.base import Device
from embedllm.backends.gpu.cuda_driver import gpus, stream
from embedllm.backends.gpu.cuda_memory import CudaMemory, memory_of
from embedllm.backends.gpu.draft_head import DeviceHeadEngine
from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.gpu.on_device import OnDevice
from embedllm.backends.ort.plugins import quiet
from embedllm.backends.ort.runtime import first_line, ort
from embedllm.backends.system.host_tuning import ENVIRONMENT, is_on
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import WITH_QMOE
from embedllm.package.onnx_reader import read_graph_summary
from embedllm.package.package import Package

PROVIDER = "CUDAExecutionProvider"


def devices() -> list[Device]:
    """The NVIDIA GPUs that a session can be made on; without the provider, one that says what to install."""
    backend = f"onnxruntime {ort.__version__}"
    if PROVIDER not in ort.get_available_providers():
        lack, remedy = "this build of ONNX Runtime has no CUDA provider", _INSTALL
        return [Device(name="cuda", backend=backend, description="", available=False, reason=lack, remedy=remedy)]
    nvidia_gpus = gpus()
    if not nvidia_gpus:
        lack, remedy = "NVIDIA's driver is not here, or finds no GPU", "check with nvidia-smi"
        return [Device(name="cuda", backend=backend, description="", available=False, reason=lack, remedy=remedy)]
    return [
        Device(
            name="cuda" if index == 0 else f"cuda:{index}",
            backend=backend,
            description=f"{gpu.name}, compute capability {gpu.capability}",
            available=True,  # as far as can be seen without memory and time of each; the probe tells the rest
            memory=gpu.memory,
        )
        for index, gpu in enumerate(nvidia_gpus)
    ]


# by GPU, whose stream all engines share
_LOCKS: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)
_CHECK = "check the driver with nvidia-smi; the CUDA libraries come with onnxruntime-gpu[cuda,cudnn]"
_INSTALL = "pip uninstall onnxruntime, then pip install onnxruntime-gpu[cuda,cudnn], which takes its place"


_FIRST_QMOE = 8  # compute capability that its kernels for integers need
_PREFIX_SHARE = 1 / 16  # of the memory that is free behind the weights, for KV that calls have in common


def index_of(name: str) -> int:
    """0 for "cuda", 1 for "cuda:1"."""
    return int(name.partition(":")[2] or 0)


class _OnCuda(OnDevice):
    """What engines on an NVIDIA GPU have in common."""

    def __init__(self, package: Package, graph: Graph, device: Device, *, capture: bool = True) -> None:
        self.index = index_of(device.name)
        self.where = ("cuda", self.index)
        # where an expert gathers its tokens, their number is known as it runs only: a captured run has one for ever
        capture = capture and not (package.decoder.is_mixture and gathers_tokens(package, graph))
        super().__init__(package, graph, device, capture=capture, lock=_LOCKS[self.index])

    def start(self, model: str | bytes, options: ort.SessionOptions, *, captures: bool) -> ort.InferenceSession:
        return start(model, options, self.index, captures=captures)

    def open_memory(self) -> CudaMemory:
        return memory_of(self.index)


class CudaEngine(_OnCuda, ResidentEngine):
    """A folder's graph on one NVIDIA GPU."""

    reduces = True

    def __init__(self, package: Package, graph: Graph, device: Device, *, capture: bool = True) -> None:
        super().__init__(package, graph, device, capture=capture)
        self.prefix_bytes = int(self.memory.free_bytes() * _PREFIX_SHARE)


class CudaHeadEngine(_OnCuda, DeviceHeadEngine):
    """A draft head on one NVIDIA GPU."""


def unsupported_graph(graph: Graph, index: int) -> str:
    """Why another graph of a folder has to be used on a GPU; empty for one that runs there."""
    capability = gpus()[index].capability
    if graph.variant not in WITH_QMOE or int(capability.partition(".")[0]) >= _FIRST_QMOE:
        return ""
    return f"QMoE is for GPUs of compute capability {_FIRST_QMOE}.0 and later; this one has {capability}"


def gathers_tokens(package: Package, graph: Graph) -> bool:
    """Whether some expert of a mixture is computed by standard operators."""
    if graph.variant not in WITH_QMOE:
        return True
    return any(node.operator == "NonZero" for node in read_graph_summary(package.folder / graph.file).nodes)


def start(
    model: str | bytes, options: ort.SessionOptions, index: int, *, captures: bool, tf32: bool = True
) -> ort.InferenceSession:
    """A session on a GPU, whose steps are captured or not. tf32: products round float32 to 10 bits."""
    _load_libraries()
    with _SETTINGS, quiet(), _fast_attention():  # CUDA is no plug-in, which ONNX Runtime warns of
        try:
            options.add_provider(PROVIDER, _provider_options(index, capture=captures, tf32=tf32))
            return ort.InferenceSession(model, options, enable_fallback=0)
        except Exception as error:
            if missing := _load_libraries():  # of which ONNX Runtime's own message does not tell
                raise RuntimeError(f"{first_line(error)} {missing.splitlines()[0]}; {_CHECK}") from error
            raise


def lock_of(index: int) -> threading.RLock:
    """Of a GPU, whose stream all engines share: for whoever runs something there."""
    return _LOCKS[index]


def _provider_options(index: int, *, capture: bool, tf32: bool) -> dict[str, str]:
    options = {
        "device_id": str(index),
        "arena_extend_strategy": "kSameAsRequested",
        "use_ep_level_unified_stream": "1",  # all nodes on one stream: a step waits for nothing else
    }
    if shared := stream(index):
        options |= {"has_user_compute_stream": "1", "user_compute_stream": str(shared)}
    if os.environ.get(_XQA) != "0":
        options["sdpa_kernel"] = _WITHOUT_PLANS
    return options | ({"enable_cuda_graph": "1"} if capture else {}) | ({} if tf32 else {"use_tf32": "0"})


_SETTINGS = threading.RLock()  # for one thread at a time: the environment is the whole process's


@contextmanager
def _fast_attention() -> Iterator[None]:
    """With cuDNN's attention for steps where it is there, instead of the kernel that ONNX Runtime 1.31 prefers.

    It was faster at every length from 500 to 30,000 tokens; without cuDNN that kernel is (docs/cuda.md). A session
    chooses when it is made. What the environment says goes before, and only where the host allows it is it changed.
    """
    if _XQA in os.environ or not is_on(ENVIRONMENT) or not _has_cudnn():
        yield
        return
    os.environ[_XQA] = "0"
    try:
        yield
    finally:
        os.environ.pop(_XQA, None)


_XQA = "ORT_ENABLE_XQA"
# attention of prompts: flash, memory-efficient or unfused; cuDNN's plans each new length of a prompt for 0.2 s
_WITHOUT_PLANS = str(1 | 2 | 16)


def _has_cudnn() -> bool:
    try:
        ctypes.CDLL("cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9")
    except OSError:
        return False
    return True


@cache
def _load_libraries() -> str:
    """CUDA's libraries from where pip puts them; those of the system are found without. What was not found there."""
    preload = getattr(ort, "preload_dlls", None)
    messages: list[str] = []

    def note(*words: object, **_: object) -> None:
        messages.append(" ".join(map(str, words)))

    if preload is not None:
        # it prints what it does not find; the application's stdout is not ours to turn round meanwhile
        with _SETTINGS, _patched(preload.__globals__, "print", note):
            preload()
    for line in messages:
        _log.info("%s", line)
    return "\n".join(messages)


@contextmanager
def _patched(names: dict[str, object], name: str, value: object) -> Iterator[None]:
    """Within the block a module has another thing under a name that it does not define itself."""
    names[name] = value
    try:
        yield
    finally:
        del names[name]


_log = logging.getLogger("embedllm")
