"""The names under which openvino-genai looks for the weights of a folder's OpenVINO models: links to the one file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePath

from embedllm.errors import ExportError
from embedllm.export.openvino.genai_models import FILES, LANGUAGE_FILE
from embedllm.export.openvino.tokenizer import TOKENIZER_FILE
from embedllm.package.package import WEIGHTS

LINK = "openvino_model.bin"  # of openvino_model.xml


def weight_links(files: Collection[str]) -> list[str]:
    """Those that belong into a folder with these files, which a manifest does not list."""
    models = [file for file in files if file in FILES] if LANGUAGE_FILE in files else []
    return [*([LINK] if TOKENIZER_FILE in files else []), *(PurePath(file).stem + ".bin" for file in models)]


def link_weights(folder: Path, names: Collection[str]) -> None:
    """Gives the weights file, which is made if it is not there yet, more names: hard links, else relative ones.

    Those that are there already are left. Raises ExportError where the file system has neither.
    """
    (folder / WEIGHTS).touch()
    for link in (folder / name for name in names if not (folder / name).exists()):
        try:
            link.hardlink_to(folder / WEIGHTS)
        except OSError:
            try:
                link.symlink_to(WEIGHTS)
            except OSError as error:
                raise ExportError(
                    f"the disk of '{folder.parent}' takes no links ({error.strerror or error}), but openvino-genai "
                    f"needs '{link.name}' as a second name of '{WEIGHTS}'. Export to another disk, or without "
                    "what openvino-genai needs."
                ) from error
