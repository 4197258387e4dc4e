"""JSON objects out of files."""

from __future__ import annotations

import json
from pathlib import Path

from embedllm.errors import PackageError
from embedllm.types import JSON


def read_json_object(path: Path) -> dict[str, JSON]:
    """The object in a JSON file, empty when there is no such file.

    Raises PackageError when the file is there and holds something else.
    """
    if not path.is_file():
        return {}
    try:
        return as_object(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise PackageError(f"'{path}' is damaged: expected a JSON object ({error}). Fetch the file again.") from error


def as_object(value: JSON) -> dict[str, JSON]:
    """A JSON value that has to be an object. Raises TypeError for another."""
    if not isinstance(value, dict):
        raise TypeError(f"found a {type(value).__name__} in the place of an object")
    return value
