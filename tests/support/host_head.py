"""Draft heads of the engine of CUDA with the CPU provider as its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from embedllm.backends.base import Device
from embedllm.backends.gpu.draft_head import DeviceHeadEngine
from embedllm.backends.ort.runtime import ort
from embedllm.export import graphs
from embedllm.package.entries import Graph
from embedllm.package.graph_variants import EAGLE, MTP
from embedllm.package.package import Package
from tests.support.host_memory import HostMemory


class HostHeadEngine(DeviceHeadEngine):
    """The device is the machine's own memory."""

    def __init__(self, package: Package, graph: Graph, device: Device) -> None:
        super().__init__(package, graph, device)

    def start(self, model: str | bytes, options: ort.SessionOptions, *, captures: bool) -> ort.InferenceSession:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    def open_memory(self) -> HostMemory:
        return HostMemory()


@contextmanager
def heads_for_host() -> Iterator[None]:
    """Heads that are added within the block have guesses as CUDA's have them, in float32."""
    known = graphs._OF_HEADS  # pyright: ignore[reportPrivateUsage]
    with pytest.MonkeyPatch.context() as patch:
        guessing = tuple(replace(one, guesses=True) if one in (EAGLE, MTP) else one for one in known)
        patch.setattr(graphs, "_OF_HEADS", guessing)
        yield
