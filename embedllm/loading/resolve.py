"""Which folder is opened: one that is there, the demo model, or the export of a hub model, checkpoint or GGUF file."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from embedllm.errors import PackageError
from embedllm.files.home_path import expanded
from embedllm.hub.name import hub_name
from embedllm.loading.gguf import gguf_package, is_gguf
from embedllm.loading.local_checkpoint import checkpoint_package, is_checkpoint

if TYPE_CHECKING:
    from embedllm.files.progress import Progress
    from embedllm.loading.options import OnProgress


def check_path(path: object) -> None:
    """Raises TypeError for what names no folder, PackageError for an empty name."""
    if not isinstance(path, str) and not (isinstance(path, os.PathLike) and isinstance(os.fspath(path), str)):
        raise TypeError(f"the model is {reprlib.repr(path)}; expected the path of a folder or a name, as text or Path.")
    if path == "":  # the folder in which the program runs is "."
        raise PackageError("the model is an empty text; expected the path of a folder or a name.")


def find_package(
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    on_progress: OnProgress | None = None,
) -> Path:
    """The folder that load() opens; a path that is there goes before a name of the hub. Options: as load() has them.

    Raises ValueError for a revision of a folder; HubError, ExportError, PackageError.
    """
    check_path(path)
    callback = cast("Callable[[Progress], None] | None", on_progress)  # the other is a browser's
    name = hub_name(path)
    if name is None:
        if revision is not None:
            raise ValueError(f"revision is {revision!r} and '{os.fspath(path)}' no model of the hub; leave it out.")
        return package_folder(path, callback)
    from embedllm.loading.hub_models import fetch_model

    return fetch_model(name, revision=revision, token=token, local_files_only=local_files_only, on_progress=callback)


def package_folder(path: str | os.PathLike[str], on_progress: Callable[[Progress], None] | None = None) -> Path:
    """The folder that is meant: "demo" is the model that ships with this library, unless ./demo is a package itself.

    Of a GGUF file or a checkpoint it is the export that is kept of it, made now if there is none: on_progress is
    called meanwhile.
    Raises PackageError when the demo is meant and not installed, and for an address; ExportError for
    what cannot be exported.
    """
    if "://" in os.fspath(path):
        raise PackageError(
            f"'{os.fspath(path)}' is an address. Give a folder, a GGUF file, or a model of the hub as 'org/name'; "
            "download first what is elsewhere. In a browser, embedllm.aload() takes addresses."
        )
    given_path = expanded(path)
    if is_gguf(given_path):
        return gguf_package(given_path, on_progress)
    if is_checkpoint(given_path):
        return checkpoint_package(given_path, on_progress)
    if os.fspath(path) != "demo" or (given_path / "embedllm.json").is_file():
        return given_path
    folder = Path(__file__).parents[1] / "demo"
    if archive := next((parent for parent in folder.parents if parent.is_file()), None):
        raise PackageError(
            f"the demo model lies in the archive '{archive}', and a model is read from a folder. Unpack its "
            "'embedllm/demo', and give that path."
        )
    if not folder.is_dir():
        raise PackageError("the demo model is not part of this installation; give the path of an exported folder.")
    return folder
