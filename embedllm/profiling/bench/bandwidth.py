"""Memory bandwidth of this machine, with the number of threads of the engines."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

_BYTES = 256 << 20  # far more than any cache holds
_PASSES = 4


class Reader:
    """Finds the largest of many integers, part by part: NumPy lets go of the interpreter while it reads."""

    def __init__(self, threads: int, *, size: int = _BYTES) -> None:
        """threads: at least 1. size: bytes."""
        self.threads = threads
        self._size = size

    @cached_property
    def _parts(self) -> list[np.ndarray]:
        return np.array_split(np.ones(self._size // 4, np.int32), self.threads)  # written, so that pages are there

    def rate(self) -> float:
        """Bytes a second, of the best of a few passes."""
        parts = self._parts
        best = 0.0
        with ThreadPoolExecutor(self.threads) as threads:
            for _ in range(_PASSES):
                start = time.perf_counter()
                list(threads.map(np.max, parts))
                best = max(best, self._size / (time.perf_counter() - start))
        return best
