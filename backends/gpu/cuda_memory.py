"""Memory of an NVIDIA GPU, by the driver API: copies on the stream that ONNX Runtime runs on, and mapped memory.

https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html and, for regions that grow without being moved,
group__CUDA__VA.html: addresses are reserved for all that a region may become, and memory is mapped there as it grows.
"""

from __future__ import annotations

import ctypes
from collections import deque
from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from embedllm.backends.gpu.cuda_driver import LIBRARY, stream
from embedllm.backends.gpu.device_memory import DeviceMemory, PlainRegion, Region
from embedllm.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_RING = 1 << 20  # bytes of host memory that the GPU reads by itself, for what is written to it
_KEPT = 256 << 20  # bytes of freed memory that the driver keeps for the next allocation
_SHORT = 2  # CUDA_ERROR_OUT_OF_MEMORY
_MAPS = 102  # attribute: virtual memory management
_RELEASE_THRESHOLD = 4  # attribute of a memory pool
_UNIFIED = 4  # an address is enough to tell whose memory it is
_HOST = 1
_NO_TIMING = 2  # flag of an event
_READING = 16 << 10  # bytes that are read without waiting, at most
_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_: ClassVar = [
        ("srcXInBytes", c_size_t), ("srcY", c_size_t), ("srcMemoryType", c_int), ("srcHost", c_void_p),
        ("srcDevice", c_uint64), ("srcArray", c_void_p), ("srcPitch", c_size_t),
        ("dstXInBytes", c_size_t), ("dstY", c_size_t), ("dstMemoryType", c_int), ("dstHost", c_void_p),
        ("dstDevice", c_uint64), ("dstArray", c_void_p), ("dstPitch", c_size_t),
        ("WidthInBytes", c_size_t), ("Height", c_size_t),
    ]  # fmt: skip


class _Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_: ClassVar = [("type", c_int), ("id", c_int)]


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_: ClassVar = [
        ("type", c_int), ("requestedHandleTypes", c_int), ("location", _Location), ("win32HandleMetaData", c_void_p),
        ("allocFlags", c_uint64),
    ]  # fmt: skip


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_: ClassVar = [("location", _Location), ("flags", c_int)]


