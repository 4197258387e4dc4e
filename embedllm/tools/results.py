"""What a tool gave or raised, as text for a model."""

from __future__ import annotations

import json

from embedllm.text.lone_surrogates import replace_surrogates


def value_text(value: object) -> str:
    """A result: text as it is, anything else as JSON. Raises TypeError or ValueError for what JSON has no form of."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    return replace_surrogates(text)


def error_text(error: Exception) -> str:
    """What an error says; some cannot say it."""
    try:
        return replace_surrogates(str(error))
    except Exception as inner:  # noqa: BLE001 # an application's __str__ may raise anything
        return f"(its text cannot be had: {type(inner).__name__})"
