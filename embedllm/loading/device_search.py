"""The first device of a search that computes rightly, has the memory and opens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from embedllm.backends.base import Device, Engine, Unsupported
from embedllm.backends.checks import cannot_run
from embedllm.errors import DeviceError, DeviceUnavailable, ran_out
from embedllm.generation.engine_loop import EngineLoop
from embedllm.loading.device_check import DeviceChecks, Usable
from embedllm.loading.out_of_memory import memory_ran_out
from embedllm.package.package import Package

if TYPE_CHECKING:
    from embedllm.backends.devices.selection import DeviceSearch
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.backends.options import RuntimeOptions
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
    from embedllm.backends.devices.selection import AUTO

    failures: list[DeviceUnavailable] = []
    checks = DeviceChecks(package, exact=options.exact, kv=options.kv,
                          adapter_bytes=sum(adapter.bytes for adapter in adapters or ()),
                          latents=options.openvino.latents if options.openvino else None)  # fmt: skip
    for device in search:
        found = checks.check(device)
        if isinstance(found, Unsupported):
            search.refuse(device, *found)
            continue
        noted = "".join(f"; {note}" for note in found.notes)
        passed = "".join(f"; not {refusal}" for refusal in search.rejected)
        _log.info("running '%s' on %s (%s)%s%s", package.name, device.name, device.backend, noted, passed)
        try:
            engine = _open(found, device, options, runtime(device), adapters, hidden_graph)
            return engine, found.memory, found.package
        except (DeviceError, MemoryError, OSError) as error:
            failure = _unavailable(found, device, error)
            if search.is_explicit:
                raise failure from error  # what was asked for alone never falls back to another
            _log.info("'%s' could not be opened: %s", device.name, failure)
            _, reason, remedy = failure.tried[0] if len(failure.tried) == 1 else (device.name, str(failure), "")
            search.refuse(device, reason, remedy)
            failures.append(failure)
    if len(failures) == 1 and search.names == [AUTO]:
        raise failures[0]  # what other machines may have cannot be acted upon
    raise search.failure() from (failures[-1] if failures else None)


def _open(
    found: Usable,
    device: Device,
    options: LoadOptions,
    runtime: RuntimeOptions,
    adapters: Sequence[Adapter] | None,
    hidden_graph: str,
) -> Engine:
    from embedllm.backends.devices.registry import open_engine

    def open_it() -> Engine:
        return open_engine(found.package, device, runtime=runtime, exact=options.exact, kv=options.kv,
                           adapts=adapters is not None, openvino=options.openvino, variants=found.variants,
                           hidden_graph=hidden_graph)  # fmt: skip

    # a GPU captures its steps: nothing else may allocate there meanwhile. Elsewhere a load holds no other model up
    return EngineLoop.of(device.name).call(open_it) if device.memory and options.threaded else open_it()


def _unavailable(found: Usable, device: Device, error: Exception) -> DeviceUnavailable:
    """An error of opening a device, as one that tells what was tried. Raises it where it says nothing of the device."""
    if ran_out(error):
        return cannot_run(device, *memory_ran_out(found.package, found.memory, error))
    if isinstance(error, DeviceUnavailable):
        return error
    if not isinstance(error, DeviceError):
        raise error
    return DeviceUnavailable(str(error), [(device.name, str(error), "")])
