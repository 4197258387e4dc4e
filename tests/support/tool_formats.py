"""Tool formats by their names."""

from __future__ import annotations

from embedllm.tools.families import FORMATS
from embedllm.tools.formats import ToolFormat


def format_named(name: str) -> ToolFormat:
    """The format of embedllm/tools/families.py that has this name."""
    return next(row for row in FORMATS if row.name == name)
