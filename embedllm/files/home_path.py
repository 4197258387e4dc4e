"""Paths that begin with a tilde."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with the user's own folder in place of a tilde; as it is for a user that is not there."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for a user that is not there
