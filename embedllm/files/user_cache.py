"""Where this library keeps what it can make again: exports, outcomes of probes, what was measured, compiled models."""

from __future__ import annotations

from pathlib import Path


def user_cache(*names: str) -> Path:
    """A folder or a file below the user's cache folder of embedllm; it need not be there."""
    from platformdirs import user_cache_path  # not in a browser

    return user_cache_path("embedllm", appauthor=False).joinpath(*names)
