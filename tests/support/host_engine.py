"""The engine of CUDA with the CPU provider as its device: what differs between GPUs is left out, all else is real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import Device, ImageInput
from embedllm.backends.gpu import cuda, images, on_device
from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.gpu.on_device import OnDevice
from embedllm.backends.ort.runtime import ort
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import graphs
from embedllm.package.graph_variants import FLOAT16, GPU_FLOAT32
from embedllm.package.package import Package, open_package
from embedllm.types import Logits
from tests.support.host_memory import HostMemory
from tests.support.logits import values

HOST = Device(name="host", backend="test", description="", available=True)
# of the spread, where all compute in float32; and where all is float16, as tests/support/image_devices.py has it
TOLERANCES = {np.float32: 1e-4, np.float16: 0.05}


class OnHost(OnDevice):
    """The device is the machine's own memory."""

    def start(self, model: str | bytes, options: ort.SessionOptions, *, captures: bool) -> ort.InferenceSession:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    def open_memory(self) -> HostMemory:
        return HostMemory()


class HostEngine(OnHost, ResidentEngine):
    reduces = True


@contextmanager
def graphs_for_host() -> Iterator[None]:
    """Exports within the block write a `gpu-float32` graph like CUDA's, which the CPU runs: it norms q and k itself."""
    like_cuda = replace(GPU_FLOAT32, position_ids=True, norm_in_attention=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "VARIANTS", tuple(like_cuda if one == GPU_FLOAT32 else one for one in graphs.VARIANTS))
        yield


def open_host(package: Package, variant: str = GPU_FLOAT32.name) -> HostEngine:
    """Once make_host_the_device() has been called."""
    graph = package.graph(variant)
    assert graph is not None
    return HostEngine(package, graph, HOST, capture=False)


def open_resident(package: Package, device: str) -> ResidentEngine:
    """device: "host" or "cuda"."""
    if device == HOST.name:
        return open_host(package)
    graph = package.graph(FLOAT16.name)
    assert graph is not None
    return cuda.CudaEngine(package, graph, cuda.devices()[0])


def make_host_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the CPU computes is not refused."""
    for module in (on_device, images):
        monkeypatch.setattr(module, "check_assignments", lambda *_: None)


def reference_rows(
    folder: Path, images: Sequence[ImageInput], prompts: Mapping[str, list[int]]
) -> dict[str, np.ndarray]:
    """The logits behind each token of the prompts, which have these images, by the reference."""
    reference = ReferenceEngine(open_package(folder))
    assert reference.images is not None
    reference.images.add(images)
    return {name: reference.open().feed_all(tokens) for name, tokens in prompts.items()}


def assert_close(found: Logits | np.ndarray, expected: np.ndarray, engine: ResidentEngine) -> None:
    row = found if isinstance(found, np.ndarray) else values(found)
    assert expected.std() > 0.1  # else a part could be missing unseen
    assert np.abs(row - expected).max() <= TOLERANCES[engine.dtype] * expected.std()
