"""Which backends there are: asks each for its devices, and opens an engine on the one that was chosen.

A device's name begins with its backend's: "cpu" is ONNX Runtime's, "openvino", "openvino-gpu" and "npu" are OpenVINO's.
Besides the listed ones, "openvino:TARGET" is any target in OpenVINO's own words ("openvino:HETERO:GPU,CPU"), and "A+B"
reads prompts on A and makes tokens on B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from embedllm.backends.base import Device, Engine
from embedllm.backends.select import AUTO
from embedllm.errors import DeviceUnavailable
from embedllm.export.dialects import FLOAT16, FLOAT32, OPENVINO
from embedllm.openvino_options import OpenVINOOptions
from embedllm.package import Graph, Package

PAIR = "+"  # between the names of two devices that share a sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What an engine is opened with."""

    package: Package
    device: Device
    graph: Graph | None  # of the driver's dialect, when it has one
    threads: int = 0
    exact: bool = False
    openvino: OpenVINOOptions | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """How a device runs a folder."""

    open: Callable[[Choices], Engine]
    dialect: str | None  # of the graph that it runs; None: it reads the weights itself
    shares: bool = True  # its sessions give their KV away and take that of others
    zero_points: bool = True  # it runs weights that have some
    floats: bool = True  # it can compute in float32 throughout, for exact=True


def devices() -> list[Device]:
    """Every device of every backend, those that cannot be used with the reason."""
    from embedllm.backends import reference

    return [*_ort_devices(), *_cuda_devices(), *_ov_devices(), reference.DEVICE]


def devices_for(package: Package, wishes: Sequence[str] = (), *, exact: bool = False) -> list[Device]:
    """As devices(); those that the folder has no graph for, or that cannot do what is asked, are not available.

    wishes: names among which there may be some that no list has: a pair, or a target in OpenVINO's words. When none of
    them may be of OpenVINO or CUDA, these are not loaded.
    """
    from embedllm.backends import reference

    parts = [part for wish in wishes for part in wish.split(PAIR)]
    found = _ort_devices()
    known = [_driver(part) for part in parts if part != AUTO]
    if not parts or None in known or any(driver and driver.open is _open_cuda for driver in known):
        found += _cuda_devices()
    if not parts or None in known or any(driver and driver.dialect == OPENVINO for driver in known):
        found += _ov_devices()
    found.append(reference.DEVICE)
    by_name = {device.name: device for device in found}
    for part in parts:
        if part.startswith(_FREE) and "openvino" in by_name and part not in by_name:
            by_name[part] = _free(part, by_name["openvino"])
    for place, device in by_name.items():
        if device.available and (lack := _lack(package, device, exact=exact)):
            reason, remedy = lack
            by_name[place] = replace(device, available=False, reason=reason, remedy=remedy)
    return [*by_name.values(), *(_pair(wish, by_name) for wish in wishes if wish.count(PAIR) == 1)]


def facts(device: Device) -> dict[str, str]:
    """What the runtime tells of a device: driver, architecture, what it can compute in. For reports."""
    if not device.available or not device.name.startswith(_OPENVINO_NAMES):
        return {}
    from embedllm.backends import ov_runtime

    return ov_runtime.facts(device.name)


def runs_graphs(device: Device) -> bool:
    """Whether a device runs a graph of the folder through ONNX Runtime, and so computes as that says."""
    return any(_driver_of(name).dialect == FLOAT32.name for name in device.name.split(PAIR))


def open_engine(
    package: Package,
    device: Device,
    *,
    threads: int = 0,
    exact: bool = False,
    openvino: OpenVINOOptions | None = None,
) -> Engine:
    """Loads the package on an available device.

    Raises DeviceUnavailable when the folder has no graph for it, or the device cannot run that.
    """
    if PAIR in device.name:
        return _open_pair(package, device, threads=threads, exact=exact, openvino=openvino)
    if lack := _lack(package, device, exact=exact):
        reason, remedy = lack
        raise DeviceUnavailable(f"'{device.name}' cannot run this model: {reason}.", [(device.name, reason, remedy)])
    driver = _driver_of(device.name)
    graph = package.graph(driver.dialect) if driver.dialect else None
    return driver.open(
        Choices(package=package, device=device, graph=graph, threads=threads, exact=exact, openvino=openvino)
    )


def _open_ort(choices: Choices) -> Engine:
    from embedllm.backends.ort import OrtEngine

    assert choices.graph is not None  # the driver has a dialect
    return OrtEngine(choices.package, choices.graph, choices.device, threads=choices.threads, exact=choices.exact)


def _open_cuda(choices: Choices) -> Engine:
    from embedllm.backends.cuda import CudaEngine

    assert choices.graph is not None
    return CudaEngine(choices.package, choices.graph, choices.device)


def _open_ov(choices: Choices) -> Engine:
    from embedllm.backends.ov import OvEngine
    from embedllm.backends.ov_runtime import target_of

    assert choices.graph is not None
    return OvEngine(
        choices.package,
        choices.graph,
        choices.device,
        target_of(choices.device.name),
        options=choices.openvino,
        threads=choices.threads,
        exact=choices.exact,
    )


def _open_npu(choices: Choices) -> Engine:
    from embedllm.backends.npu import NpuEngine

    assert choices.graph is not None
    return NpuEngine(
        choices.package,
        choices.graph,
        choices.device,
        options=choices.openvino,
        on_cpu=choices.device.name == "npu-on-cpu",
        exact=choices.exact,
    )


