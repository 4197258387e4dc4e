"""What NVIDIA's driver tells about its GPUs, without any of CUDA's libraries: the driver API by ctypes.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html. It counts devices as the CUDA runtime does, the
environment variable CUDA_VISIBLE_DEVICES included.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_LONGEST_NAME = 256
_MAJOR, _MINOR = 75, 76  # attributes: compute capability


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU."""

    name: str  # "NVIDIA H200"
    memory: int  # bytes
    capability: str  # of its instruction set: "9.0"


def gpus(library: str = _LIBRARY) -> list[Gpu]:
    """The GPUs in the order of their CUDA indices; none without a driver or where it finds none."""
    try:
        driver = ctypes.CDLL(library)
        if driver.cuInit(0):
            return []
        count = ctypes.c_int()
        if driver.cuDeviceGetCount(ctypes.byref(count)):
            return []
        return [_gpu(driver, index) for index in range(count.value)]
    except (OSError, AttributeError):  # no such library, or none of NVIDIA's
        return []


def _gpu(driver: ctypes.CDLL, index: int) -> Gpu:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(_LONGEST_NAME)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, _LONGEST_NAME, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    return Gpu(
        name=name.value.decode(errors="replace"),
        memory=memory.value,
        capability=f"{attribute(_MAJOR)}.{attribute(_MINOR)}",
    )
