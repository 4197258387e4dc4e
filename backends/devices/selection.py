"""Which device is meant and which is best: pure, from what was found and what the caller wishes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from embedllm.backends.base import Device
from embedllm.backends.driver import family_name
from embedllm.errors import DeviceUnavailable
from embedllm.files.nearest import nearest

AUTO = "auto"
# what "auto" may choose, best first. Never an NPU, which compiles for minutes and has fixed shapes; never a device that
# only checks others. Where DirectML is installed it was chosen by whoever installed it: its build has no WebGPU
RANKINGS = {
    "win32": ("cuda", "directml", "webgpu", "openvino-gpu", "cpu"),
    "linux": ("cuda", "openvino-gpu", "webgpu", "cpu"),
    "darwin": ("webgpu", "cpu"),
}
_ELSEWHERE = ("cpu",)
# what other libraries call a device, and who has it here
_ELSEWHERE_CALLED = {
    "gpu": ("cuda", "directml", "webgpu", "openvino-gpu"),
    "nvidia": ("cuda", "tensorrt-rtx"),
    "amd": ("directml", "webgpu", "migraphx"),
    "rocm": ("migraphx",),
    "intel": ("openvino", "openvino-gpu", "npu"),
    "xpu": ("openvino-gpu",),
    "dml": ("directml",),
    "vulkan": ("webgpu",),
    "metal": ("webgpu", "coreml"),
    "mps": ("webgpu", "coreml"),
}
_SOFTWARE = ", software"  # ends the description of a GPU that is emulated on the CPU
_TARGETS = re.compile(r"openvino:\w+:", re.IGNORECASE)  # begins a name whose targets have commas between them
_TARGET = re.compile(r"-?[A-Z]+(\.\d+)*(\(\d+\))?")  # in OpenVINO's words: GPU.1, -NPU; ours are in small letters


class DeviceLookup(Protocol):
    """Where devices come from."""

    def __call__(self, name: str, *, automatic: bool) -> Sequence[Device]:
        """The devices that may be meant by a name; of a name that is not known, every one.

        automatic: nobody asked for it by name, so that it is not worth much time to look.
        """
        ...


class Refusal(NamedTuple):
    """Why a device was not taken."""

    device: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.device}: {self.reason}" + (f" ({self.remedy})" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Choice:
    """The device to use, and why not the ones before it."""

    device: Device
    rejected: tuple[Refusal, ...]


class DeviceSearch:
    """Walks a wish: gives the devices that are there, best first, and keeps why the others are rejected."""

    def __init__(
        self, lookup: DeviceLookup, wish: str | Sequence[str], *, fastest: str = "", platform: str = sys.platform
    ) -> None:
        """wish: a device's name, "auto", or a list of such that are tried in order; see plain(). ValueError for none.

        fastest: what "auto" tries before its ranking, as it was measured to be. platform: as sys.platform says it.
        """
        plainly = plain(wish)
        self.names = [plainly] if isinstance(plainly, str) else plainly
        # one device that was asked for by name: nothing else is put in its place
        self.is_explicit = isinstance(plainly, str) and plainly != AUTO
        self.rejected: list[Refusal] = []
        self._lookup = lookup
        self._fastest = fastest
        self._ranking = RANKINGS.get(platform, _ELSEWHERE)

    @property
    def wish(self) -> list[str]:
        """What is tried, in names that mean the same in a search without a fastest device."""
        return [
            name for wished in self.names for name in ([self._fastest] if wished == AUTO else []) + [wished] if name
        ]

    def __iter__(self) -> Iterator[Device]:
        """Devices that are available. Finds what a name means only when it is that name's turn."""
        for name in self.names:
            if name != AUTO:
                yield from self._yield_available([resolve(name, self._lookup(name, automatic=False))])
                continue
            if self._fastest:
                yield from self._yield_available([resolve(self._fastest, self._lookup(self._fastest, automatic=False))])
            for candidate in self._ranking:
                devices = self._lookup(candidate, automatic=True)
                family = [_not_software(device) for device in devices
                          if family_name(device.name) == candidate and device.name != self._fastest]  # fmt: skip
                if not family and family_name(self._fastest) == candidate:
                    continue  # it was tried
                yield from self._yield_available(family or [Refusal(candidate, "no such device was found")])

    def refuse(self, device: Device, reason: str, remedy: str = "") -> None:
        """The device that was given last cannot be used after all."""
        self.rejected.append(Refusal(device.name, reason, remedy))

    def failure(self) -> DeviceUnavailable:
        """What to raise when no device was left."""
        listed = "; ".join(str(one._replace(device=f"'{one.device}'")) for one in self.rejected)
        return DeviceUnavailable(f"no device can run this model. Tried {listed}.", self.rejected)

    def _yield_available(self, candidates: Sequence[Device | Refusal]) -> Iterator[Device]:
        for one in candidates:
            if isinstance(one, Refusal):
                self.rejected.append(one)
            elif one.available:
                yield one
            else:
                self.rejected.append(Refusal(one.name, one.reason, one.remedy))


