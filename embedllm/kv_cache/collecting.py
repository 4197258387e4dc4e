"""Whether the garbage collector runs in this thread. Standard library only.

It may begin at any line, in a thread that has a lock or leads a run of others: what it ends there cannot wait for them.
"""

from __future__ import annotations

import gc
import threading

_local = threading.local()


def watch_collecting() -> None:
    """To be called before is_collecting()."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def is_collecting() -> bool:
    """Whether the caller is the end of something that is being collected."""
    return getattr(_local, "is_collecting", False)


def _note(phase: str, info: dict[str, int]) -> None:
    _local.is_collecting = phase == "start"
