"""Where this library keeps what it can make again: exports, outcomes of probes, what was measured, compiled models."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

_log = logging.getLogger("embedllm")


def user_cache(*names: str) -> Path:
    """A folder or a file below the user's cache folder of embedllm; it need not be there.

    For a user without a home folder it is a folder of this process, which is deleted when the process ends.
    """
    from platformdirs import user_cache_path  # not in a browser

    try:
        folder = user_cache_path("embedllm", appauthor=False)
    except RuntimeError:  # neither HOME nor an entry of the user, as in some containers
        folder = None
    if folder is None or not folder.is_absolute():  # older releases give "~/.cache"
        folder = Path(_process_cache().name)
    return folder.joinpath(*names)


@cache
def _process_cache() -> TemporaryDirectory[str]:
    """Of this process alone: what others could write there would be loaded."""
    from tempfile import TemporaryDirectory

    folder = TemporaryDirectory(prefix="embedllm-")
    _log.info("the user has no home folder: what is cached goes with this process, in '%s'; XDG_CACHE_HOME may name "
              "a folder that stays", folder.name)  # fmt: skip
    return folder
