"""The engine of CUDA with the CPU provider as its device: what differs between GPUs is left out, all else is real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.ort.runtime import ort
from embedllm.export import graphs
from embedllm.package.graph_variants import GPU_FLOAT32
from tests.support.host_memory import HostMemory


class HostEngine(ResidentEngine):
    """The device is the machine's own memory."""

    reduces = True

    def start(self, path: str, options: ort.SessionOptions, *, captures: bool) -> ort.InferenceSession:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    def open_memory(self) -> HostMemory:
        return HostMemory()


@contextmanager
def graphs_for_host() -> Iterator[None]:
    """Exports within the block write a `gpu-float32` graph like CUDA's, which the CPU runs: it norms q and k itself."""
    like_cuda = replace(GPU_FLOAT32, position_ids=True, norm_in_attention=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "VARIANTS", tuple(like_cuda if one == GPU_FLOAT32 else one for one in graphs.VARIANTS))
        yield
