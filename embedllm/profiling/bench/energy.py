"""The processor's own energy counters (Intel's RAPL, by Linux), where they can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Meter:
    """The counters of all processor packages: their cores and caches, not the memory."""

    domains: tuple[Path, ...]
    ranges: tuple[int, ...]  # microjoules, after which a counter wraps around

    def read(self) -> tuple[int, ...]:
        """Microjoules, of each package."""
        return tuple(int((domain / "energy_uj").read_text(encoding="utf-8")) for domain in self.domains)

    def joules(self, before: Sequence[int], after: Sequence[int]) -> float:
        """Between two readings that lie less than one turn of a counter apart (minutes at full load)."""
        turned = zip(before, after, self.ranges, strict=True)
        return sum((late - early) % (size + 1) for early, late, size in turned) / 1e6


def open_meter(root: Path = _ROOT) -> Meter | str:
    """The counters, or why they cannot be read."""
    if not root.is_dir():
        return f"this system has no energy counters ({root})"
    domains = tuple(
        domain
        for domain in sorted(root.glob("intel-rapl:*"))
        if domain.name.count(":") == 1  # parts have two
    )
    if not domains:
        return f"this processor has no energy counters ({root}/intel-rapl:*)"
    try:
        meter = Meter(
            domains, tuple(int((domain / "max_energy_range_uj").read_text(encoding="utf-8")) for domain in domains)
        )
        meter.read()
    except (OSError, ValueError) as error:
        return f"the energy counters cannot be read ({error}); root can"
    return meter
