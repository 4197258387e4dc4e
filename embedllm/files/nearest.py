"""What somebody may have meant by a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """A sentence that follows the list of known names, with the space before it; empty when none is like the name."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" The nearest is '{near[0]}'." if near else ""
