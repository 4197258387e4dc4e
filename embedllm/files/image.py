"""A picture as a file: what is checked before the work that it shows, and how it is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.files.atomic import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")


def check_plot(path: Path) -> None:
    """Raises ValueError for another kind of file, and when matplotlib is not installed: before the work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"'{path}' ends in '{path.suffix}'; a plot is {' or '.join(SUFFIXES)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("a plot takes matplotlib, which is not installed. Install it: pip install 'embedllm[plot]'")


def save_plot(figure: Figure, path: Path) -> None:
    """Writes it, whole or not at all; the same figure gives the same file."""
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    with rc_context({"svg.hashsalt": "embedllm"}), atomic_write(path) as file:
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
