"""What an export of a name of the hub reads: a checkpoint, or a GGUF file with that of its vision encoder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from embedllm.errors import HubError
from embedllm.hub.file_selection import Choice, choose
from embedllm.hub.location import of_repository
from embedllm.hub.name import hub_name
from embedllm.hub.repository import Repository, open_repository

if TYPE_CHECKING:
    from embedllm.files.progress import Progress
    from embedllm.hub.location import Location

    OnProgress = Callable[[Progress], None] | None

_log = logging.getLogger("embedllm")


def export_source(
    source: str, *, mmproj: Path | bool = True, revision: str | None = None, on_progress: OnProgress = None
) -> tuple[str | Path | Location, Path | bool]:
    """What convert() takes for a name of the hub as its source and as its `mmproj`; of any other both as they are.

    A GGUF model is downloaded, with its vision encoder unless `mmproj` says otherwise. Raises HubError, ExportError.
    """
    name = hub_name(source)
    if name is None:
        return source, mmproj
    repository = open_repository(name.repository, revision=revision)
    choice = choose(name, repository.sizes)
    if choice.kind in ("package", "external"):
        raise HubError(f"'{name}' is exported already; load('{name}') and --model {name} take it as it is.")
    if choice.kind == "gguf":
        model_source: Path | Location
        model_source, own = fetch_gguf(repository, choice, on_progress, takes_mmproj=mmproj is True)
        mmproj = own if mmproj is True else mmproj
    else:
        model_source = of_repository(repository, on_progress)
    repository.remember()
    return model_source, mmproj


def fetch_gguf(
    repository: Repository, choice: Choice, on_progress: OnProgress, *, takes_mmproj: bool = True
) -> tuple[Path, Path | bool]:
    """The file of a GGUF model, with all its parts, and that of its vision encoder; False where it has none.

    One that was not asked for by name is downloaded if the model's architecture can see, and left out if it does not
    fit.
    Raises HubError, ExportError.
    """
    from embedllm.export.gguf.mmproj import can_see, fits
    from embedllm.export.gguf.reader import read_model

    model = repository.fetch(choice.files, on_progress) / choice.files[0]
    if not choice.mmproj or not takes_mmproj:
        return model, False
    text = None if choice.names_mmproj else read_model(model)
    if text is not None and not can_see(text):
        _log.info(
            "'%s' of '%s' is not downloaded: of such models no vision encoder is read", choice.mmproj, repository.name
        )
        return model, False
    encoder = repository.fetch([choice.mmproj], on_progress) / choice.mmproj
    return model, encoder if text is None or fits(encoder, text) else False
