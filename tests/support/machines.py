"""Machines that are made up: which devices they have or lack, and what is chosen on them. Read by test_selection.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from embedllm.backends.base import Device

# what the devices of a machine lack: (reason, remedy). The texts are the library's own, in short
PLUG_IN = ("the package onnxruntime_ep_webgpu is not installed", "pip install onnxruntime-ep-webgpu")
NO_CUDA = ("this build of ONNX Runtime has no CUDAExecutionProvider", 'pip install "onnxruntime-gpu[cuda,cudnn]"')
NO_DIRECTML = ("this build of ONNX Runtime has no DmlExecutionProvider", "pip install onnxruntime-directml")
WINDOWS = ("it is for Windows only", "")
NO_INTEL = ("no Intel GPU is in this machine", "")
NO_OPENVINO = ("OpenVINO cannot be imported", "pip install openvino")
NO_OPENCL = ("OpenVINO finds no Intel GPU, or no OpenCL driver for it", "install the driver")
NO_ADAPTER = ("its provider lists no device", "")
NO_NPU = ("OpenVINO finds no NPU", "install the driver")
CONFLICT = ("onnxruntime-gpu 1.31.1 and onnxruntime 1.31.1 are installed and overwrite each other", "pip uninstall -y")
NO_GRAPH = ("'my-model' has no 'generic-float16' graph", "export the model again")
DEAD = ("no session can be made on it: CUDA failure 35", "check the driver with nvidia-smi")
NO_RUNTIME = ("ONNX Runtime cannot be imported", "pip install onnxruntime")
# what a probe or an engine says of a device that was listed as available
MISMATCH = "the probe failed: 'generic-float16': probe mismatch max|d|=0.64, expected at most 0.06"
HANGS = "the probe took longer than 120 s"
CRASHES = "the probe crashed (SIGSEGV)"
FULL = "ONNX Runtime 1.31.1 cannot load 'model.fp16.onnx': CUDA out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine, a wish, and what comes of it."""

    name: str
    system: str = "linux"  # as sys.platform
    there: dict[str, str] = field(default_factory=dict)  # device -> description
    lacking: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # device -> (reason, remedy)
    failing: dict[str, str] = field(default_factory=dict)  # of those that are there: what using it says
    wish: str | tuple[str, ...] = "auto"
    chosen: str | None  # None: nothing, an error
    passed: tuple[str, ...] = ()  # the devices that were tried before it, or in vain

    def devices(self) -> list[Device]:
        """As a listing gives them, the CPU and the reference among them unless they are named."""
        there = {"cpu": "", "reference": "slow"} | self.there
        found = [
            Device(name=name, backend=_backend(name), description=words, available=True)
            for name, words in there.items()
            if name not in self.lacking
        ]
        return found + [
            Device(name=name, backend=_backend(name), description="", available=False, reason=reason, remedy=remedy)
            for name, (reason, remedy) in self.lacking.items()
        ]

    def lack_of(self, name: str) -> tuple[str, str]:
        """Why a device that is passed over is not taken, and what helps."""
        return self.lacking.get(name) or (self.failing[name], "")


def _backend(name: str) -> str:
    return (
        "numpy 2.4"
        if name == "reference"
        else "openvino 2026.4.1"
        if "openvino" in name or name == "npu"
        else "ort 1.31"
    )


_BARE: dict[str, tuple[str, str]] = {
    "cuda": NO_CUDA,
    "webgpu": PLUG_IN,
    "openvino-gpu": NO_INTEL,
    "directml": WINDOWS,
    "npu": NO_NPU,
}
_BARE_WINDOWS = _BARE | {"directml": NO_DIRECTML}
_ALL = dict.fromkeys(("cuda", "directml", "webgpu", "openvino-gpu", "npu", "cpu"), CONFLICT) | {
    "openvino-gpu": NO_INTEL,
    "npu": NO_NPU,
}
_GEFORCE, _ARC, _RADEON, _XE = "NVIDIA GeForce RTX 4070", "Intel Arc A770", "AMD Radeon RX 7900", "Intel Iris Xe"
_LAVAPIPE = "llvmpipe (LLVM 19.1), software"


