"""What embedllm.load() and its siblings are in a browser: with the desktop's parameters, of which some are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

from embedllm.backends.base import Device
from embedllm.loading import load as desktop
from embedllm.loading.options import LoadOptions, same_parameters
from embedllm.model.model import Model
from embedllm.profiling.tuning import tune as desktop_tuning
from embedllm.web import loading

if TYPE_CHECKING:
    from embedllm.files.progress import FileProgress
    from embedllm.loading.tuning_results import Tuning


@same_parameters(desktop.load)
def load(path: str | os.PathLike[str] = "demo", **options: object) -> Model:
    """As embedllm.load(), where a synchronous call can wait; raises ValueError for what a browser does not have."""
    return loading.load(os.fspath(path), **_arguments(options))


@same_parameters(desktop.aload)
async def aload(path: str | os.PathLike[str] = "demo", **options: object) -> Model:
    """As load(), without blocking the event loop."""
    return await loading.aload(os.fspath(path), **_arguments(options))


def devices() -> list[Device]:
    """What this browser offers, and why the rest is not available; raises ValueError where a call cannot wait."""
    return loading.devices()


async def adevices(*, urls: Mapping[str, str] | None = None) -> list[Device]:
    """As devices(), without blocking the event loop. urls: see embedllm.web.aload()."""
    return await loading.adevices(urls=urls)


@same_parameters(desktop_tuning.tune)
def tune(path: str | os.PathLike[str] = "demo", **options: object) -> Tuning:
    """Raises ValueError: nothing is tuned in a browser."""
    raise ValueError("tune() cannot be called in a browser; leave it out there.")


class _Arguments(TypedDict):
    """What load() and aload() take of them here."""

    device: str | Sequence[str] | None
    threads: int
    context: int | None
    on_progress: Callable[[FileProgress], None] | None
    urls: Mapping[str, str] | None
    chat_template: str | None
    parse_special: bool


def _arguments(options: Mapping[str, object]) -> _Arguments:
    load_options = LoadOptions(**options)  # type: ignore[arg-type]  # as they were given
    load_options.check_for_browser()
    return {
        "device": load_options.device,
        "threads": load_options.threads,
        "context": load_options.context,
        # which of the two kinds of progress it takes the caller knows
        "on_progress": cast("Callable[[FileProgress], None] | None", load_options.on_progress),
        "urls": load_options.urls,
        "chat_template": load_options.chat_template,
        "parse_special": load_options.parse_special,
    }
