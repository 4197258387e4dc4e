"""Chooses a device: pure, from what the probes found and what the caller wishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedllm.backends.base import Device
from embedllm.errors import DeviceUnavailable

AUTO = "auto"
_RANKING = ("cpu",)  # what "auto" may choose, best first; a device that only checks others is never among them


@dataclass(frozen=True, slots=True)
class Choice:
    """The device to use, and why not the ones before it."""

    device: Device
    passed_over: tuple[tuple[str, str], ...]  # (device, reason)


def choose(devices: Sequence[Device], wish: str | Sequence[str]) -> Choice:
    """The first device of the wish that is available.

    wish: a device's name, "auto", or a list of such that are tried in order.
    Raises DeviceUnavailable, with what was tried, when there is none; ValueError for an empty wish.
    """
    wishes = [wish] if isinstance(wish, str) else list(wish)
    if not wishes or not all(isinstance(name, str) and name for name in wishes):
        raise ValueError(f"device is {wish!r}; expected a name such as 'cpu', 'auto', or a list of names.")
    tried: list[tuple[str, str, str]] = []
    for name in wishes:
        for candidate in _RANKING if name == AUTO else (name,):
            device = next((device for device in devices if device.name == candidate), None)
            if device is not None and device.available:
                return Choice(device, tuple((name, reason) for name, reason, _ in tried))
            tried.append(_refusal(candidate, device, devices))
    listed = "; ".join(f"'{name}': {reason}" + (f" ({remedy})" if remedy else "") for name, reason, remedy in tried)
    raise DeviceUnavailable(f"no device can run this model. Tried {listed}.", tried)


def _refusal(name: str, device: Device | None, devices: Sequence[Device]) -> tuple[str, str, str]:
    if device is not None:
        return name, device.reason, device.remedy
    known = ", ".join(repr(device.name) for device in devices if device.available)
    return name, f"not found by {_backends(devices)}", f"available: {known}"


def _backends(devices: Sequence[Device]) -> str:
    return " or ".join(dict.fromkeys(device.backend for device in devices)) or "any backend"
