"""What a load says when memory runs out in the middle of it: every runtime has another message for that."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from embedllm.backends.base import Unsupported
from embedllm.files.command_line import shell_word

if TYPE_CHECKING:
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.package.package import Package

# of C++ (Linux and macOS, Windows), of malloc and mmap, of ONNX Runtime, OpenVINO, CUDA, Vulkan and Direct3D, OpenCL
_MESSAGES = re.compile(
    r"bad_alloc|bad allocation|cannot allocate memory|(failed|unable) to allocate|can't alloc\b|"
    r"out[ _-]of[ _-](\w+[ _-])?memory|E_OUTOFMEMORY|8007000E|not enough memory|paging file is too small|"
    r"MEM_OBJECT_ALLOCATION_FAILURE|exceeded max size of memory",
    re.IGNORECASE,
)
_WINDOWS = (8, 1455)  # ERROR_NOT_ENOUGH_MEMORY, ERROR_COMMITMENT_LIMIT


def ran_out(error: BaseException) -> bool:
    """Whether an error is of memory that was not there, or has such a cause."""
    return any(
        isinstance(one, MemoryError)
        or (isinstance(one, OSError) and (one.errno == errno.ENOMEM or getattr(one, "winerror", None) in _WINDOWS))
        or _MESSAGES.search(str(one)) is not None
        for one in _causes(error)
    )


def memory_ran_out(package: Package, memory: MemoryEstimate, error: BaseException) -> Unsupported:
    """Why a load failed for want of memory, with what it needs, and what helps. memory: on the device of the load."""
    free = "" if memory.free_bytes is None else f"; {memory.free_bytes / 2**20:,.0f} MiB were free"
    message = str(error).strip() or type(error).__name__
    reason = f"memory ran out while it was loaded: '{package.name}' needs {memory}{free} ({message.rstrip('.')})"
    remedy = (
        "close other programs and models, take a smaller package, or a smaller context (load(context=N)); "
        f"'embedllm fit {shell_word(package.folder)}' says what each device needs"
    )
    return Unsupported(reason, remedy)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