def choose(devices: Sequence[Device], wish: str | Sequence[str], *, platform: str = sys.platform) -> Choice:
    """The first device of the wish that is available.

    Raises DeviceUnavailable, with what was tried, when there is none; ValueError for an empty wish.
    """
    search = DeviceSearch(lambda name, *, automatic: devices, wish, platform=platform)
    for device in search:
        return Choice(device, tuple(search.rejected))
    raise search.failure()


def plain(wish: str | Sequence[str]) -> str | list[str]:
    """A wish as devices are named: without blanks around the names, in small letters up to a colon.

    A text with commas between names is a list of them. Raises ValueError for what is no name or list of names.
    """
    texts = [wish] if isinstance(wish, str) else list(wish) if isinstance(wish, Iterable) else []
    if not texts or not all(isinstance(text, str) and names_in(text) for text in texts):
        raise ValueError(f"device is {wish!r}; expected a name such as 'cpu', 'auto', or a list of names.")
    cleaned = []
    for name in (name for text in texts for name in names_in(text)):
        start, colon, rest = name.partition(":")
        cleaned.append(start.lower() + colon + rest)
    return cleaned[0] if isinstance(wish, str) and len(cleaned) == 1 else cleaned


def names_in(text: str) -> list[str]:
    """The names in a text, commas between them; "openvino:HETERO:GPU,CPU" is one name. Empty ones are left out."""
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if names and _TARGETS.match(names[-1]) and _TARGET.fullmatch(part):
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names


def resolve(name: str, devices: Sequence[Device]) -> Device | Refusal:
    """The device that a name means.

    name: as the device's own; "cuda:0" for the first of several; or "cuda:H200", a part of its description.
    """
    by_name = {device.name: device for device in devices}
    family, selector = family_name(name), name[len(family_name(name)) + 1 :]
    if name in by_name:
        return by_name[name]
    if selector == "0" and family in by_name:
        return by_name[family]
    members = [device for device in devices if family_name(device.name) == family]
    if not members or not selector:
        return Refusal(name, f"not found by {_backends(devices)}", _instead(family, devices))
    if len(members) == 1 and not members[0].available:
        return Refusal(name, members[0].reason, members[0].remedy)
    fitting = [] if selector.isdecimal() else [one for one in members if selector.lower() in one.description.lower()]
    usable = [device for device in fitting if device.available] or fitting
    if len(usable) == 1:
        return usable[0]
    reason = f"{len(usable)} devices are called that" if usable else "no device is called that"
    listed = ", ".join(f"'{device.name}' ({device.description})" for device in usable or members)
    return Refusal(name, reason, f"there {'is' if len(usable or members) == 1 else 'are'} {listed}")


def is_software(device: Device) -> bool:
    """Whether it is a GPU that is emulated on the CPU."""
    return device.description.lower().endswith(_SOFTWARE)


def _not_software(device: Device) -> Device | Refusal:
    if device.available and is_software(device):
        reason = "it is emulated on the CPU, and slower than the device 'cpu'"
        return Refusal(device.name, reason, f"ask for it by name: '{device.name}'")
    return device


def _instead(family: str, devices: Sequence[Device]) -> str:
    """What there is in place of a name that is not known."""
    alternatives = f"available: {', '.join(repr(device.name) for device in devices if device.available)}"
    if meant := _ELSEWHERE_CALLED.get(family):
        return f"here that is {' or '.join(map(repr, meant))}; {alternatives}"
    near = nearest(family, (device.name for device in devices))
    return f"{alternatives}.{near}" if near else alternatives


def _backends(devices: Sequence[Device]) -> str:
    return " or ".join(dict.fromkeys(device.backend for device in devices)) or "any backend"
