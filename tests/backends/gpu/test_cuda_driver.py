"""What the driver tells of GPUs, asked of a small library in C that answers as NVIDIA's does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from embedllm.backends.gpu.cuda_driver import Gpu, gpus, stream

SOURCE = """
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, device == 40 ? "Card A" : "Card B", size);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(device - 39) << 33; return 0; }
static int current = -1;
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(size_t)device; return 0; }
int cuCtxPushCurrent_v2(void *context) { current = (int)(size_t)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { current = -1; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)(size_t)(0x1000 + current); return flags != 1; }
int cuDeviceGetAttribute(int *value, int number, int device) { *value = number == 75 ? 8 : device - 40; return 0; }
"""


def driver(folder: Path, *, status: int = 0) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "driver.c").write_text(SOURCE)
    library = folder / f"driver{status}.so"
    command = [compiler, "-shared", "-fPIC", f"-DSTATUS={status}", "-o", library, folder / "driver.c"]
    subprocess.run(command, check=True)
    return str(library)


def test_each_gpu_is_told_with_its_name_and_memory(tmp_path: Path) -> None:
    assert gpus(driver(tmp_path)) == [
        Gpu(name="Card A", memory=8 << 30, capability="8.0"),
        Gpu(name="Card B", memory=16 << 30, capability="8.1"),
    ]


def test_a_driver_without_a_gpu_has_none(tmp_path: Path) -> None:
    assert gpus(driver(tmp_path, status=100)) == []


def test_no_driver_and_another_library_are_no_gpu() -> None:
    assert gpus("libnothing-of-that-name.so") == []
    assert gpus("libc.so.6") == []


@pytest.mark.gpu
def test_the_real_driver_tells_of_a_gpu() -> None:
    assert all("NVIDIA" in gpu.name and gpu.memory > 1 << 30 for gpu in gpus())
    assert gpus()


def test_a_gpu_has_one_stream(tmp_path: Path) -> None:
    library = driver(tmp_path)
    assert stream(0, library) == stream(0, library) == 0x1028
    assert stream(1, library) == 0x1029
    assert stream(0, driver(tmp_path, status=100)) is None
    assert stream(0, "libnothing-of-that-name.so") is None