_FUNCTIONS: dict[str, list[object]] = {
    "cuDeviceGet": [c_void_p, c_int],
    "cuDeviceGetAttribute": [c_void_p, c_int, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuStreamSynchronize": [c_void_p],
    "cuEventCreate": [c_void_p, c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuMemGetInfo_v2": [c_void_p, c_void_p],
    "cuMemAllocHost_v2": [c_void_p, c_size_t],
    "cuMemAllocAsync": [c_void_p, c_size_t, c_void_p],
    "cuMemFreeAsync": [c_uint64, c_void_p],
    "cuDeviceGetDefaultMemPool": [c_void_p, c_int],
    "cuMemPoolSetAttribute": [c_void_p, c_int, c_void_p],
    "cuMemPoolTrimTo": [c_void_p, c_size_t],
    "cuMemsetD8Async": [c_uint64, c_int, c_size_t, c_void_p],
    "cuMemcpyDtoDAsync_v2": [c_uint64, c_uint64, c_size_t, c_void_p],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemcpy2DAsync_v2": [c_void_p, c_void_p],
    "cuMemGetAllocationGranularity": [c_void_p, c_void_p, c_int],
    "cuMemAddressReserve": [c_void_p, c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemAddressFree": [c_uint64, c_size_t],
    "cuMemCreate": [c_void_p, c_size_t, c_void_p, c_uint64],
    "cuMemRelease": [c_uint64],
    "cuMemMap": [c_uint64, c_size_t, c_size_t, c_uint64, c_uint64],
    "cuMemUnmap": [c_uint64, c_size_t],
    "cuMemSetAccess": [c_uint64, c_size_t, c_void_p, c_size_t],
}


class CudaMemory(DeviceMemory):
    """Memory of one GPU. What is freed in another thread is given back by the next operation of the own one."""

    def __init__(self, index: int, library: str = LIBRARY) -> None:
        """Raises DeviceError when the driver is not there, or too old (CUDA 11.2 is needed)."""
        shared = stream(index, library)
        if shared is None:
            raise DeviceError(f"NVIDIA's driver gives no stream on GPU {index}; check with nvidia-smi")
        self.stream = shared
        self._functions = _load(library)
        self._freed: deque[int] = deque()
        self._readings: list[tuple[int, int]] = []  # places and events that are not in use
        device, context, ring, pool = c_int(), c_void_p(), c_void_p(), c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.value)
        self._context, self._device = context.value, device.value
        self.enter()
        self.call("cuMemAllocHost_v2", ctypes.byref(ring), _RING)
        assert ring.value is not None
        self._ring, self._next = ring.value, 0
        self.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), self._device)
        self._pool = pool.value
        self.call("cuMemPoolSetAttribute", self._pool, _RELEASE_THRESHOLD, ctypes.byref(c_uint64(_KEPT)))
        maps = c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(maps), _MAPS, self._device)
        self._maps = bool(maps.value)

    def call(self, name: str, *arguments: object) -> None:
        """Raises DeviceError unless the driver did it."""
        if status := self._functions[name](*arguments):
            reason = "out of memory" if status == _SHORT else f"{name} gave CUDA error {status}"
            raise DeviceError(f"the GPU's driver failed: {reason}")

    def enter(self) -> None:
        """Makes this GPU the current one of the thread, and frees what is to be freed."""
        self.call("cuCtxSetCurrent", self._context)
        while self._freed:
            self.call("cuMemFreeAsync", self._freed.popleft(), self.stream)

    def allocate(self, size: int) -> int:
        self.enter()
        address = c_uint64()
        self.call("cuMemAllocAsync", ctypes.byref(address), size, self.stream)
        return address.value

    def free(self, address: int) -> None:
        self._freed.append(address)

    def reserve(self, size: int) -> Region:
        self.enter()
        return _MappedRegion(self, self._device, size) if self._maps else PlainRegion(self)

    def zero(self, address: int, size: int) -> None:
        self.enter()
        self.call("cuMemsetD8Async", address, 0, size, self.stream)

    def copy(self, to: int, source: int, *, width: int, rows: int = 1, to_pitch: int = 0, pitch: int = 0) -> None:
        self.enter()
        if rows == 1 or width == to_pitch == pitch:
            self.call("cuMemcpyDtoDAsync_v2", to, source, width * rows, self.stream)
        else:
            self._copy_rows(to, to_pitch, source, pitch, width=width, rows=rows)

    def write(self, to: int, array: NDArray[np.generic], *, to_pitch: int = 0) -> None:
        self.enter()
        values = np.ascontiguousarray(array)
        is_small = values.nbytes <= _RING // 4
        source = self._stage(values) if is_small else values.ctypes.data
        width = values.nbytes // len(values)
        if to_pitch in (0, width):
            self.call("cuMemcpyHtoDAsync_v2", to, source, values.nbytes, self.stream)
        else:
            self._copy_rows(to, to_pitch, source, width, width=width, rows=len(values), is_from_host=not is_small)
        if not is_small:
            self.synchronize()  # the array may go with this call

    def read(self, source: int, array: NDArray[np.generic], *, pitch: int = 0) -> None:
        self.enter()
        width = array.nbytes // len(array)
        is_small = array.nbytes <= _RING // 4
        to = self._place(array.nbytes) if is_small else array.ctypes.data
        if pitch in (0, width):
            self.call("cuMemcpyDtoHAsync_v2", to, source, array.nbytes, self.stream)
        else:
            self._copy_rows(to, width, source, pitch, width=width, rows=len(array), is_to_host=not is_small)
        self.synchronize()
        if is_small:
            ctypes.memmove(array.ctypes.data, to, array.nbytes)

    def begin_read(self, source: int, array: NDArray[np.generic]) -> Callable[[], None]:
        self.enter()
        assert array.nbytes <= _READING
        to, event = self._readings.pop() if self._readings else self._new_reading()
        self.call("cuMemcpyDtoHAsync_v2", to, source, array.nbytes, self.stream)
        self.call("cuEventRecord", event, self.stream)

        def finish() -> None:
            self.call("cuEventSynchronize", event)
            ctypes.memmove(array.ctypes.data, to, array.nbytes)
            self._readings.append((to, event))

        return finish

    def synchronize(self) -> None:
        self.call("cuCtxSetCurrent", self._context)
        self.call("cuStreamSynchronize", self.stream)

    def free_bytes(self) -> int:
        return self._info()[0]

    def total_bytes(self) -> int:
        return self._info()[1]

    def trim(self) -> None:
        self.enter()
        self.synchronize()
        self.call("cuMemPoolTrimTo", self._pool, 0)

    def _new_reading(self) -> tuple[int, int]:
        """Host memory that the GPU writes by itself, and an event."""
        to, event = c_void_p(), c_void_p()
        self.call("cuMemAllocHost_v2", ctypes.byref(to), _READING)
        self.call("cuEventCreate", ctypes.byref(event), _NO_TIMING)
        assert to.value is not None
        assert event.value is not None
        return to.value, event.value

    def _info(self) -> tuple[int, int]:
        self.enter()
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def _place(self, size: int) -> int:
        """Room in the ring, once nothing there is used any more."""
        if self._next + size > _RING:
            self.synchronize()
            self._next = 0
        address = self._ring + self._next
        self._next += -(-size // 64) * 64
        return address

    def _stage(self, values: NDArray[np.generic]) -> int:
        address = self._place(values.nbytes)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)
        return address

    def _copy_rows(
        self, to: int, to_pitch: int, source: int, pitch: int, *, width: int, rows: int,
        is_from_host: bool = False, is_to_host: bool = False,
    ) -> None:  # fmt: skip
        """is_from_host, is_to_host: memory that the driver does not know."""
        copy = _Copy2D(srcPitch=pitch, dstPitch=to_pitch, WidthInBytes=width, Height=rows)
        copy.srcMemoryType = _HOST if is_from_host else _UNIFIED
        copy.dstMemoryType = _HOST if is_to_host else _UNIFIED
        copy.srcHost, copy.srcDevice = (source, 0) if is_from_host else (None, source)
        copy.dstHost, copy.dstDevice = (to, 0) if is_to_host else (None, to)
        self.call("cuMemcpy2DAsync_v2", ctypes.byref(copy), self.stream)


