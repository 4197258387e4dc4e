"""The machine in words and numbers: what a speed is worth nothing without."""

from __future__ import annotations

import platform

import psutil

from embedllm.backends.system.cpu_threads import compute_threads, usable
from embedllm.backends.system.hardware import processor


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, system and how busy it is now."""
    return {
        "cpu": processor(),
        "cores": psutil.cpu_count(logical=False),
        "processors": psutil.cpu_count(),  # as the system counts them: threads of cores
        "usable_processors": usable(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": load_average(),
    }


def load_average() -> float:
    """Processes that ran or wanted to, in the mean of the last minute: what else is measured too."""
    return psutil.getloadavg()[0]


def usual_threads() -> int:
    """One a physical core that this process may use."""
    return compute_threads() or psutil.cpu_count(logical=False) or 1
