"""Which backends there are: asks each for its devices, and opens an engine on the one that was chosen."""

from __future__ import annotations

from dataclasses import replace

from embedllm.backends.base import Device, Engine
from embedllm.errors import DeviceUnavailable
from embedllm.export.dialects import FLOAT32
from embedllm.package import Package


def devices() -> list[Device]:
    """Every device of every backend, those that cannot be used with the reason."""
    from embedllm.backends import reference

    return [*_ort_devices(), reference.DEVICE]


def devices_for(package: Package) -> list[Device]:
    """As devices(); those that the folder has no graph for are not available, with that reason."""
    if package.graph(FLOAT32.name) is not None:
        return devices()
    reason, remedy = _no_graph(package)
    return [
        device
        if device.name == "reference" or not device.available
        else replace(device, available=False, reason=reason, remedy=remedy)
        for device in devices()
    ]


def _ort_devices() -> list[Device]:
    try:
        from embedllm.backends import ort
    except ImportError as error:
        return [
            Device(name="cpu", backend="onnxruntime", description="", available=False,
                   reason=f"ONNX Runtime cannot be imported ({error})", remedy="pip install onnxruntime")
        ]  # fmt: skip
    return ort.devices()


def open_engine(package: Package, device: Device, *, threads: int = 0, exact: bool = False) -> Engine:
    """Loads the package on an available device.

    Raises DeviceUnavailable when the folder has no graph for it.
    """
    if device.name == "reference":
        from embedllm.backends.reference import ReferenceEngine

        return ReferenceEngine(package)
    from embedllm.backends.ort import OrtEngine

    graph = package.graph(FLOAT32.name)
    if graph is None:
        reason, remedy = _no_graph(package)
        raise DeviceUnavailable(f"'{device.name}' cannot run this model: {reason}.", [(device.name, reason, remedy)])
    return OrtEngine(package, graph, device, threads=threads, exact=exact)


def _no_graph(package: Package) -> tuple[str, str]:
    """Why a runtime cannot run the folder, and what helps."""
    has = ", ".join(f"'{graph.dialect}'" for graph in package.graphs) or "none"
    return f"'{package.name}' has no '{FLOAT32.name}' graph (it has {has})", "export the model again"
