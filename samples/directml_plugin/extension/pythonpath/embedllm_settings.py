"""The settings of the extension: one JSON file that the user edits."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What the file holds. A name that it lacks has the value here."""

    worker: list[str]  # the command: program and arguments
    model: str  # a folder written by `embedllm export`, or "demo"
    devices: list[str]  # tried in this order
    max_tokens: int  # of a reply, at most
    temperature: float
    variables: dict[str, Any]  # for the model's chat template


DEFAULT = Settings(
    worker=["embedllm", "worker"],
    model="demo",
    devices=["directml", "webgpu", "cpu"],
    max_tokens=512,
    temperature=0.0,
    variables={"enable_thinking": False},  # Qwen 3 would write its thoughts into the document
)


class SettingsError(Exception):
    """The file holds something else."""


def read_settings(file: Path) -> Settings:
    """The settings of a file, which is written with the defaults when there is none. Raises SettingsError."""
    if not file.exists():
        _write(file, json.dumps(asdict(DEFAULT), indent=2) + "\n")
        return DEFAULT
    try:
        document = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"'{file}' can't be read: {error}. Correct it, or delete it for the defaults.") from error
    if not isinstance(document, dict):
        raise SettingsError(f"'{file}' holds no JSON object. Correct it, or delete it for the defaults.")
    values = asdict(DEFAULT)
    for name, value in document.items():
        if name not in values:
            names = ", ".join(field.name for field in fields(Settings))
            raise SettingsError(f"'{file}' has '{name}', which is none of: {names}.")
        if not _is_like(value, values[name]):
            raise SettingsError(f"'{name}' in '{file}' is {value!r}; expected something like {values[name]!r}.")
        values[name] = value
    return Settings(**values)


def _is_like(value: object, example: object) -> bool:
    if isinstance(example, list):
        return isinstance(value, list) and bool(value) and all(isinstance(part, str) for part in value)
    if isinstance(value, bool):
        return isinstance(example, bool)
    return isinstance(value, (int, float) if isinstance(example, float) else type(example))


def _write(file: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=str(file.parent), prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        Path(partial).replace(file)
    except OSError:
        Path(partial).unlink()
        raise