@cache
def memory_of(index: int) -> CudaMemory:
    """The memory of a GPU, the same for all engines of this process."""
    return CudaMemory(index)


def _load(library: str) -> dict[str, ctypes._NamedFuncPointer]:
    try:
        driver = ctypes.CDLL(library)
        functions = {name: getattr(driver, name) for name in _FUNCTIONS}
    except (OSError, AttributeError) as error:
        raise DeviceError(f"NVIDIA's driver is too old, update it: {error}") from error
    for name, arguments in _FUNCTIONS.items():
        functions[name].argtypes = arguments
    return functions


class _MappedRegion:
    """Addresses for all that it may become; memory is mapped behind what is there."""

    def __init__(self, memory: CudaMemory, device: int, size: int) -> None:
        self._memory = memory
        location = _Location(_ON_DEVICE, device)
        self._properties = _Properties(type=_PINNED, location=location)
        self._access = _Access(location, _READ_WRITE)
        granularity, address = c_size_t(), c_uint64()
        memory.call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self._properties), 0)
        self._granularity = granularity.value
        self._reserved = self._rounded(size)
        memory.call("cuMemAddressReserve", ctypes.byref(address), self._reserved, 0, 0, 0)
        self.address = address.value
        self._parts: list[tuple[int, int]] = []  # where each begins, and its size
        self._size = 0

    def resize(self, size: int) -> bool:
        memory, target = self._memory, self._rounded(size)
        memory.enter()
        if target > self._reserved:
            raise DeviceError("the GPU's driver failed: out of memory")
        if target > self._size:
            self._map(target - self._size)
        while self._parts and self._parts[-1][0] >= target:
            start, length = self._parts.pop()
            memory.synchronize()
            memory.call("cuMemUnmap", self.address + start, length)
            self._size = start
        return False

    def close(self) -> None:
        self.resize(0)
        self._memory.call("cuMemAddressFree", self.address, self._reserved)

    def _map(self, size: int) -> None:
        memory, handle, start = self._memory, c_uint64(), self.address + self._size
        memory.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(self._properties), 0)
        try:
            memory.call("cuMemMap", start, size, 0, handle.value, 0)
        finally:
            memory.call("cuMemRelease", handle.value)  # once it is mapped the mapping alone holds it
        try:
            memory.call("cuMemSetAccess", start, size, ctypes.byref(self._access), 1)
        except DeviceError:
            memory.call("cuMemUnmap", start, size)
            raise
        self._parts.append((self._size, size))
        self._size += size

    def _rounded(self, size: int) -> int:
        return -(-size // self._granularity) * self._granularity
