"""The devices of this machine with what they can run and how their probes went, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from embedllm.backends.base import Device

if TYPE_CHECKING:
    from embedllm.backends.probe.probe import Outcome
    from embedllm.loading.tuning_results import Measured, Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """A device, and what is known of it."""

    device: Device
    runs: tuple[str, ...]  # variants of the graphs that it may run, best first; empty for one that reads the weights
    is_probed: bool  # it is used only when a tiny model was right on it
    probe: Outcome | None  # how that went; None: not yet, or there is nothing to probe
    tested: str  # what this library was run on, for that device
    tuning: Tuning | None = None  # of a model that was measured here

    def as_json(self) -> dict[str, object]:
        """The device's own fields, and the others beside them."""
        probe = None if self.probe is None else asdict(self.probe)
        measured = None if self.measured is None else asdict(self.measured)
        return {**asdict(self.probed_device), "runs": list(self.runs), "is_probed": self.is_probed, "probe": probe,
                "tested": self.tested, "measured": measured}  # fmt: skip

    @property
    def measured(self) -> Measured | None:
        """How the device is run by what was measured."""
        return None if self.tuning is None else self.tuning.chosen(self.device.name)

    @property
    def probed_device(self) -> Device:
        """The device, not available when its probe failed."""
        if self.probe is None or self.probe.ok:
            return self.device
        return replace(self.device, available=False, reason=self.probe.reason, remedy=self.probe.remedy)

    @property
    def note(self) -> str:
        """Which graphs it runs and how the probe went; or why not, and what helps."""
        device = self.probed_device
        if not device.available:
            return device.reason + (f" ({device.remedy})" if device.remedy else "")
        graphs = " or ".join(self.runs) or "the weights"
        if self.probe is None:
            return f"{graphs}; not probed yet, --probe does it now" if self.is_probed else graphs
        right = f"{self.probe.variant}, probed: right to {self.probe.max_difference:.2g} in {self.probe.seconds:.1f} s"
        return f"{right}; {self.probe.reason}" if self.probe.reason else right


def listing(*, probe: bool = False, tuning: Tuning | None = None) -> Iterator[ListedDevice]:
    """Every device, in the order of the backends.

    probe: the tiny model is run on each that needs it, now. tuning: of a model, whose speeds are shown.
    """
    from embedllm.backends.devices import registry
    from embedllm.backends.devices.drivers import find_family
    from embedllm.backends.driver import Capabilities
    from embedllm.backends.probe import runner as probe_run

    for device in registry.devices():
        family = find_family(device.name)
        can = family.capabilities_of(device.name) if family else Capabilities()
        is_probed = device.available and registry.is_probed(device)
        outcome = None
        if is_probed:
            outcome = probe_run.outcome_for(device, again=True) if probe else probe_run.remembered(device)
        yield ListedDevice(
            device=device,
            runs=can.variants or can.external_graphs,
            is_probed=is_probed,
            probe=outcome,
            tested=can.tested,
            tuning=tuning,
        )