def _without(names: str, lacking: Mapping[str, tuple[str, str]] = _BARE) -> dict[str, tuple[str, str]]:
    return {name: lack for name, lack in lacking.items() if name not in names.split()}


MACHINES = (
    # --- nothing but a CPU
    Machine(name="linux server", lacking=_BARE, chosen="cpu", passed=("cuda", "openvino-gpu", "webgpu")),
    Machine(name="windows office", system="win32", lacking=_BARE_WINDOWS, chosen="cpu",
            passed=("cuda", "directml", "webgpu", "openvino-gpu")),
    Machine(name="mac", system="darwin", lacking=_BARE, chosen="cpu", passed=("webgpu",)),
    Machine(name="freebsd", system="freebsd14", lacking=_BARE, chosen="cpu"),
    Machine(name="android", system="android", lacking=_BARE, chosen="cpu"),
    Machine(name="cpu by name", lacking=_BARE, wish="cpu", chosen="cpu"),
    Machine(name="reference by name", lacking=_BARE, wish="reference", chosen="reference"),
    # --- NVIDIA
    Machine(name="linux nvidia", there={"cuda": _GEFORCE}, lacking=_without("cuda"), chosen="cuda"),
    Machine(name="windows nvidia", system="win32", there={"cuda": _GEFORCE}, lacking=_without("cuda", _BARE_WINDOWS),
            chosen="cuda"),
    Machine(name="windows nvidia and directml", system="win32", there={"cuda": _GEFORCE, "directml": _GEFORCE},
            lacking=_without("cuda directml"), chosen="cuda"),
    Machine(name="nvidia, dead driver", lacking=_BARE | {"cuda": DEAD}, chosen="cpu",
            passed=("cuda", "openvino-gpu", "webgpu")),
    Machine(name="nvidia, dead driver, webgpu", there={"webgpu": _GEFORCE}, lacking=_without("webgpu") | {"cuda": DEAD},
            chosen="webgpu", passed=("cuda", "openvino-gpu")),
    Machine(name="nvidia, wrong numbers", there={"cuda": _GEFORCE, "webgpu": _GEFORCE}, lacking=_without("cuda webgpu"),
            failing={"cuda": MISMATCH}, chosen="webgpu", passed=("cuda", "openvino-gpu")),
    Machine(name="nvidia, out of memory", there={"cuda": _GEFORCE}, lacking=_without("cuda"), failing={"cuda": FULL},
            chosen="cpu", passed=("cuda", "openvino-gpu", "webgpu")),
    Machine(name="nvidia out of memory by name", there={"cuda": _GEFORCE}, lacking=_without("cuda"),
            failing={"cuda": FULL}, wish="cuda", chosen=None, passed=("cuda",)),
    Machine(name="nvidia, probe hangs, by name", there={"cuda": _GEFORCE}, lacking=_without("cuda"),
            failing={"cuda": HANGS}, wish="cuda", chosen=None, passed=("cuda",)),
    Machine(name="nvidia, wrong build, by name", lacking=_BARE, wish="cuda", chosen=None, passed=("cuda",)),
    Machine(name="nvidia and folder without float16", lacking=_BARE | {"cuda": NO_GRAPH}, chosen="cpu",
            passed=("cuda", "openvino-gpu", "webgpu")),
    # --- several NVIDIA GPUs
    Machine(name="two gpus", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, chosen="cuda"),
    Machine(name="the second by index", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, wish="cuda:1",
            chosen="cuda:1"),
    Machine(name="the first by index", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, wish="cuda:0", chosen="cuda"),
    Machine(name="the second by name", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, wish="cuda:h200",
            chosen="cuda:1"),
    Machine(name="the first by name", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, wish="cuda:RTX 4070",
            chosen="cuda"),
    Machine(name="a name that both have", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, wish="cuda:nvidia",
            chosen=None, passed=("cuda:nvidia",), failing={"cuda:nvidia": "2 devices are called that"}),
    Machine(name="a name that none has", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, wish="cuda:A100",
            chosen=None, passed=("cuda:A100",), failing={"cuda:A100": "no device is called that"}),
    Machine(name="an index that is not there", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"}, wish="cuda:4",
            chosen=None, passed=("cuda:4",), failing={"cuda:4": "no device is called that"}),
    Machine(name="an index of nothing", lacking=_BARE, wish="cuda:1", chosen=None, passed=("cuda:1",),
            failing={"cuda:1": NO_CUDA[0]}),
    Machine(name="the first computes wrongly", there={"cuda": _GEFORCE, "cuda:1": "NVIDIA H200"},
            failing={"cuda": MISMATCH}, chosen="cuda:1", passed=("cuda",)),
    Machine(name="both crash", there={"cuda": _GEFORCE, "cuda:1": _GEFORCE}, lacking=_without("cuda"),
            failing={"cuda": CRASHES, "cuda:1": CRASHES}, chosen="cpu",
            passed=("cuda", "cuda:1", "openvino-gpu", "webgpu")),
    # --- AMD and others by WebGPU or DirectML
    Machine(name="linux radeon", there={"webgpu": _RADEON}, lacking=_without("webgpu"), chosen="webgpu",
            passed=("cuda", "openvino-gpu")),
    Machine(name="windows radeon, webgpu", system="win32", there={"webgpu": _RADEON},
            lacking=_without("webgpu", _BARE_WINDOWS), chosen="webgpu", passed=("cuda", "directml")),
    Machine(name="windows radeon, directml", system="win32", there={"directml": _RADEON}, lacking=_without("directml"),
            chosen="directml", passed=("cuda",)),
    Machine(name="windows radeon, directml wrong", system="win32", there={"directml": _RADEON},
            lacking=_without("directml"), failing={"directml": MISMATCH}, chosen="cpu",
            passed=("cuda", "directml", "webgpu", "openvino-gpu")),
    Machine(name="windows radeon, directml wrong, webgpu right", system="win32",
            there={"directml": _RADEON, "webgpu": _RADEON}, lacking=_without("directml webgpu"),
            failing={"directml": MISMATCH}, chosen="webgpu", passed=("cuda", "directml")),
    Machine(name="mac with webgpu", system="darwin", there={"webgpu": "Apple M3"}, lacking=_without("webgpu"),
            chosen="webgpu"),
    Machine(name="mac, webgpu crashes", system="darwin", there={"webgpu": "Apple M3"}, lacking=_without("webgpu"),
            failing={"webgpu": CRASHES}, chosen="cpu", passed=("webgpu",)),
    Machine(name="webgpu without an adapter", lacking=_BARE | {"webgpu": NO_ADAPTER}, chosen="cpu",
            passed=("cuda", "openvino-gpu", "webgpu")),
    Machine(name="directml asked for on linux", lacking=_BARE, wish="directml", chosen=None, passed=("directml",)),
    # --- software GPUs
    Machine(name="software gpu, allowed", there={"webgpu": _LAVAPIPE}, lacking=_without("webgpu"), chosen="cpu",
            passed=("cuda", "openvino-gpu", "webgpu"), failing={"webgpu": "it is emulated on the CPU"}),
    Machine(name="software gpu by name", there={"webgpu": _LAVAPIPE}, lacking=_without("webgpu"), wish="webgpu",
            chosen="webgpu"),
    Machine(name="software gpu before a real one", there={"webgpu": _LAVAPIPE, "webgpu:1": _RADEON},
            lacking=_without("webgpu"), chosen="webgpu:1", passed=("cuda", "openvino-gpu", "webgpu"),
            failing={"webgpu": "it is emulated on the CPU"}),
    # --- Intel
    Machine(name="linux arc", there={"openvino-gpu": _ARC}, lacking=_without("openvino-gpu"), chosen="openvino-gpu",
            passed=("cuda",)),
    Machine(name="linux iris, no openvino", lacking=_BARE | {"openvino-gpu": NO_OPENVINO}, chosen="cpu",
            passed=("cuda", "openvino-gpu", "webgpu")),
    Machine(name="linux iris, no opencl, webgpu", there={"webgpu": _XE},
            lacking=_without("webgpu") | {"openvino-gpu": NO_OPENCL}, chosen="webgpu", passed=("cuda", "openvino-gpu")),
    Machine(name="linux iris both", there={"openvino-gpu": _XE, "webgpu": _XE}, lacking=_without("openvino-gpu webgpu"),
            chosen="openvino-gpu", passed=("cuda",)),
    Machine(name="linux iris both, openvino wrong", there={"openvino-gpu": _XE, "webgpu": _XE},
            lacking=_without("openvino-gpu webgpu"), failing={"openvino-gpu": MISMATCH}, chosen="webgpu",
            passed=("cuda", "openvino-gpu")),
    Machine(name="windows iris both", system="win32", there={"openvino-gpu": _XE, "webgpu": _XE},
            lacking=_without("openvino-gpu webgpu", _BARE_WINDOWS), chosen="webgpu", passed=("cuda", "directml")),
    Machine(name="windows iris, openvino", system="win32", there={"openvino-gpu": _XE},
            lacking=_without("openvino-gpu", _BARE_WINDOWS), chosen="openvino-gpu",
            passed=("cuda", "directml", "webgpu")),
    Machine(name="laptop with two gpus", there={"cuda": _GEFORCE, "openvino-gpu": _XE},
            lacking=_without("cuda openvino-gpu"), chosen="cuda"),
    Machine(name="second intel gpu", there={"openvino-gpu": _XE, "openvino-gpu.1": _ARC}, wish="openvino-gpu.1",
            chosen="openvino-gpu.1"),
    Machine(name="first intel gpu by index", there={"openvino-gpu": _XE, "openvino-gpu.1": _ARC}, wish="openvino-gpu.0",
            chosen="openvino-gpu"),
    Machine(name="webgpu by vendor", there={"webgpu": _GEFORCE, "webgpu:1": _XE}, wish="webgpu:intel",
            chosen="webgpu:1"),
    Machine(name="by vendor, one that is there", there={"webgpu:1": _XE}, lacking={"webgpu": NO_ADAPTER},
            wish="webgpu:intel", chosen="webgpu:1"),
    # --- NPUs are asked for by name
    Machine(name="core ultra", there={"npu": "Intel AI Boost"}, lacking=_without("npu"), chosen="cpu",
            passed=("cuda", "openvino-gpu", "webgpu")),
    Machine(name="core ultra, npu by name", there={"npu": "Intel AI Boost"}, lacking=_without("npu"), wish="npu",
            chosen="npu"),
    Machine(name="no npu by name", lacking=_BARE, wish="npu", chosen=None, passed=("npu",)),
    Machine(name="snapdragon", system="win32", there={"qnn": "Hexagon"}, lacking=_BARE_WINDOWS, chosen="cpu",
            passed=("cuda", "directml", "webgpu", "openvino-gpu")),
    Machine(name="npu, else gpu, else auto", lacking=_BARE, wish=("npu", "openvino-gpu", "auto"), chosen="cpu",
            passed=("npu", "openvino-gpu", "cuda", "openvino-gpu", "webgpu")),
    # --- two builds of ONNX Runtime, or none
    Machine(name="two builds", lacking=_ALL, chosen=None, passed=("cuda", "openvino-gpu", "webgpu", "cpu")),
    Machine(name="two builds, openvino", there={"openvino": "Xeon"}, lacking=_ALL, wish="openvino", chosen="openvino"),
    Machine(name="two builds, cpu by name", lacking=_ALL, wish="cpu", chosen=None, passed=("cpu",)),
    Machine(name="no runtime", lacking=_BARE | {"cuda": NO_RUNTIME, "cpu": NO_RUNTIME}, chosen=None,
            passed=("cuda", "openvino-gpu", "webgpu", "cpu")),
    # --- lists
    Machine(name="list, first there", there={"cuda": _GEFORCE}, wish=("cuda", "cpu"), chosen="cuda"),
    Machine(name="list, first fails", there={"cuda": _GEFORCE}, wish=("cuda", "cpu"), failing={"cuda": HANGS},
            chosen="cpu", passed=("cuda",)),
    Machine(name="list, none", lacking=_BARE, wish=("cuda", "npu"), chosen=None, passed=("cuda", "npu")),
    Machine(name="list of one falls to nothing", lacking=_BARE, wish=("cuda",), chosen=None, passed=("cuda",)),
    Machine(name="list, reference last", lacking=_BARE | {"cpu": NO_RUNTIME}, wish=("auto", "reference"),
            chosen="reference", passed=("cuda", "openvino-gpu", "webgpu", "cpu")),
)  # fmt: skip
