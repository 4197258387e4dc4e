"""The Vulkan drivers of a Linux system, asked directly: WebGPU's provider does not tell which of them it takes."""

from __future__ import annotations

import ctypes
import struct
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint32, c_void_p
from dataclasses import dataclass

_LOADER = "libvulkan.so.1"
_SUCCESS, _INCOMPLETE = 0, 5
_KINDS = {1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}  # VkPhysicalDeviceType
_ORDER = ("discrete", "integrated", "virtual", "", "software")  # in which Dawn prefers them for performance
_PROPERTIES = struct.Struct("5I256s")  # the beginning of VkPhysicalDeviceProperties, which is 824 bytes long
_MOST_TYPES, _MOST_HEAPS, _LOCAL = 32, 16, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A device that a Vulkan driver drives."""

    name: str
    kind: str  # "discrete", "integrated", "virtual", "software"; empty: none of them
    vendor_id: int  # PCI; of software: whatever its makers chose
    device_id: int
    driver: int  # its version, in the driver's own encoding
    memory: int  # bytes of its own

    @property
    def is_software(self) -> bool:
        return self.kind == "software"


class _InstanceInfo(ctypes.Structure):
    """VkInstanceCreateInfo."""

    _fields_ = (
        ("type", c_uint32),
        ("next", c_void_p),
        ("flags", c_uint32),
        ("application", c_void_p),
        ("layer_count", c_uint32),
        ("layers", POINTER(c_char_p)),
        ("extension_count", c_uint32),
        ("extensions", POINTER(c_char_p)),
    )


class _Heap(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint64), ("flags", c_uint32))


class _Memory(ctypes.Structure):
    """VkPhysicalDeviceMemoryProperties."""

    _fields_ = (
        ("type_count", c_uint32),
        ("types", c_uint32 * 2 * _MOST_TYPES),
        ("heap_count", c_uint32),
        ("heaps", _Heap * _MOST_HEAPS),
    )


def adapters() -> list[Adapter] | None:
    """What the installed drivers drive, best first; None when there is no Vulkan loader."""
    try:
        vulkan = ctypes.CDLL(_LOADER)
    except OSError:
        return None
    instance = c_void_p()
    info = _InstanceInfo(type=1)  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
    if vulkan.vkCreateInstance(byref(info), None, byref(instance)) != _SUCCESS:
        return []  # VK_ERROR_INCOMPATIBLE_DRIVER: the loader has no driver
    try:
        gpus = [_described(vulkan, device) for device in _devices(vulkan, instance)]
    finally:
        vulkan.vkDestroyInstance(instance, None)
    return sorted(gpus, key=lambda adapter: _ORDER.index(adapter.kind))


def _devices(vulkan: ctypes.CDLL, instance: c_void_p) -> list[c_void_p]:
    vulkan.vkEnumeratePhysicalDevices.restype = c_int32
    count = c_uint32()
    if vulkan.vkEnumeratePhysicalDevices(instance, byref(count), None) != _SUCCESS or not count.value:
        return []
    handles = (c_void_p * count.value)()
    if vulkan.vkEnumeratePhysicalDevices(instance, byref(count), handles) not in (_SUCCESS, _INCOMPLETE):
        return []
    return [c_void_p(handle) for handle in handles[: count.value]]


def _described(vulkan: ctypes.CDLL, device: c_void_p) -> Adapter:
    properties = ctypes.create_string_buffer(1024)
    vulkan.vkGetPhysicalDeviceProperties(device, properties)
    _, driver, vendor, number, kind, name = _PROPERTIES.unpack_from(properties)
    memory = _Memory()
    vulkan.vkGetPhysicalDeviceMemoryProperties(device, byref(memory))
    kind_name = _KINDS.get(kind, "")
    return Adapter(
        name=name.partition(b"\0")[0].decode(errors="replace"),
        kind=kind_name,
        vendor_id=vendor,
        device_id=number,
        driver=driver,
        # of the others it is the machine's
        memory=sum(heap.size for heap in memory.heaps[: memory.heap_count] if heap.flags & _LOCAL)
        if kind_name == "discrete"
        else 0,
    )
