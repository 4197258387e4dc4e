"""What the system tells about the processor and graphics hardware without loading any runtime: makers and drivers."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

INTEL = 0x8086  # PCI vendor id
_ROOT = Path("/")
_CARDS = ("sys/class/drm/card*/device", "sys/bus/pci/devices/*")
_DISPLAY = 0x03  # PCI base class: display controllers
_VULKAN = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
_VULKAN_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
_NVIDIA = "/proc/driver/nvidia/version"
_DISPLAY_CLASS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"  # of Windows


def gpu_vendors() -> frozenset[int] | None:
    """PCI vendor ids of the graphics cards; None where the system does not tell, so that any may be there."""
    if sys.platform == "linux":
        return _linux_vendors()
    if sys.platform == "win32":
        vendors = {_vendor_of(adapter.get("MatchingDeviceId", "")) for adapter in _windows_adapters()}
        return frozenset(vendor for vendor in vendors if vendor)
    return None


def driver_stamp() -> str:
    """A text that changes when a graphics driver was installed, updated or removed, or the system itself."""
    return "; ".join([platform.system(), platform.release(), *drivers()])


def drivers() -> list[str]:
    """The graphics drivers, in texts that change when one is installed, updated or removed."""
    if sys.platform == "win32":
        return [f"{one.get('DriverDesc', '')} {one.get('DriverVersion', '')}" for one in _windows_adapters()]
    if sys.platform == "darwin":
        return [platform.mac_ver()[0]]  # drivers come with the system
    return _linux_drivers()


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name for itself, or its kind where it tells none."""
    facts = _facts(cpuinfo)
    if named := next(filter(None, map(facts.get, ("model name", "Model", "Hardware"))), ""):
        return named
    if sys.platform == "darwin":
        import subprocess

        done = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, encoding="utf-8", check=False
        )
        if done.stdout.strip():
            return done.stdout.strip()
    return platform.processor() or platform.machine()


@cache
def has_slow_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is a processor of Intel's that multiplies bf16 without AMX, as virtual machines that hide it.

    Its AVX-512 does so at the rate of float32, and converts besides (docs/performance.md#bf16). Only Linux is asked.
    """
    facts = _facts(cpuinfo)
    flags = facts.get("flags", "").split()
    return facts.get("vendor_id") == "GenuineIntel" and "avx512_bf16" in flags and "amx_bf16" not in flags


@cache
def _facts(cpuinfo: Path) -> dict[str, str]:
    """What Linux tells of the processor: of each key the first value that says something."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if value.strip():
                facts.setdefault(key.strip(), value.strip())
    return facts


def _linux_vendors() -> frozenset[int] | None:
    cards = [path for pattern in _CARDS for path in _ROOT.glob(pattern)]
    if not cards and not (_ROOT / "sys/class").is_dir():
        return None  # no sysfs, as in some containers
    vendors: set[int] = set()
    for card in cards:
        vendor = _number(card / "vendor")
        kind = _number(card / "class")
        if vendor is not None and (kind is None or kind >> 16 == _DISPLAY):
            vendors.add(vendor)
    # WSL 2 hands the GPUs of Windows through without saying whose they are
    return None if (_ROOT / "dev/dxg").exists() else frozenset(vendors)


def _linux_drivers() -> list[str]:
    """NVIDIA's version, and the Vulkan drivers by size and date of their descriptions."""
    parts: list[str] = []
    with suppress(OSError, IndexError):
        parts.append(Path(_NVIDIA).read_text(encoding="utf-8", errors="replace").splitlines()[0])
    parts += [f"{name}={os.environ[name]}" for name in _VULKAN_VARIABLES if os.environ.get(name)]
    named = [Path(file) for name in _VULKAN_VARIABLES for file in os.environ.get(name, "").split(os.pathsep) if file]
    for path in sorted([*named, *(file for folder in _VULKAN for file in Path(folder).glob("*.json"))]):
        try:
            status = path.stat()
        except OSError:
            continue
        parts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return parts


def _windows_adapters() -> list[dict[str, str]]:
    """What the registry says of each display adapter."""
    if sys.platform != "win32":
        return []
    import winreg

    entries: list[dict[str, str]] = []
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _DISPLAY_CLASS) as adapters:
            for index in range(winreg.QueryInfoKey(adapters)[0]):
                name = winreg.EnumKey(adapters, index)
                if name.isdecimal():  # "0000"; others are no adapters
                    entries.append(_windows_values(adapters, name))
    except OSError:
        return entries
    return entries


def _windows_values(adapters: object, name: str) -> dict[str, str]:
    if sys.platform != "win32":
        return {}
    import winreg

    values: dict[str, str] = {}
    try:
        with winreg.OpenKey(adapters, name) as adapter:  # type: ignore[arg-type]  # a key of winreg, opened above
            for key in ("DriverDesc", "DriverVersion", "MatchingDeviceId"):
                values[key] = str(winreg.QueryValueEx(adapter, key)[0])
    except OSError:
        return values
    return values


def _vendor_of(hardware_id: str) -> int | None:
    r"""0x8086 of "PCI\VEN_8086&DEV_9A49"."""
    _, separator, rest = hardware_id.upper().partition("VEN_")
    try:
        return int(rest[:4], 16) if separator else None
    except ValueError:
        return None


def _number(path: Path) -> int | None:
    """Of a file such as "0x8086"."""
    try:
        return int(path.read_text(encoding="utf-8").strip(), 16)
    except (OSError, ValueError):
        return None
