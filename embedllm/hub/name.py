"""Names of models on the Hugging Face hub: 'org/name' and 'org/name:file-glob'. Standard library only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<pattern>.+))?", re.ASCII)
_FILES = (".gguf", ".onnx", ".safetensors", ".xml", ".json", ".bin")  # ends of a file's name, none of a repository's


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository, and which of its models is meant."""

    repository: str
    pattern: str = ""  # of files, as in "*Q4_K_M.gguf", or a folder; "": the one that is there

    def __str__(self) -> str:
        return f"{self.repository}:{self.pattern}" if self.pattern else self.repository


def hub_name(source: str | os.PathLike[str]) -> HubName | None:
    """What a name means on the hub; None when it is a path: one of a file or folder that is there, or no such name."""
    if not isinstance(source, str):
        return None
    match = _NAME.fullmatch(source)
    if match is None or os.path.exists(source):  # noqa: PTH110  # Path.exists raises for a name that is too long
        return None
    name = HubName(match["repository"], match["pattern"] or "")
    return None if not name.pattern and name.repository.lower().endswith(_FILES) else name
