"""Libraries that bring ONNX Runtime its execution providers: registered once a process, and what they run on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from embedllm.backends.ort.providers import GROUP
from embedllm.backends.ort.runtime import first_line, ort
from embedllm.backends.system.host_tuning import ENVIRONMENT, QUIET, is_on
from embedllm.errors import DeviceError

_QUIET, _WARNING = 4, 2  # log severities: "fatal", and what ONNX Runtime starts with
_MEMORY = "DxgiVideoMemory"  # the only one of ONNX Runtime's metadata that tells memory: "16114 MB", on Windows
_NAMES = ("FULL_DEVICE_NAME", "Description")  # where a device's own name may be, in the provider's or system's words
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library with an execution provider, and where it comes from."""

    # what it is registered under: the provider's own name, because QNN's devices bear the name of the registration
    provider: str
    package: str = ""  # to import; its get_library_path() tells where the library is
    install: str = ""  # what brings the package
    path: str = ""  # of the library, when it is in no package
    entry: metadata.EntryPoint | None = None  # of a third party, when it is one
    environment: Mapping[str, str] = field(default_factory=dict)  # set while the library is registered


WEBGPU = Library(
    provider="WebGpuExecutionProvider",
    package="onnxruntime_ep_webgpu",
    install="pip install onnxruntime-ep-webgpu",
    # then software adapters are listed too, as devices of the type CPU: what they are good for is for the caller to say
    environment={"ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1"},
)
OPENVINO = Library(
    provider="OpenVINOExecutionProvider",
    package="onnxruntime_ep_openvino",
    install="pip install onnxruntime-ep-openvino",
)
QNN = Library(provider="QNNExecutionProvider", package="onnxruntime_qnn", install="pip install onnxruntime-qnn")
KNOWN = (WEBGPU, OPENVINO, QNN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderDevice:
    """Hardware, as one provider offers to run on it."""

    provider: str  # as the provider calls itself
    version: str  # of the provider
    kind: str  # "CPU", "GPU" or "NPU"
    vendor: str  # of the hardware, in words; may be empty
    vendor_id: int  # PCI
    device_id: int  # PCI
    description: str  # the hardware's own name, or what is known in place of one
    memory: int  # bytes; 0: not told
    metadata: Mapping[str, str]  # what the system and the provider tell besides
    handle: ort.OrtEpDevice  # for SessionOptions.add_provider_for_devices


def libraries() -> list[Library]:
    """Those with a package that is known here, and those that installed packages announce as entry points."""
    announced = metadata.entry_points(group=GROUP)
    return [*KNOWN, *(Library(provider=entry.name, entry=entry) for entry in announced)]


def is_installed(library: Library) -> bool:
    """Whether its package can be found; true for a library that is in none."""
    return not library.package or find_spec(library.package) is not None


def register(library: Library) -> None:
    """Loads a library into ONNX Runtime, unless that was done before.

    Raises DeviceError, which names the library and says what to do.
    """
    with _lock:
        if library.provider in _registered:
            return
        path = _path(library)
        with quiet(), _environment(library.environment):
            try:
                ort.register_execution_provider_library(library.provider, path)
            except Exception as error:
                if "already registered" not in str(error):  # by the application around us
                    raise DeviceError(
                        f"ONNX Runtime {ort.__version__} cannot load '{path}' as {library.provider}: "
                        f"{first_line(error)}. {_remedy(library)}"
                    ) from error
        _registered.add(library.provider)


def devices(library: Library) -> list[ProviderDevice]:
    """What a library's provider runs on here, in ONNX Runtime's order. Registers it; raises DeviceError."""
    register(library)
    with _lock, quiet():
        ep_devices = ort.get_ep_devices()
    return [_described(one) for one in ep_devices if one.ep_name == library.provider]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that ONNX Runtime writes whatever a session's severity, where the host allows it.

    The default logger is the whole process's, and does not tell what it was set to.
    """
    with _lock:
        if not is_on(QUIET):
            yield
            return
        ort.set_default_logger_severity(_QUIET)
        try:
            yield
        finally:
            ort.set_default_logger_severity(_WARNING)


def _path(library: Library) -> str:
    """Where a library is. Raises DeviceError when that cannot be told, or nothing is there."""
    try:
        if library.entry is not None:
            path = library.entry.load()()
        else:
            path = library.path or import_module(library.package).get_library_path()
    except Exception as error:  # whatever a package of somebody else's raises
        source = f"the package '{library.package}'"
        if library.entry is not None:
            source = f"the entry point '{library.entry.name} = {library.entry.value}'"
        raise DeviceError(
            f"{source} does not tell where the library of {library.provider} is: {first_line(error)}. "
            f"{_remedy(library)}"
        ) from error
    if not Path(path).is_file():
        raise DeviceError(f"the library of {library.provider} is not at '{path}'. {_remedy(library)}")
    return os.fspath(path)


def _remedy(library: Library) -> str:
    if library.install:
        return f"Install its package again: {library.install}"
    return "Check that it is a plug-in for this version of ONNX Runtime, and that what it needs is installed."


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that a library reads while it is registered, where the host allows it and has not set them itself."""
    values = {name: value for name, value in values.items() if is_on(ENVIRONMENT) and name not in os.environ}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _described(one: ort.OrtEpDevice) -> ProviderDevice:
    hardware, properties = one.device, {**one.device.metadata, **one.ep_metadata}
    kind = str(hardware.type).rpartition(".")[2]
    named = next((properties[name] for name in _NAMES if properties.get(name)), "")
    return ProviderDevice(
        provider=one.ep_name,
        version=properties.get("version", ""),
        kind=kind,
        vendor=hardware.vendor,
        vendor_id=hardware.vendor_id,
        device_id=hardware.device_id,
        description=named or f"{hardware.vendor or 'vendor'} {hardware.vendor_id:#06x}:{hardware.device_id:#06x}",
        memory=_bytes(properties.get(_MEMORY, "")),
        metadata=properties,
        handle=one,
    )


def _bytes(text: str) -> int:
    """Of "16114 MB"; 0 for what is no such text."""
    number, _, unit = text.strip().partition(" ")
    return int(number) * _UNITS[unit.upper()] if number.isdecimal() and unit.upper() in _UNITS else 0


_lock = threading.RLock()
_registered: set[str] = set()  # names of providers
