"""What was measured of a model on this machine, and what follows from it for load(). Standard library only."""

from __future__ import annotations

import time
from dataclasses import dataclass

from embedllm.backends.options import DEFAULT, RuntimeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How fast a device was with one setting; medians of the rounds."""

    device: str
    runtime: RuntimeOptions
    prefill_tokens_s: float
    decode_tokens_s: float
    seconds: float  # that a prompt of 256 tokens and a reply of 64 take by these
    ratio: float  # of those seconds to the device's default, median of the rounds; below 1 is faster
    rounds: int
    is_chosen: bool  # the device is run so from now on

    @property
    def speed(self) -> str:
        """In words."""
        return f"{self.prefill_tokens_s:,.0f} tokens/s of a prompt, {self.decode_tokens_s:,.0f} of a reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What tune() measured and chose; for loads with the same `exact` and `kv`."""

    model: str
    """The model's name."""
    exact: bool
    """Whether load(exact=True) was measured."""
    kv: str | None
    """What the KV cache was stored as; None = the default."""
    device: str
    """What "auto" takes; empty: the one that it takes anyway was not measured."""
    measured: tuple[Measured, ...]
    """Each device with the settings that were best on it."""
    left_out: tuple[tuple[str, str], ...]
    """Devices, and settings of them, that were not measured, and why."""
    took_s: float
    """Seconds that measuring took."""
    at: float
    """When, in seconds since 1970."""
    unkept: str = ""
    """Why it is not remembered."""

    def chosen(self, device: str) -> Measured | None:
        """The setting that a device is run with; None when it was not measured."""
        return next((one for one in self.measured if one.device == device and one.is_chosen), None)

    @property
    def date(self) -> str:
        """The day of measuring, as "2026-11-23"."""
        return time.strftime("%Y-%m-%d", time.localtime(self.at))

    def runtime(self, device: str) -> RuntimeOptions:
        """How to run a device; one that was not measured by its default."""
        chosen = self.chosen(device)
        return DEFAULT if chosen is None else chosen.runtime
