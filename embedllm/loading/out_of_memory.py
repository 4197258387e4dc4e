"""What a load says when memory runs out in the middle of it: every runtime has another message for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.backends.base import Unsupported
from embedllm.files.command_line import shell_word

if TYPE_CHECKING:
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.package.package import Package


def memory_ran_out(package: Package, memory: MemoryEstimate, error: BaseException, *, head: str = "") -> Unsupported:
    """Why a load failed for want of memory, with what it needs, and what helps.

    memory: on the device of the load. head: the name of the draft head that there was none left for.
    """
    free = "" if memory.free_bytes is None else f"; {memory.free_bytes / 2**20:,.0f} MiB were free"
    message = str(error).strip() or type(error).__name__
    began = f"memory ran out while its draft head '{head}' was loaded" if head else "memory ran out while it was loaded"
    without = " without it" if head else ""
    reason = f"{began}: '{package.name}' needs {memory}{without}{free} ({message.rstrip('.')})"
    remedy = (
        f"{'load it without draft=, ' if head else ''}close other programs and models, take a smaller package, or a "
        "smaller context (load(context=N)); "
        f"'embedllm fit {shell_word(package.folder)}' says what each device needs"
    )
    return Unsupported(reason, remedy)
