"""Which file has the vision encoder of a GGUF model, of several beside it: one rule for folders and repositories.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

_MARK, _SUFFIX = "mmproj", ".gguf"
_TYPES = ("f16", "bf16", "q8_0", "f32")  # in the order in which they are preferred
_TYPE = re.compile(r"(?<![a-z0-9])(i?q\d(_[a-z0-9]+)*|b?f\d\d)(?![a-z0-9])")  # any, as names have it


def is_mmproj(name: str) -> bool:
    """Whether a file's name says that it is the vision encoder of a GGUF model."""
    plain = PurePosixPath(name).name.lower()
    return _MARK in plain and plain.endswith(_SUFFIX)


def preferred(names: Iterable[str], model: str) -> list[str]:
    """The names of vision encoders, the best first: of most of the model's words, and then by the type of weights.

    F16, BF16, Q8_0, F32, and then any other. model: its file's name.
    """
    words = _words(model)

    def place(name: str) -> tuple[int, int, str]:
        match = _TYPE.search(PurePosixPath(name).name.lower())
        kind = _TYPES.index(match[0]) if match is not None and match[0] in _TYPES else len(_TYPES)
        return -len(words & _words(name)), kind, name

    return sorted(names, key=place)


def _words(name: str) -> set[str]:
    """What a file is called, without the type of its weights."""
    return set(re.split(r"[-_. ]+", _TYPE.sub("", PurePosixPath(name).stem.lower()))) - {"", _MARK}
