"""What NVIDIA's driver tells about its GPUs, and a stream on one: the driver API by ctypes, without CUDA's libraries.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html. It counts devices as the CUDA runtime does, the
environment variable CUDA_VISIBLE_DEVICES included.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass
from functools import cache

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_LONGEST_NAME = 256
_MAJOR, _MINOR = 75, 76  # attributes: compute capability
_NON_BLOCKING = 1  # a stream that waits for nothing on the default one


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU."""

    name: str  # "NVIDIA H200"
    memory: int  # bytes
    capability: str  # of its instruction set: "9.0"


def gpus(library: str = LIBRARY) -> list[Gpu]:
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


def stream(index: int, library: str = LIBRARY) -> int | None:
    """The address of a stream on that GPU, the same for all of this process; None where the driver gives none.

    Everything that runs on one stream is faster for it: on an H200 each captured step took 140 us more from the moment
    when anything ran on a second one (docs/cuda.md).
    """
    with _LOCK:
        return _stream(index, library)


_LOCK = threading.Lock()


@cache
def _stream(index: int, library: str) -> int | None:
    handle, device, context = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_void_p()
    try:
        driver = ctypes.CDLL(library)
        if (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), index)
            or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            or driver.cuCtxPushCurrent_v2(context)
        ):
            return None
        failed = driver.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    except (OSError, AttributeError):
        return None
    return None if failed else handle.value
