"""Has NumPy make products on the thread that asks for them, while there are many small ones.

OpenBLAS shares out products of a few hundred rows among threads that wait for each other in a loop. Where other
processes have the cores, each wait takes as long as the scheduler lets them run: a hundred times the product's own time
(docs/numerics.md#busy-machines). NumPy has no function for the number of threads, OpenBLAS has.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock

_EXTENSIONS = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")  # linked with the BLAS; NumPy 2 and 1
# OpenBLAS as it names its functions, and as NumPy's wheels rename them
_NAMES = ("openblas_{}_num_threads", "openblas_{}_num_threads64_",
          "scipy_openblas_{}_num_threads", "scipy_openblas_{}_num_threads64_")  # fmt: skip
_lock = Lock()
_inside = _before = 0  # blocks that are being run, and the threads before the first of them


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within it products of all threads of this process are made on the thread that asks for them.

    Does nothing for another BLAS than OpenBLAS (Accelerate, MKL).
    """
    global _inside, _before
    functions = _openblas()
    if functions is None:
        yield
        return
    count, limit = functions
    with _lock:
        if not _inside:
            _before = count()
            limit(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                limit(_before)


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What tells its number of threads, and what sets it; None where NumPy is built with something else."""
    file = next((sys.modules[name].__file__ for name in _EXTENSIONS if name in sys.modules), None)
    if file is None:
        return None
    extension = Path(file)
    # the functions of what is linked with a library are found through it, except on Windows
    beside = sorted((extension.parents[2] / "numpy.libs").glob("*openblas*.dll"))
    for path in (extension, *beside):
        try:
            library = ctypes.CDLL(str(path))  # NumPy has loaded it already
        except OSError:
            continue
        for name in _NAMES:
            if hasattr(library, name.format("get")) and hasattr(library, name.format("set")):
                count, limit = library[name.format("get")], library[name.format("set")]
                count.argtypes, count.restype = [], ctypes.c_int
                limit.argtypes, limit.restype = [ctypes.c_int], None
                return count, limit
    return None