def _open_reference(choices: Choices) -> Engine:
    from embedllm.backends.reference import ReferenceEngine

    return ReferenceEngine(choices.package)


def _open_pair(
    package: Package, device: Device, *, threads: int, exact: bool, openvino: OpenVINOOptions | None
) -> Engine:
    from embedllm.backends.split import SplitEngine, check_memory

    check_memory(package)
    by_name = {found.name: found for found in devices_for(package, [device.name], exact=exact)}
    opened: list[Engine] = []
    try:
        for name in device.name.split(PAIR):
            opened.append(open_engine(package, by_name[name], threads=threads, exact=exact, openvino=openvino))
    except BaseException:
        for engine in opened:  # its packed weights, when memory may be short
            engine.close()
        raise
    reads, makes = opened
    return SplitEngine(reads, makes, device)


# by what a device's name begins with, longer beginnings first
_DRIVERS = {
    "cpu": Driver(_open_ort, FLOAT32.name),
    "cuda": Driver(_open_cuda, FLOAT16.name, floats=False),
    "npu-on-cpu": Driver(_open_npu, OPENVINO, shares=False, zero_points=False),
    "npu": Driver(_open_npu, OPENVINO, shares=False, zero_points=False, floats=False),
    "openvino": Driver(_open_ov, OPENVINO),
    "reference": Driver(_open_reference, None, shares=False),
}
_OPENVINO_NAMES = tuple(name for name, driver in _DRIVERS.items() if driver.dialect == OPENVINO)
_INSTALL_OPENVINO = "pip install openvino platformdirs psutil, which is the extra embedllm[openvino]"
_FREE = "openvino:"  # a target in OpenVINO's own words follows


def _driver(name: str) -> Driver | None:
    return next((driver for start, driver in _DRIVERS.items() if name.startswith(start)), None)


def _driver_of(name: str) -> Driver:
    """Of a device that is available."""
    driver = _driver(name)
    assert driver is not None
    return driver


def _free(name: str, cpu: Device) -> Device:
    """A target in OpenVINO's own words, on the word of OpenVINO's CPU device."""
    target = name.removeprefix(_FREE)
    described = replace(cpu, name=name, description=f"OpenVINO's {target}")
    plugin = target.partition(":")[0].partition(".")[0].upper()
    if plugin == "NPU":
        return replace(described, available=False, reason="it has no dynamic shapes", remedy="use the device 'npu'")
    if plugin not in ("CPU", "GPU", "AUTO", "HETERO"):
        reason = f"OpenVINO has no '{target}'"
        return replace(described, available=False, reason=reason, remedy="CPU, GPU, AUTO:... or HETERO:...")
    return described


def _pair(name: str, by_name: dict[str, Device]) -> Device:
    """Two devices as one, available when both are."""
    halves = [by_name.get(half) for half in name.split(PAIR)]
    lacks: list[tuple[str, str, str]] = []
    for half, device in zip(name.split(PAIR), halves, strict=True):
        driver = _driver(half)
        if device is None or driver is None:
            lacks.append((half, "not found", ""))
        elif not driver.shares:
            lacks.append((half, "its KV can be neither taken out nor put in", "use that device alone"))
        elif not device.available:
            lacks.append((half, device.reason, device.remedy))
    if halves[0] is halves[1] is not None:
        lacks.append((name, "both are the same device", "use it alone"))
    return Device(
        name=name,
        backend=" + ".join(device.backend for device in halves if device),
        description=" + ".join(device.description for device in halves if device),
        available=not lacks,
        reason="; ".join(f"'{half}': {reason}" for half, reason, _ in lacks),
        remedy="; ".join(remedy for _, _, remedy in lacks if remedy),
    )


def _cuda_devices() -> list[Device]:
    try:
        from embedllm.backends import cuda
    except ImportError:
        return []  # without ONNX Runtime, which _ort_devices() says
    return cuda.devices()


def _ov_devices() -> list[Device]:
    try:
        from embedllm.backends import ov_runtime
    except ImportError as error:
        lack, remedy = f"OpenVINO cannot be imported ({error})", _INSTALL_OPENVINO
        return [
            Device(name=name, backend="openvino", description="", available=False, reason=lack, remedy=remedy)
            for name in ("openvino", "openvino-gpu", "npu", "npu-on-cpu")
        ]
    return ov_runtime.devices()


def _ort_devices() -> list[Device]:
    try:
        from embedllm.backends import ort
    except ImportError as error:
        return [
            Device(name="cpu", backend="onnxruntime", description="", available=False,
                   reason=f"ONNX Runtime cannot be imported ({error})", remedy="pip install onnxruntime")
        ]  # fmt: skip
    return ort.devices()


def _lack(package: Package, device: Device, *, exact: bool) -> tuple[str, str] | None:
    """Why a device cannot do what is asked with this folder, and what helps."""
    driver = _driver_of(device.name)
    if driver.dialect is not None and package.graph(driver.dialect) is None:
        has = ", ".join(f"'{graph.dialect}'" for graph in package.graphs) or "none"
        return f"'{package.name}' has no '{driver.dialect}' graph (it has {has})", "export the model again"
    if exact and not driver.floats:
        return "it computes in float16, so that nothing is exact there", "load it without exact"
    entries = package.manifest.get("quantization")
    packings = entries.values() if isinstance(entries, dict) else ()
    if not driver.zero_points and not all(isinstance(p, dict) and p.get("symmetric", True) for p in packings):
        return (
            f"the weights of '{package.name}' have zero points, which the NPU's compiler does not take",
            "export it with --target npu",
        )
    return None
