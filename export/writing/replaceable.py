"""Whether a package folder can be replaced: that deletes it, and so it may hold nothing but the package."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from embedllm.errors import ExportError, PackageError
from embedllm.export.openvino.links import weight_links
from embedllm.files.home_path import expanded
from embedllm.files.json_object import read_json_object
from embedllm.package.graph_variants import EAGLE_FOLDER, MTP_FOLDER
from embedllm.package.package import MANIFEST
from embedllm.package.shards import SHARDS
from embedllm.types import JSON

_SHOWN = 8  # names of files in an error
_HEADS = (MTP_FOLDER, EAGLE_FOLDER)  # packages of their own, which the manifest does not list
_FILE_BROWSERS = (".DS_Store", "Thumbs.db", "desktop.ini")  # what they leave in folders that somebody looked at
# what killed writes leave: files/atomic.py, and beside a head atomic_folder.py
_KILLED = re.compile(rf".+\.[0-9a-f]{{8}}\.partial|\.({'|'.join(_HEADS)})\.partial-[0-9a-f]{{8}}(\.lock|\.old)?")


def check_replaceable(folder: Path, inputs: Iterable[str | Path]) -> None:
    """Raises ExportError when replacing a package folder would delete an input of the export, or a file of a user.

    inputs: those that are no paths, such as repo ids, are passed over. One that is the folder itself is not refused
    here: a copy may take the place of what it was made of. Raises OSError for a folder that cannot be read.
    """
    for each in inputs:
        path = expanded(each)
        if os.path.exists(path) and Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents:  # noqa: PTH110
            raise ExportError(
                f"'{each}' lies in '{folder}', which the export would replace, and is an input of it. Move it out of "
                "that folder, or choose another name."
            )
    if others := sorted(_others(folder)):
        more = f", and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise ExportError(
            f"'{folder}' has what its manifest does not list, and replacing the folder would delete it: "
            f"{', '.join(map(repr, others[:_SHOWN]))}{more}. Move it away, or choose another name."
        )


def check_copy_is_whole(folder: Path, out: Path) -> None:
    """Raises ExportError when a package's copy would take the package's own place, and has not what lies in that."""
    if out.exists() and out.samefile(folder) and (heads := [f"{name}/" for name in _HEADS if _is_head(folder / name)]):
        raise ExportError(
            f"'{out}' has what a copy leaves out, and replacing the folder by its own copy would delete it: "
            f"{', '.join(map(repr, heads))}. Choose another name, or move it away."
        )


def _is_head(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _others(folder: Path) -> Iterator[str]:
    """Files and folders in a package folder that are no part of the package; folders end in "/"."""
    try:
        listed = _listed(read_json_object(folder / MANIFEST))
    except PackageError as error:
        raise ExportError(
            f"'{folder / MANIFEST}' cannot be read, and so nothing tells which files belong to the package and can be "
            "replaced. Delete the folder yourself, or choose another name."
        ) from error
    parents = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    return _unlisted(folder, listed, parents)


def _listed(manifest: Mapping[str, JSON]) -> set[str]:
    """Names of a package's files. Only these are read, so that packages of all versions can be replaced."""
    files, shards = (value if isinstance(value := manifest.get(key), dict) else {} for key in ("files", SHARDS))
    entries = [entry for each in shards.values() if isinstance(each, list) for entry in each]
    names = {str(entry.get("file")) for entry in entries if isinstance(entry, dict)}
    return {MANIFEST, *files, *names, *weight_links(files)}


def _unlisted(folder: Path, listed: Collection[str], parents: Collection[str], inside: str = "") -> Iterator[str]:
    """parents: of the listed files. A link is deleted and not followed, wherever it leads to."""
    with os.scandir(folder / inside) as entries:
        children = {f"{inside}{entry.name}": entry.is_dir(follow_symlinks=False) for entry in entries}
    for name, is_folder in children.items():
        if PurePosixPath(name).name in _FILE_BROWSERS or _KILLED.fullmatch(name):
            continue
        if not is_folder:
            if name not in listed and name not in parents:
                yield name
        elif name in parents:
            yield from _unlisted(folder, listed, parents, f"{name}/")
        elif name in _HEADS and _is_head(folder / name):
            yield from (f"{name}/{other}" for other in _others(folder / name))
        else:
            yield f"{name}/"
