"""How far a command has come, as bars on stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from embedllm.hub.name import hub_name
from embedllm.loading.gguf import is_gguf
from embedllm.loading.local_checkpoint import is_checkpoint
from embedllm.loading.resolve import find_package

if TYPE_CHECKING:
    from embedllm.files.progress import Progress

_STAGES = {  # the others: as they are
    "calibration": "calibrating, layers",
    "copy": "copying",
    "download": "downloading",
    "hash": "looking whether it is exported",
    "draft": "generating a text, tokens",
    "draft-weights": "weights to generate a text with",
    "inputs": "measuring inputs, layers",
    "shards": "cutting",
    "sensitivity": "measuring what bits are worth",
    "tasks": "doing tasks",
    "text": "reading the text",
    "trace": "tracing with optimum",
    "verify": "comparing with the reference",
}
_QUIET_S = 0.5  # nothing is said about what takes less
_OF_BYTES = ("weights", "draft-weights", "copy", "download", "hash", "shards")


@contextmanager
def progress_bar(*, is_shown: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar a stage on stderr, when that is a terminal; gives what the exporter and the like report to."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    stages: dict[str, tuple[TaskID, float]] = {}  # and when each began
    with Bars(*columns, TimeRemainingColumn(), console=console, disable=not (is_shown and console.is_terminal)) as bars:

        def on_progress(progress: Progress) -> None:
            if progress.stage not in stages:
                task = bars.add_task(_STAGES.get(progress.stage, progress.stage), total=progress.total, amount="")
                stages[progress.stage] = task, time.perf_counter()
            task, began = stages[progress.stage]
            amount = _amount(progress, time.perf_counter() - began)
            bars.update(task, completed=progress.done, total=progress.total, amount=amount)

        yield on_progress


@contextmanager
def waiting(text: str) -> Iterator[Callable[[], None]]:
    """What the program is at, on stderr, once that takes half a second; gives what ends it before the block does.

    Only at a terminal that can clear the line again.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda: None
        return
    lock, shown = threading.Lock(), ExitStack()
    is_over = False

    def start() -> None:
        from rich.console import Console  # what is quick does not pay for it

        with lock:
            if not is_over:
                shown.enter_context(Console(file=sys.stderr).status(text))

    def stop() -> None:
        nonlocal is_over
        with lock:
            is_over = True
            shown.close()

    timer = threading.Timer(_QUIET_S, start)
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
        stop()


@contextmanager
def fetching(model: str) -> Iterator[Callable[[Progress], None] | None]:
    """Bars for the download and the export of a model of the hub, in GGUF or a checkpoint; None for a package."""
    if hub_name(model) is None and not is_gguf(model) and not is_checkpoint(model):
        yield None
        return
    with progress_bar(is_shown=True) as on_progress:
        yield on_progress


def fetch(*models: str) -> None:
    """Downloads and exports those that are of the hub, in GGUF, or checkpoints, with bars."""
    for model in models:
        with fetching(model) as on_progress:
            if on_progress is not None:
                find_package(model, on_progress=on_progress)


def _amount(progress: Progress, seconds: float) -> str:
    if progress.stage not in _OF_BYTES:
        return f"{progress.done} of {progress.total}"
    rate = f", {progress.done / seconds / 1e6:.0f} MB/s" if seconds > 0 else ""
    return f"{progress.done / 1e6:,.1f} of {progress.total / 1e6:,.1f} MB{rate}"
