"""`embedllm fit`: memory that a model needs on each device, memory that is free, and the largest context."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from embedllm.cli.commands.inspect import open_folder
from embedllm.cli.options import common_options, note
from embedllm.cli.tables import new_console, new_table

if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.backends.needed_memory import MemoryEstimate
    from embedllm.package.package import Package


@click.command(short_help="Estimate whether a model fits into the memory of a device.")
@click.argument("model")
@click.option("--device", metavar="NAME", help="A device, or 'auto'.  [default: all available devices]")
@click.option("--context", type=int, metavar="N", help="Context length in tokens.  [default: the package's]")
@click.option("--exact", is_flag=True, help="As loaded with --exact.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list.")
@common_options
def fit(*, model: str, device: str | None, context: int | None, exact: bool, as_json: bool) -> None:
    """Estimate the memory that a model needs on a device, for one sequence, and what is free; nothing is loaded.

    MODEL is a directory, 'demo', a GGUF file, or a cached hub repository. Of a checkpoint only the small files are
    read: it is estimated as exported by default. All memory of a discrete GPU counts as free.
    """
    from embedllm.loading.memory_estimate import estimate_memory

    package = _described(model)
    estimates = [
        estimate_memory(package, one, context=context, exact=exact)
        for one in _devices(package, device or "", exact=exact)
    ]
    if as_json:
        click.echo(json.dumps([_as_json(one) for one in estimates], ensure_ascii=False))
        return
    _show(estimates)
    if any(not one.is_measured for one in estimates):
        note("~ rough estimate: weights file and KV cache, without the overhead of the runtime")


def _described(model: str) -> Package:
    from embedllm.loading.local_checkpoint import is_checkpoint

    if not is_checkpoint(model):
        return open_folder(model)
    from embedllm.export import Recipe
    from embedllm.export.estimate import expected_package
    from embedllm.hub.location import locate

    return expected_package(locate(model), Recipe())


def _devices(package: Package, requested: str, *, exact: bool) -> list[Device]:
    """The requested device, or every one that can run the model. Raises DeviceUnavailable."""
    from embedllm.backends.devices import registry
    from embedllm.backends.devices import selection as select
    from embedllm.loading.tuning_record import recall

    catalog = registry.DeviceCatalog(package, exact=exact)
    if not requested:
        return [device for device in catalog.everything() if device.available]
    search = select.DeviceSearch(catalog.lookup, requested, fastest=recall(package, exact=exact).fastest)
    for device in search:
        return [device]
    raise search.failure()


def _as_json(one: MemoryEstimate) -> dict[str, object]:
    return {**dataclasses.asdict(one), "needed_bytes": one.needed_bytes, "fits": one.fits}


def _show(estimates: Sequence[MemoryEstimate]) -> None:
    columns = ("device", "", "context", "weights", "KV", "scratch", "batches", "needed, MiB", "free, MiB", "fits up to")
    rows = [
        (
            one.device,
            "" if one.is_measured else "~",
            f"{one.context:,}",
            *map(_mib, (one.weights_bytes, one.kv_bytes, one.scratch_bytes, one.batch_bytes)),
            *map(_mib, (one.needed_bytes, one.free_bytes)),
            _largest(one.largest_context),
        )
        for one in estimates
    ]
    new_console().print(new_table(columns, rows, numbers_from=2))


def _mib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**20:,.0f}"


def _largest(tokens: int | None) -> str:
    if tokens is None:
        return "unknown"
    return f"{tokens:,} tokens" if tokens else "does not fit"
