"""The first device of a search that computes rightly, has the memory and opens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from embedllm.backends.base import Device, Engine, Unsupported
from embedllm.backends.checks import cannot_run
from embedllm.errors import DeviceError, DeviceUnavailable
from embedllm.generation.engine_loop import EngineLoop
from embedllm.loading.out_of_memory import memory_ran_out, ran_out
from embedllm.package.package import Package

if TYPE_CHECKING:
    from embedllm.backends.devices.selection import DeviceSearch
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.backends.options import RuntimeOptions
    from embedllm.backends.probe.runner import Probes
    from embedllm.loading.options import LoadOptions
    from embedllm.package.lora.adapter import Adapter

_log = logging.getLogger("embedllm")


def open_first(
    package: Package,
    search: DeviceSearch,
    options: LoadOptions,
    *,
    runtime: Callable[[Device], RuntimeOptions],
    adapters: Sequence[Adapter] | None,
    hidden_graph: str = "",
) -> tuple[Engine, MemoryEstimate, Package]:
    """An engine on the first device of a search that computes rightly, has the memory and opens; and that memory.

    Also the package as it runs there: of a folder made by others a GPU may take another graph.
    runtime: of the device that is about to be opened. hidden_graph: as open_engine() has it.
    Raises DeviceUnavailable, PackageError.
    """
    from embedllm.backends.devices import registry
    from embedllm.backends.devices.selection import AUTO

    failures: list[DeviceUnavailable] = []
    probes = ProbeResults(package, exact=options.exact)
    for device in search:
        if (unsupported := probes.unsupported(device)) is not None:
            search.refuse(device, *unsupported)
            continue
        suited = registry.suited(package, device, probes.variants.get(device.name, ()))
        if options.exact:
            registry.check_exact(suited, device)
        memory, short = _memory_on(suited, device, options, adapters)
        if short is not None:
            if search.is_explicit:
                raise cannot_run(device, *short)
            search.refuse(device, *short)
            continue
        notes = [*probes.notes, *(f"by the graph '{variant}', for its memory" for variant in memory.variants)]
        noted = "".join(f"; {note}" for note in notes)
        passed = "".join(f"; not {refusal}" for refusal in search.rejected)
        _log.info("running '%s' on %s (%s)%s%s", package.name, device.name, device.backend, noted, passed)
        try:
            variants = {**probes.variants, device.name: memory.variants} if memory.variants else probes.variants
            engine = _open(suited, device, options, runtime(device), adapters, variants, hidden_graph)
            return engine, memory, suited
        except (DeviceError, MemoryError, OSError) as error:
            failure = _unavailable(suited, device, memory, error)
            if search.is_explicit:
                raise failure from error  # what was asked for alone never falls back to another
            _log.info("'%s' could not be opened: %s", device.name, failure)
            _, reason, remedy = failure.tried[0] if len(failure.tried) == 1 else (device.name, str(failure), "")
            search.refuse(device, reason, remedy)
            failures.append(failure)
    if len(failures) == 1 and search.names == [AUTO]:
        raise failures[0]  # what other machines may have cannot be acted upon
    raise search.failure() from (failures[-1] if failures else None)


def _memory_on(
    package: Package, device: Device, options: LoadOptions, adapters: Sequence[Adapter] | None
) -> tuple[MemoryEstimate, tuple[str, str] | None]:
    """What is needed there, and why that is more than there is."""
    from embedllm.loading.memory_estimate import estimate_memory, shortfall

    exact, kv, adapter_bytes = options.exact, options.kv, sum(adapter.bytes for adapter in adapters or ())
    latents = options.openvino.latents if options.openvino else None
    memory = estimate_memory(package, device, exact=exact, kv=kv, adapter_bytes=adapter_bytes, latents=latents)
    short = shortfall(package, device, estimate=memory, exact=exact, kv=kv, adapter_bytes=adapter_bytes,
                      latents=latents)  # fmt: skip
    return memory, short


def _open(
    package: Package,
    device: Device,
    options: LoadOptions,
    runtime: RuntimeOptions,
    adapters: Sequence[Adapter] | None,
    variants: Mapping[str, Sequence[str]],
    hidden_graph: str,
) -> Engine:
    from embedllm.backends.devices.registry import open_engine

    def open_it() -> Engine:
        return open_engine(package, device, runtime=runtime, exact=options.exact, kv=options.kv,
                           adapts=adapters is not None, openvino=options.openvino, variants=variants,
                           hidden_graph=hidden_graph)  # fmt: skip

    # a GPU captures its steps: nothing else may allocate there meanwhile. Elsewhere a load holds no other model up
    return EngineLoop.of(device.name).call(open_it) if device.memory and options.threaded else open_it()


class ProbeResults:
    """What the probes of one load found."""

    def __init__(self, package: Package, *, exact: bool) -> None:
        self.variants: dict[str, Sequence[str]] = {}  # by the device's name: of the graphs that may be used there
        self.notes: list[str] = []  # on the last device: why a better graph is not used
        self._package = package
        self._exact = exact
        self._probes: Probes | None = None

    def unsupported(self, device: Device) -> Unsupported | None:
        """Why a device, or one of a pair, must not be used, and what helps; None when it may be."""
        from embedllm.backends.devices import registry

        self.notes = []
        for part in registry.parts(self._package, device, exact=self._exact):
            if not registry.is_probed(part):
                continue
            from embedllm.backends.probe import runner as probe_run

            self._probes = self._probes or probe_run.Probes()
            outcome = self._probes.outcome_for(part)
            if outcome is not None and not outcome.ok:
                whose = "" if part.name == device.name else f"'{part.name}': "
                return Unsupported(whose + outcome.reason, outcome.remedy)
            self.variants[part.name] = probe_run.variants(part, outcome)
            self.notes += [outcome.reason] if outcome is not None and outcome.reason else []
        return None


def _unavailable(package: Package, device: Device, memory: MemoryEstimate, error: Exception) -> DeviceUnavailable:
    """An error of opening a device, as one that tells what was tried. Raises it where it says nothing of the device."""
    if ran_out(error):
        return cannot_run(device, *memory_ran_out(package, memory, error))
    if isinstance(error, DeviceUnavailable):
        return error
    if not isinstance(error, DeviceError):
        raise error
    return DeviceUnavailable(str(error), [(device.name, str(error), "")])
