"""What tune() measures on, and what it says of the trials: the devices, the candidates, the table of results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from statistics import median
from typing import TYPE_CHECKING

from embedllm.backends.devices import registry
from embedllm.backends.devices import selection as select
from embedllm.errors import DeviceUnavailable
from embedllm.loading.device_check import DeviceChecks, Usable
from embedllm.loading.tuning_results import Measured
from embedllm.profiling.tuning.search import Candidate, Choice, Trials
from embedllm.profiling.tuning.trial import ways

if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.package.package import Package

_UNRANKED = ("openvino",)  # worth measuring, though "auto" does not take it unmeasured


class Devices:
    """The devices that can run a model, checked as load() checks them."""

    def __init__(self, package: Package, *, exact: bool, kv: str | None) -> None:
        self.left_out: list[tuple[str, str]] = []  # and why
        self._named = registry.DeviceCatalog(package, exact=exact, kv=kv).lookup
        self._checks = DeviceChecks(package, exact=exact, kv=kv)
        # as load() goes through them
        self._ranked = [select.AUTO] if package.external is None else list(package.external.devices)

    def usable(self, names: Sequence[str]) -> list[tuple[Device, Usable]]:
        """Those with these names; without any, the first of each kind. Raises DeviceUnavailable when there is none."""
        search = select.DeviceSearch(self._named, list(names) or [*self._ranked, *_UNRANKED])
        ready: dict[str, tuple[Device, Usable]] = {}
        for device in search:
            found = self._checks.check(device)
            if isinstance(found, Usable):
                ready.setdefault(device.name if names else select.family_name(device.name), (device, found))
            else:
                search.refuse(device, *found)
        if not ready:
            raise search.failure()
        self.left_out = [(one.device, one.reason) for one in search.rejected]
        return list(ready.values())

    def automatic(self) -> str:
        """The device that "auto" takes without a measurement; empty when there is none."""
        names = (
            device.name
            for device in select.DeviceSearch(self._named, self._ranked)
            if isinstance(self._checks.check(device), Usable)
        )
        return next(names, "")


def measured(trials: Trials, choice: Choice) -> tuple[Measured, ...]:
    """The tuning results of the trials. Raises DeviceUnavailable when all failed."""
    if not choice.runtime:
        failures = "; ".join(f"'{one.device}': {why}" for one, why in trials.failures.items())
        raise DeviceUnavailable(f"no device could run this model. Tried {failures}.",
                                [(one.device, why, "") for one, why in trials.failures.items()])  # fmt: skip
    return tuple(_all_measured(trials, choice))


def _all_measured(trials: Trials, choice: Choice) -> Iterator[Measured]:
    devices = list(dict.fromkeys(one.device for one in trials.rounds))
    for one, rounds in sorted(trials.rounds.items(), key=lambda item: devices.index(item[0].device)):
        ratios = trials.ratios(one, Candidate(device=one.device))
        if one in trials.failures or not ratios:
            continue
        timing = trials.typical(one)
        yield Measured(
            device=one.device,
            runtime=one.runtime,
            prefill_tokens_s=1 / timing.token_s,
            decode_tokens_s=1 / timing.step_s,
            seconds=timing.seconds,
            ratio=median(ratios),
            rounds=len(rounds),
            is_chosen=choice.runtime.get(one.device) == one.runtime,
        )


def unmeasured(trials: Trials) -> Iterator[tuple[str, str]]:
    """The candidates without a time, and why."""
    for one, rounds in trials.rounds.items():
        if one in trials.failures:
            yield f"{one.device}, {one.runtime}", trials.failures[one]
        elif not rounds:
            yield f"{one.device}, {one.runtime}", "there was no time for it; give more seconds"


def candidates(package: Package, devices: Sequence[Device], *, exact: bool) -> list[Candidate]:
    """What is to be tried: first the default of every device, then of each the next best guess, and so on."""
    by_guess = zip_longest(*(ways(package, one, exact=exact) for one in devices))
    pairs = (pair for guess in by_guess for pair in zip(devices, guess, strict=True))
    return [Candidate(device=one.name, runtime=runtime) for one, runtime in pairs if runtime is not None]
