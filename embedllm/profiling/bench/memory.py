"""How much memory this process has taken."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The most that was resident since the process began, files that are mapped included."""
    if _STATUS.exists():  # ru_maxrss begins with what the parent had
        return _line("VmHWM")
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset  # type: ignore[union-attr]  # there on Windows
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def private_bytes() -> int | None:
    """What is resident now and no file's; None where the system does not tell (elsewhere than on Linux)."""
    return _line("RssAnon") if _STATUS.exists() else None


def _line(key: str) -> int:
    entry = next(line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{key}:"))
    return int(entry.split()[1]) * 1024
