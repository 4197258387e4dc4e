"""The machine in words and numbers: what a speed is worth nothing without."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import psutil

from embedllm.backends.threads import compute_threads

_CPUINFO = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, system and how busy it is now."""
    return {
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "processors": psutil.cpu_count(),  # as the system counts them: threads of cores
        "usable_processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": load_average(),
    }


def cpu_name(cpuinfo: Path = _CPUINFO) -> str:
    """The processor's own name for itself, or its kind where it tells none."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return value.strip()
    if sys.platform == "darwin":
        import subprocess

        done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
        if done.stdout.strip():
            return done.stdout.strip()
    return platform.processor() or platform.machine()


def load_average() -> float:
    """Processes that ran or wanted to, in the mean of the last minute: what else is measured too."""
    return psutil.getloadavg()[0]


def usual_threads() -> int:
    """One a physical core that this process may use."""
    return compute_threads() or psutil.cpu_count(logical=False) or 1
