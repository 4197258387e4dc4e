"""Whether a device can run a model, before it is opened there: by its probe, the graph that suits it, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.backends.base import Device, Unsupported
from embedllm.package.package import Package

if TYPE_CHECKING:
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.backends.probe.runner import Probes


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """What is opened on a device that can run the model."""

    package: Package  # as it runs there: of a folder made by others a GPU may take another graph
    memory: MemoryEstimate
    variants: Mapping[str, Sequence[str]]  # by the device's name: of the graphs that may be used, for open_engine()
    notes: Sequence[str] = ()  # why a better graph is not used


class DeviceChecks:
    """The checks of one load, or of one tune(), whose probes are run once."""

    def __init__(
        self,
        package: Package,
        *,
        exact: bool = False,
        kv: str | None = None,
        adapter_bytes: int = 0,
        latents: bool | None = None,
    ) -> None:
        """adapter_bytes, latents: as estimate_memory() has them."""
        self._package = package
        self._exact = exact
        self._kv = kv
        self._adapter_bytes = adapter_bytes
        self._latents = latents
        self._variants: dict[str, Sequence[str]] = {}  # that the probes found right
        self._probes: Probes | None = None

    def check(self, device: Device) -> Usable | Unsupported:
        """Raises PackageError for a package that the device could not compute exactly, where that is asked for."""
        from embedllm.backends.devices import registry
        from embedllm.loading.memory_estimate import estimate_memory, shortfall

        notes = self._probed(device)
        if isinstance(notes, Unsupported):
            return notes
        suited = registry.suited(self._package, device, self._variants.get(device.name, ()))
        exact, kv, adapter_bytes, latents = self._exact, self._kv, self._adapter_bytes, self._latents
        if exact:
            registry.check_exact(suited, device)
        memory = estimate_memory(suited, device, exact=exact, kv=kv, adapter_bytes=adapter_bytes, latents=latents)
        short = shortfall(suited, device, estimate=memory, exact=exact, kv=kv, adapter_bytes=adapter_bytes,
                          latents=latents)  # fmt: skip
        if short is not None:
            return short
        notes += [f"by the graph '{variant}', for its memory" for variant in memory.variants]
        variants = {**self._variants, device.name: memory.variants} if memory.variants else dict(self._variants)
        return Usable(package=suited, memory=memory, variants=variants, notes=notes)

    def _probed(self, device: Device) -> list[str] | Unsupported:
        """Why a device, or one of a pair, must not be used; else what its probes say of better graphs."""
        from embedllm.backends.devices import registry

        notes: list[str] = []
        for part in registry.parts(self._package, device, exact=self._exact):
            if not registry.is_probed(part):
                continue
            from embedllm.backends.probe import runner as probe_run

            self._probes = self._probes or probe_run.Probes()
            outcome = self._probes.outcome_for(part)
            if outcome is not None and not outcome.ok:
                whose = "" if part.name == device.name else f"'{part.name}': "
                return Unsupported(whose + outcome.reason, outcome.remedy)
            self._variants[part.name] = probe_run.variants(part, outcome)
            notes += [outcome.reason] if outcome is not None and outcome.reason else []
        return notes
