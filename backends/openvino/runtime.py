"""OpenVINO itself: its devices and how they are called here, its errors, its cache of compiled models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path

from embedllm.backends.base import Device
from embedllm.backends.options import OpenVINOOptions
from embedllm.errors import DeviceError
from embedllm.files.no_telemetry import without_telemetry
from embedllm.files.user_cache import user_cache

with without_telemetry():
    import openvino as ov
    import openvino.opset13

_FACTS = ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "NPU_DRIVER_VERSION", "NPU_COMPILER_VERSION", "NPU_MAX_TILES",
          "GPU_UARCH_VERSION", "GPU_DEVICE_TOTAL_MEM_SIZE", "OPTIMIZATION_CAPABILITIES")  # fmt: skip
_PLACE = re.compile(r"Exception from|Check '.*' failed at |\S+\.[ch]pp:\d+")  # in OpenVINO's sources


@cache
def core() -> ov.Core:
    """The only one: models of AUTO and HETERO use it after they are compiled, and crash when it is gone (2026.4)."""
    return ov.Core()


@cache
def has_bf16() -> bool:
    """Whether the processor computes in bf16: with AVX-512, but not with AVX2 alone."""
    return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def paged_attention(model: ov.Model) -> None:
    """Makes attention read its KV through a table of blocks. Raises RuntimeError when it cannot."""
    from openvino._offline_transformations import paged_attention_transformation

    paged_attention_transformation(model)


def version() -> str:
    """Such as "2026.4.1"."""
    return ov.get_version().partition("-")[0]


def reason(error: Exception) -> str:
    """What an exception of OpenVINO says, without the places in its sources."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not _PLACE.search(line)) or type(error).__name__


@contextmanager
def as_device_error(what: str) -> Iterator[None]:
    """OpenVINO's RuntimeError as DeviceError: `what` failed."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO {version()} {what}: {reason(error)}") from error


def cache_folder(options: OpenVINOOptions, target: str, driver: str) -> Path:
    """Where compiled models of this device, driver and version are kept."""
    folder = user_cache() if options.cache is None else Path(options.cache)
    plain = re.sub(r"[^\w.-]+", "_", f"openvino-{version()}-{target}-{driver}".rstrip("-"))
    return folder / plain


def devices() -> list[Device]:
    """What OpenVINO can run on here; for an NPU or GPU that is not found, what it would need."""
    backend = f"openvino {version()}"
    with as_device_error("cannot list devices"):
        targets = core().available_devices
    entries: list[Device] = []
    for target in targets:
        if name := _name(target):
            description, lack = "", ""
            try:
                description = str(core().get_property(target, "FULL_DEVICE_NAME"))
            except RuntimeError as error:  # a device whose driver does not answer
                lack = f"OpenVINO lists it, but it does not tell its name ({reason(error)})"
            remedy = "update its driver: docs/devices.md" if lack else ""
            entries.append(
                Device(
                    name=name, backend=backend, description=description, available=not lack, reason=lack, remedy=remedy
                )
            )
    lack = "" if "CPU" in targets else "OpenVINO has no CPU plugin here"
    checking = "the NPU's static shapes, run on the CPU; for checking"
    entries.append(Device(name="npu-on-cpu", backend=backend, description=checking, available=not lack, reason=lack))
    names = {device.name for device in entries}
    for name, lack, remedy in _ABSENT:
        if name not in names:
            entries.append(
                Device(name=name, backend=backend, description="", available=False, reason=lack, remedy=remedy)
            )
    return entries


_ABSENT = (
    ("openvino-gpu", "OpenVINO finds no Intel GPU, or no OpenCL driver for it",
     "install the driver: docs/devices.md#intel-gpu"),
    ("npu", "OpenVINO finds no NPU, or no driver for it", "install the driver: docs/devices.md#npu"),
)  # fmt: skip


def _name(target: str) -> str:
    """What a device of OpenVINO is called here; empty for one that needs no name."""
    plugin, _, index = target.partition(".")
    if plugin == "GPU":
        return "openvino-gpu" if index in ("", "0") else f"openvino-gpu.{index}"
    return {"CPU": "openvino", "NPU": "npu"}.get(plugin, "")


def fingerprint(target: str) -> str:
    """Of all that a compiled model depends on besides OpenVINO: device, architecture, driver."""
    return sha256(repr(_facts_of(target)).encode()).hexdigest()[:16]


def facts(name: str) -> dict[str, str]:
    """What OpenVINO tells of a device that a report should have."""
    return _facts_of({"npu": "NPU", "npu-on-cpu": "CPU"}.get(name) or target_of(name))


def _facts_of(target: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for key in _FACTS:
        try:
            values[key] = str(core().get_property(target, key))
        except RuntimeError:
            continue  # not a property of this plugin
    return values


def target_of(name: str) -> str:
    """The device in OpenVINO's words: "GPU.1" for "openvino-gpu.1", "HETERO:GPU,CPU" for "openvino:HETERO:GPU,CPU"."""
    if name == "openvino":
        return "CPU"
    target = name.removeprefix("openvino:")
    return target if target != name else name.removeprefix("openvino-").upper()
