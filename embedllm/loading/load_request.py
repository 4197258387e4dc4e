"""What a load is of: the package, what was measured for such loads, and the devices in the order of trying."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embedllm.loading.resolve import find_package
from embedllm.package.package import Package, open_package

if TYPE_CHECKING:
    from embedllm.backends.devices.selection import DeviceSearch
    from embedllm.loading.options import LoadOptions
    from embedllm.loading.tuning_record import Recalled


def open_requested_package(path: str | os.PathLike[str], options: LoadOptions) -> Package:
    """The package of a load, which is downloaded or exported first where that was not done yet."""
    folder = find_package(path, revision=options.revision, token=options.token,
                          local_files_only=options.local_files_only, on_progress=options.on_progress)  # fmt: skip
    package = open_package(folder, whole=False)
    if options.context is not None:
        package.limit_context(options.context)
    return package


def tuning_of(package: Package, options: LoadOptions) -> Recalled:
    """What tune() has measured of such loads."""
    from embedllm.loading.tuning_record import recall, unused

    if package.encoder is None and options.tuned and options.has_tuning:
        return recall(package, exact=options.exact, kv=options.kv)
    return unused(is_wanted=options.tuned)


def preferred_device(package: Package, tuning: Recalled) -> str:
    """The device that goes first among those that "auto" finds; empty: by their usual order."""
    return tuning.fastest or (package.external.prefers if package.external is not None else "")


def search_devices(package: Package, options: LoadOptions, tuning: Recalled, *, hidden_graph: str = "") -> DeviceSearch:
    """The devices that a load tries, in order. hidden_graph: as open_engine() has it."""
    from embedllm.backends.devices import registry, selection

    if package.encoder is not None:
        catalog = registry.DeviceCatalog(package, exact=options.exact)
    else:
        catalog = registry.DeviceCatalog(package, exact=options.exact, kv=options.kv,
                                         adapts=options.adapters is not None, hidden_graph=hidden_graph)  # fmt: skip
    requested = _requested_device(package, options)
    return selection.DeviceSearch(catalog.lookup, requested, fastest=preferred_device(package, tuning))


def _requested_device(package: Package, options: LoadOptions) -> str | Sequence[str]:
    """The device or devices that were asked for, here or in the environment; of "auto" those that suit the folder."""
    from embedllm.backends.devices import selection

    requested = options.device
    if requested is None:
        requested = os.environ.get("EMBEDLLM_DEVICE", "").strip(" ,") or selection.AUTO
    if selection.plain(requested) == selection.AUTO and package.external is not None:
        return package.external.devices
    return requested
