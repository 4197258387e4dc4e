"""Which backends there are: asks each for its devices, and opens an engine on the one that was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from embedllm.backends.base import Device, Engine
from embedllm.errors import DeviceUnavailable
from embedllm.export.dialects import FLOAT32
from embedllm.package import Graph, Package


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What an engine is opened with."""

    package: Package
    device: Device
    graph: Graph | None  # of the driver's dialect, when it has one
    threads: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Driver:
    """How a device runs a folder."""

    open: Callable[[Choices], Engine]
    dialect: str | None  # of the graph that it runs; None: it reads the weights itself


def devices() -> list[Device]:
    """Every device of every backend, those that cannot be used with the reason."""
    from embedllm.backends import reference

    return [*_ort_devices(), reference.DEVICE]


def devices_for(package: Package) -> list[Device]:
    """As devices(); those that the folder has no graph for are not available, with that reason."""
    found = devices()
    for place, device in enumerate(found):
        if device.available and (lack := _lack(package, device)):
            reason, remedy = lack
            found[place] = replace(device, available=False, reason=reason, remedy=remedy)
    return found


def runs_graphs(device: Device) -> bool:
    """Whether a device runs a graph of the folder, and so computes as that says."""
    return _DRIVERS[device.name].dialect is not None


def open_engine(package: Package, device: Device, *, threads: int = 0, exact: bool = False) -> Engine:
    """Loads the package on an available device.

    Raises DeviceUnavailable when the folder has no graph for it.
    """
    if lack := _lack(package, device):
        reason, remedy = lack
        raise DeviceUnavailable(f"'{device.name}' cannot run this model: {reason}.", [(device.name, reason, remedy)])
    driver = _DRIVERS[device.name]
    graph = package.graph(driver.dialect) if driver.dialect else None
    return driver.open(Choices(package=package, device=device, graph=graph, threads=threads, exact=exact))


def _open_ort(choices: Choices) -> Engine:
    from embedllm.backends.ort import OrtEngine

    assert choices.graph is not None  # the driver has a dialect
    return OrtEngine(choices.package, choices.graph, choices.device, threads=choices.threads, exact=choices.exact)


def _open_reference(choices: Choices) -> Engine:
    from embedllm.backends.reference import ReferenceEngine

    return ReferenceEngine(choices.package)


# by the device's name
_DRIVERS = {
    "cpu": Driver(_open_ort, FLOAT32.name),
    "reference": Driver(_open_reference, None),
}


def _ort_devices() -> list[Device]:
    try:
        from embedllm.backends import ort
    except ImportError as error:
        return [
            Device(name="cpu", backend="onnxruntime", description="", available=False,
                   reason=f"ONNX Runtime cannot be imported ({error})", remedy="pip install onnxruntime")
        ]  # fmt: skip
    return ort.devices()


def _lack(package: Package, device: Device) -> tuple[str, str] | None:
    """Why the folder does not suit a device, and what helps."""
    dialect = _DRIVERS[device.name].dialect
    if dialect is None or package.graph(dialect) is not None:
        return None
    has = ", ".join(f"'{graph.dialect}'" for graph in package.graphs) or "none"
    return f"'{package.name}' has no '{dialect}' graph (it has {has})", "export the model again"
