"""How many threads suit this machine: its physical cores, as far as this process may use them."""

from __future__ import annotations

import os
from pathlib import Path


def compute_threads() -> int:
    """Threads for matrix products: one a physical core, bounded by affinity and by the container's CPU quota.

    A second thread on a core shares its vector units and only slows the first one down. Where the system does not
    tell its physical cores (Windows, macOS) the runtime counts them itself, better than we can: then 0.
    """
    quota, cores = _quota(), _physical_cores()
    bounds = [bound for bound in (usable(), quota, cores) if bound]
    return min(bounds) if cores or quota else 0


def usable() -> int:
    """Processors that this process may use, both of a core that has two; bounded by the container's CPU quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, _quota() or count)


def _physical_cores() -> int:
    """Cores of the usable processors, by Linux' topology files; 0 where there are none."""
    if not hasattr(os, "sched_getaffinity"):
        return 0
    cores = set()
    for cpu in os.sched_getaffinity(0):
        # not core_id, which begins again in each cluster of an ARM machine that is described by a device tree
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text(encoding="utf-8").strip())
        except OSError:
            return 0
    return len(cores)


def _quota() -> int:
    """CPUs that the container may use, rounded up (cgroup 2); 0 without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return 0
    return 0 if limit == "max" else max(1, -(-int(limit) // int(period)))
