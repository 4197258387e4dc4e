"""What the machine draws while it answers, where the system lets an application read it: Linux, so far.

The processor's own energy counter (RAPL; mostly readable by root only), or else what leaves the battery.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/class")


@dataclass(frozen=True, slots=True)
class Counter:
    """An energy counter of one processor package: microjoules, from 0 again after `range_uj`."""

    file: Path
    range_uj: int

    def read(self) -> int | None:
        return _number(self.file)


class PowerMeter:
    """Mean power over the time between start() and stop(), which may be called in turn several times."""

    def __init__(self, system: Path = SYSTEM, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._system = system
        self._clock = clock
        self._counters = [
            Counter(folder / "energy_uj", _number(folder / "max_energy_range_uj") or 0)
            for folder in sorted(system.glob("powercap/intel-rapl:*"))  # AMD's processors have the same name here
            if _text(folder / "name").startswith("package")
        ]
        self._begun: tuple[float, list[int | None]] | None = None
        self._joules = self._seconds = 0.0

    def start(self) -> None:
        self._begun = self._clock(), [counter.read() for counter in self._counters]

    def stop(self) -> None:
        if self._begun is None:
            return
        time_before, before = self._begun
        self._begun = None
        spent = [
            (after - earlier) % counter.range_uj if counter.range_uj else after - earlier
            for counter, earlier in zip(self._counters, before, strict=True)
            if earlier is not None and (after := counter.read()) is not None
        ]
        if spent:
            self._joules += sum(spent) / 1e6
            self._seconds += self._clock() - time_before

    def take(self) -> str:
        """Such as "14.2 W (processor)", since the last call; empty when nothing can be read."""
        joules, seconds = self._joules, self._seconds
        self._joules = self._seconds = 0.0
        if seconds > 0:
            return f"{joules / seconds:.1f} W (processor)"
        watts = battery_watts(self._system)
        return "" if watts is None else f"{watts:.1f} W (battery)"


def battery_watts(system: Path = SYSTEM) -> float | None:
    """What leaves the battery now; None on mains power, without a battery, or where it does not say."""
    for battery in sorted(system.glob("power_supply/BAT*")):
        if _text(battery / "status") != "Discharging":
            continue
        power = _number(battery / "power_now")
        if power is not None:
            return abs(power) / 1e6
        current, voltage = _number(battery / "current_now"), _number(battery / "voltage_now")
        if current is not None and voltage is not None:
            return abs(current) * voltage / 1e12
    return None


def battery_state(system: Path = SYSTEM) -> str:
    """Such as "81 %, discharging"; empty without a battery."""
    for battery in sorted(system.glob("power_supply/BAT*")):
        charge = _number(battery / "capacity")
        if charge is not None:
            return ", ".join(filter(None, (f"{charge} %", _text(battery / "status").lower())))
    return ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _number(file: Path) -> int | None:
    try:
        return int(_text(file))
    except ValueError:
        return None
