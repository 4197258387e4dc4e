"""Opens a folder on the engines that tests compare, exact unless they say otherwise."""

from __future__ import annotations

from pathlib import Path

from embedllm.backends.base import Device
from embedllm.backends.devices.registry import DeviceCatalog
from embedllm.backends.openvino.engine import OvEngine
from embedllm.backends.openvino.npu import NpuEngine
from embedllm.backends.openvino.paged_engine import PagedEngine
from embedllm.backends.openvino.properties import properties
from embedllm.backends.options import OpenVINOOptions
from embedllm.backends.ort.engine import OrtEngine
from embedllm.package.entries import Graph
from embedllm.package.package import Package, open_package


def device(name: str) -> Device:
    """Of the runtime that the name belongs to; others are not asked for theirs."""
    return next(device for device in DeviceCatalog().lookup(name) if device.name == name)


def _graph(package: Package, variant: str) -> Graph:
    graph = package.graph(variant)
    assert graph is not None
    return graph


def ort_engine(folder: Path, *, exact: bool = True) -> OrtEngine:
    package = open_package(folder)
    return OrtEngine(package, _graph(package, "generic-float32"), device("cpu"), exact=exact)


def ov_engine(
    folder: Path,
    target: str = "CPU",
    *,
    options: OpenVINOOptions | None = None,
    threads: int = 0,
    exact: bool = True,
) -> OvEngine:
    package = open_package(folder)
    graph = _graph(package, "openvino")
    return OvEngine(package, graph, device("openvino"), target, options=options, threads=threads, exact=exact)


def paged_engine(
    folder: Path,
    *,
    options: OpenVINOOptions | None = None,
    threads: int = 0,
    exact: bool = True,
    joins: bool = True,
) -> PagedEngine:
    package = open_package(folder)
    chosen = properties(package, "CPU", options or OpenVINOOptions(), threads, exact)
    return PagedEngine(package, _graph(package, "openvino"), device("openvino"), chosen, joins=joins)


def npu_engine(folder: Path, cache: Path, *, prompt: int = 64, reply: int = 32, exact: bool = True) -> NpuEngine:
    """The NPU's way on the CPU; small shapes compile in a second."""
    package = open_package(folder)
    options = OpenVINOOptions(prompt=prompt, reply=reply, cache=cache)
    graph = _graph(package, "openvino")
    return NpuEngine(package, graph, device("npu-on-cpu"), options=options, on_cpu=True, exact=exact)
