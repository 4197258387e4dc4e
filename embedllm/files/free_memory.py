"""How much memory this process can still take without swapping: by the system, and by its container's limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/sys/fs/cgroup")
_OF_PROCESS = Path("/proc/self/cgroup")
# of control groups of either version: limit, what is used, and what of that is the cache of files (cgroup-v2.rst)
_VERSIONS = {
    "": ("memory.max", "memory.current", ("inactive_file", "active_file")),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}


def free_bytes() -> int | None:
    """What can be taken; None where nothing tells it."""
    try:
        import psutil  # no wheels for phones
    except ImportError:
        return None
    return min([psutil.virtual_memory().available, *_left_in_groups()])


def _left_in_groups(root: Path = _ROOT, of_process: Path = _OF_PROCESS) -> Iterator[int]:
    """What each control group that this process is in, or that holds those, still allows. Linux; elsewhere none."""
    try:
        lines = of_process.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in _VERSIONS:
            continue
        group = PurePosixPath(path)
        for inner in (group, *group.parents):  # in a container the path may be the host's, and only "/" be there
            yield from _left(root / controllers / inner.relative_to("/"), *_VERSIONS[controllers])


def _left(group: Path, limit: str, used: str, cached: tuple[str, ...]) -> Iterator[int]:
    try:
        most, used_bytes = (
            (group / limit).read_text(encoding="utf-8").strip(),
            int((group / used).read_text(encoding="utf-8")),
        )
        pairs = (line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
        stat = {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return
    if most != "max":
        yield max(int(most) - used_bytes + sum(stat.get(name, 0) for name in cached), 0)
