"""What a tool gave or raised, as text for a model."""

from __future__ import annotations

import dataclasses
import enum
import json

from embedllm.text.lone_surrogates import replace_surrogates


def value_text(value: object) -> str:
    """A result: text as it is, anything else as JSON. Raises TypeError or ValueError for what JSON has no form of."""
    value = value.value if isinstance(value, enum.Enum) else value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    return replace_surrogates(text)


def _plain(value: object) -> object:
    """What json.dumps writes in place of a value that it does not know."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON; return text, numbers, lists, dicts or dataclasses")


def error_text(error: Exception) -> str:
    """What an error says; some cannot say it."""
    try:
        return replace_surrogates(str(error))
    except Exception as inner:  # noqa: BLE001 # an application's __str__ may raise anything
        return f"(its text cannot be had: {type(inner).__name__})"
