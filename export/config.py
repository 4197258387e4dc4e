"""Reads a config.json with its types checked, so that a wrong value is named and not met later as a shape error."""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.errors import ExportError

_MISSING = object()


class Config:
    """The keys of one config.json; a key that is absent or null takes the default, or is an error without one."""

    def __init__(self, data: Mapping[str, object], where: str = "config.json") -> None:
        self._data = data
        self._where = where

    def has(self, key: str) -> bool:
        return self._data.get(key) is not None

    def integer(self, key: str, default: object = _MISSING, *, least: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(key, value, f"a whole number >= {least}")
        return value

    def number(self, key: str, default: object = _MISSING) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: object = _MISSING) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: object = _MISSING) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str] | None:
        value = self._get(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return value

    def section(self, key: str) -> Config | None:
        """A nested object, or None."""
        value = self._get(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Config(value, f"{self._where}: {key}")

    def _get(self, key: str, default: object) -> object:
        value = self._data.get(key)
        if value is None:
            if default is _MISSING:
                raise ExportError(f"{self._where} has no '{key}'; the description of this model_type needs it.")
            return default
        return value

    def _wrong(self, key: str, value: object, expected: str) -> ExportError:
        return ExportError(f"{self._where}: '{key}' is {value!r}; expected {expected}.")
