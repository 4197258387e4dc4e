"""How much of which memory a model takes while it is loaded, before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.kv_cache.prefix_cache import PREFIX_CACHE_BYTES
from embedllm.loading.load_request import open_requested_package, search_devices, tuning_of
from embedllm.server.model_names import ServedModel

if TYPE_CHECKING:
    import os

    from embedllm.backends.base import Device
    from embedllm.loading.options import LoadOptions
    from embedllm.package.package import Package

HOST = ""
_TOKENS = 8192  # of KV that are counted; KV grows as it is used, and few requests fill a context
_SHARE = 0.9  # of the free memory: the rest is for tokenizers, requests and other programs


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What a model takes, and of which memory: HOST, or the name of a GPU that has its own."""

    bytes: int
    place: str = HOST
    limit: int | None = None  # what there is in that memory; None: not told, or the host's, which the pool knows


def memory_need(model: ServedModel) -> MemoryNeed:
    """Of its weights, the KV of up to 8,192 tokens, a prompt's activations, the prefix cache and the adapters.

    A model that is not there yet is downloaded or exported by this, as by load(), which uses the same caches.
    Raises what load() raises for the folder and the device.
    """
    from embedllm.backends.devices.registry import suited
    from embedllm.loading.memory_estimate import estimate_memory

    options = model.options
    package = open_requested_package(model.path, options)
    device = _first_device(package, options)
    package = suited(package, device)
    estimate = estimate_memory(package, device, context=min(_TOKENS, package.context), exact=options.exact,
                               kv=options.kv, adapter_bytes=_adapter_bytes(options.adapters),
                               latents=options.openvino.latents if options.openvino else None)  # fmt: skip
    cache = PREFIX_CACHE_BYTES if options.prefix_cache is None else options.prefix_cache
    needed = estimate.needed_bytes + (0 if package.encoder is not None else cache)
    return MemoryNeed(needed, device.name, int(device.memory * _SHARE)) if device.memory else MemoryNeed(needed)


def host_budget() -> int | None:
    """What models may take of the host's memory by default; None where free memory is not told."""
    from embedllm.files.free_memory import free_bytes

    free = free_bytes()
    return None if free is None else int(free * _SHARE)


def _first_device(package: Package, options: LoadOptions) -> Device:
    """The one that load() tries first."""
    search = search_devices(package, options, tuning_of(package, options))
    for device in search:
        return device
    raise search.failure()


def _adapter_bytes(adapters: Mapping[str, str | os.PathLike[str]] | None) -> int:
    """Of their files, which hold float16 mostly; they are float32 in memory."""
    adapter_bytes = 0
    for path in map(Path, (adapters or {}).values()):
        files = [path] if path.is_file() else path.glob("*.safetensors")
        adapter_bytes += 2 * sum(file.stat().st_size for file in files)
    return adapter_bytes
