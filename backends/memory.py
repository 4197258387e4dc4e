"""Gives memory that was freed back to the system, where the C library would keep it."""

from __future__ import annotations

import sys


def return_freed_memory() -> None:
    """To be called when something large was freed; does nothing where it is not needed.

    glibc takes large blocks from the system one by one and gives each back, but whenever one is freed it raises the
    size from which it does so, up to 32 MiB (man mallopt, M_MMAP_THRESHOLD). From the second model on, the weights lie
    in its heap, and all of them stay there after they were freed.
    """
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and does not need it
        if trim is not None:
            trim(0)
