"""Fingerprints of KV: KV of another model, runtime or device is never reused. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from embedllm.kv_cache.transfer import exported

if TYPE_CHECKING:
    from embedllm.backends.base import Device, MovesState
    from embedllm.package.lora.adapter import Adapter
    from embedllm.package.package import Package


def model_fingerprint(package: Package, device: Device, settings: str = "") -> dict[str, str]:
    """The fingerprint of a loaded model.

    settings: runtime options that change the numbers.
    """
    graphs = [{**graph.as_json(), "sha256": package.files[graph.file].sha256} for graph in package.listed]
    return {
        "weights": package.stored.sha256,
        "graphs": sha256(json.dumps(graphs, sort_keys=True).encode()).hexdigest(),
        "device": device.name,
        "backend": device.backend,
        "settings": settings,
    }


def kv_type(session: MovesState) -> str:
    """Number type, layers, heads and size of a session's stored KV: which of a package's graphs it runs shows there."""
    return "; ".join(f"{key.dtype} {key.shape[0]}x{key.shape[-1]}" for key, _ in exported(session, 0, 0))


def kv_fingerprint(model: Mapping[str, str], session: MovesState, adapter: Adapter | None = None) -> dict[str, str]:
    """The fingerprint of a session's KV, for comparison and as JSON. adapter: the LoRA adapter it was computed with."""
    kind = {**model, "kv": kv_type(session)}
    return kind if adapter is None else {**kind, "adapter": adapter.sha256}


def root_key(kind: Mapping[str, str]) -> bytes:
    """The key before the first token: KV with another fingerprint has no key in common."""
    return sha256(json.dumps(kind, sort_keys=True).encode()).digest()
