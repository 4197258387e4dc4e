"""JSON objects out of files."""

from __future__ import annotations

import json
from pathlib import Path

from embedllm.errors import EmbedError, PackageError
from embedllm.types import JSON


def read_json_object(path: Path) -> dict[str, JSON]:
    """The object in a JSON file, empty when there is no such file.

    Raises PackageError when the file is there and holds something else.
    """
    return required_json_object(path, "it", remedy="Fetch the file again.") if path.is_file() else {}


def required_json_object(
    path: Path, what: str, *, error: type[EmbedError] = PackageError, remedy: str = ""
) -> dict[str, JSON]:
    """The object in a JSON file that has to be there. what: what it holds, for the message.

    Raises `error` when there is no such file, or one of something else; remedy: what helps with the latter.
    """
    helps = f" {remedy}" if remedy else ""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"there is no '{path.name}' in '{path.parent}'; expected {what}.") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise error(f"cannot read '{path}': {problem}.{helps}") from problem
    if not isinstance(data, dict):
        raise error(f"'{path}' holds a {type(data).__name__}; expected a JSON object.{helps}")
    return data


def as_object(value: JSON) -> dict[str, JSON]:
    """A JSON value that has to be an object. Raises TypeError for another."""
    if not isinstance(value, dict):
        raise TypeError(f"found a {type(value).__name__} in the place of an object")
    return value
