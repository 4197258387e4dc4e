"""Chooses a device: pure, from what the probes found and what the caller wishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    names = plain(wish)
    wishes = [names] if isinstance(names, str) else names
    tried: list[tuple[str, str, str]] = []
    for name in wishes:
        for candidate in _RANKING if name == AUTO else (name,):
            device = next((device for device in devices if device.name == candidate), None)
            if device is not None and device.available:
                return Choice(device, tuple((name, reason) for name, reason, _ in tried))
            tried.append(_refusal(candidate, device, devices))
    listed = "; ".join(f"'{name}': {reason}" + (f" ({remedy})" if remedy else "") for name, reason, remedy in tried)
    raise DeviceUnavailable(f"no device can run this model. Tried {listed}.", tried)


def plain(wish: str | Sequence[str]) -> str | list[str]:
    """A wish as devices are named: without blanks around the names, in small letters up to a colon.

    Raises ValueError for what is no name or list of names.
    """
    names = [wish] if isinstance(wish, str) else list(wish)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError(f"device is {wish!r}; expected a name such as 'cpu', 'auto', or a list of names.")
    cleaned = []
    for name in names:
        start, colon, rest = name.strip().partition(":")
        cleaned.append(start.lower() + colon + rest)
    return cleaned[0] if isinstance(wish, str) else cleaned


def without(devices: Sequence[Device], device: Device, reason: str) -> list[Device]:
    """The devices, this one no longer available."""
    return [replace(d, available=False, reason=reason, remedy="") if d.name == device.name else d for d in devices]


def _refusal(name: str, device: Device | None, devices: Sequence[Device]) -> tuple[str, str, str]:
    if device is not None:
        return name, device.reason, device.remedy
    known = ", ".join(repr(device.name) for device in devices if device.available)
    return name, f"not found by {_backends(devices)}", f"available: {known}"


def _backends(devices: Sequence[Device]) -> str:
    return " or ".join(dict.fromkeys(device.backend for device in devices)) or "any backend"
