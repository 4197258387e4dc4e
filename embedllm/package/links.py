"""Links in a model's folder: none may lead out of it, so that a folder from elsewhere reads no other file of its user.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from embedllm.files.switches import switch

SWITCH = "EMBEDLLM_FOLLOW_LINKS"  # environment variable: "1" follows links wherever they lead
_TEXTS = (".json", ".jinja", ".txt", ".xml", ".model")  # ends of files that are read whether or not they are listed
_FOLDERS = ("", "additional_chat_templates")
_HUB = "snapshots", "blobs"  # of a repository in the hub's cache: folders whose files are links into the other


def link_fault(folder: Path, names: Iterable[str] = ()) -> str:
    """What is wrong with a link in a folder; empty when there is none that leads out.

    Looked at are the given files and the folder's own texts. A link may lead to any place in the folder, and in a
    snapshot of the hub's cache into the blobs of the same repository. The folder itself may be reached by a link.
    """
    if switch(SWITCH) == "on":
        return ""
    root = Path(os.path.realpath(folder))
    allowed = [root, *_blobs(root)]
    for name in dict.fromkeys([*names, *_linked_texts(folder)]):
        real = Path(os.path.realpath(folder / name))
        if real.exists() and not any(real.is_relative_to(place) for place in allowed):
            return (
                f"'{folder / name}' is a link to '{real}', outside of its folder; expected files, or links to files of "
                "that folder or of the same download of the hub. Copy the file there, or link the whole folder. If you "
                f"made the link yourself, set {SWITCH}=1 (docs/security.md#links)."
            )
    return ""


def _blobs(root: Path) -> Iterator[Path]:
    """Where the files of a snapshot lie: models--ORG--NAME/blobs of models--ORG--NAME/snapshots/COMMIT."""
    snapshots, blobs = _HUB
    for folder in (root, *root.parents):
        if folder.parent.name == snapshots:
            yield folder.parent.parent / blobs  # as it is: were it a link itself, nothing real would lie in it


def _linked_texts(folder: Path) -> Iterator[str]:
    for inner in _FOLDERS:
        try:
            with os.scandir(folder / inner) as entries:
                is_link = os.path.islink(folder / inner)  # noqa: PTH114  # beside scandir
                names = [entry.name for entry in entries if is_link or entry.is_symlink()]
        except OSError:
            continue
        yield from (f"{inner}/{name}" if inner else name for name in names if name.endswith(_TEXTS))
