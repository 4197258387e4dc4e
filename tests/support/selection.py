"""Leaves tests out of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def leave_out(config: pytest.Config, items: list[pytest.Item], is_out: Callable[[pytest.Item], bool]) -> None:
    """Takes items away from those that are to be run; the summary counts them as deselected."""
    out = [item for item in items if is_out(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        gone = set(map(id, out))
        items[:] = [item for item in items if id(item) not in gone]
