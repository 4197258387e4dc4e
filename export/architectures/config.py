"""Reads a config.json with its types checked, so that a wrong value is named and not met later as a shape error."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

from embedllm.errors import ExportError

_MISSING = object()
_MOST = 2**31 - 1  # of a whole number: two of them make an int64
# What a description lists one by one, far above any model's: a hostile config.json would take hours and all memory.
_MOST_LISTED = {"num_hidden_layers": 1_000, "altup_num_inputs": 64}
_EXPERTS = frozenset({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"})
_MOST_EXPERTS = 100_000  # of all layers together; Kimi K2 has 23,000
_LARGEST = 3.4e38  # numbers end in float32


class Config:
    """The keys of one config.json; a key that is absent or null takes the default, or is an error without one."""

    def __init__(
        self, data: Mapping[str, object], where: str = "config.json", names: Mapping[str, str] | None = None
    ) -> None:
        """names: what this config calls a key that we ask for by Llama's name."""
        self._data = data
        self._where = where
        self._names = names or {}

    def named(self, names: Mapping[str, str]) -> Config:
        """The same config, in which a key may be asked for by another name: {Llama's: this config's}."""
        return Config(self._data, self._where, names)

    def filled(self, values: Mapping[str, object]) -> Config:
        """The same config, in which a key that is absent or null has one of these values."""
        return self.replaced({key: value for key, value in values.items() if not self.has(key)})

    def with_defaults(self, values: Mapping[str, object]) -> Config:
        """The same config, in which a key that is absent, and not one that is null, has one of these values."""
        return self.replaced(
            {key: value for key, value in values.items() if self._names.get(key, key) not in self._data}
        )

    def replaced(self, values: Mapping[str, object]) -> Config:
        """The same config but for these values."""
        theirs = {self._names.get(key, key): value for key, value in values.items()}
        return Config({**self._data, **theirs}, self._where, self._names)

    def value(self, key: str) -> object:
        """Of any type; None where there is none."""
        return self._data.get(self._names.get(key, key))

    def has(self, key: str) -> bool:
        return self.value(key) is not None

    def integer(self, key: str, default: object = _MISSING, *, least: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(key, value, f"a whole number >= {least}")
        if value > (most := self._most(key)):
            raise self._wrong(key, value, f"a whole number up to {most}")
        return value

    def _most(self, key: str) -> int:
        if key in _EXPERTS:
            layers = self.value("num_hidden_layers")
            return _MOST_EXPERTS // layers if isinstance(layers, int) and 0 < layers <= _MOST_EXPERTS else _MOST_EXPERTS
        return _MOST_LISTED.get(key, _MOST)

    def integer_or_none(self, key: str, default: int | None) -> int | None:
        """None where the config says null, the default only where it says nothing."""
        if self._data.get(self._names.get(key, key), default) is None:
            return None
        return self.integer(key, default)

    def number(self, key: str, default: object = _MISSING, *, above: float = -_LARGEST) -> float:
        """A number within float32's range."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= _LARGEST:
            raise self._wrong(key, value, "a number" if above == -_LARGEST else f"a number > {above:g}")
        return float(value)

    def number_or_none(self, key: str, default: float | None, *, above: float = -_LARGEST) -> float | None:
        """None where the config says null, the default only where it says nothing."""
        if self._data.get(self._names.get(key, key), default) is None:
            return None
        return self.number(key, default, above=above)

    def numbers(self, key: str, count: int, *, above: float = -_LARGEST) -> list[float]:
        """A list of `count` numbers within float32's range."""
        values = self._get(key, _MISSING)
        if not isinstance(values, list) or len(values) != count:
            raise self._wrong(key, values, f"a list of {count} numbers")
        return [Config({key: value}, self._where).number(key, above=above) for value in values]

    def integers(self, key: str) -> list[int] | None:
        """A list of whole numbers; None when there is none."""
        values = self._get(key, None)
        if values is None:
            return None
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise self._wrong(key, values, "a list of whole numbers")
        return values

    def one_or_each(self, key: str, default: int, count: int) -> list[int]:
        """A whole number >= 1 for each of `count` layers: the same for all, or a list of them."""
        if not isinstance(self._get(key, default), list):
            return [self.integer(key, default)] * count
        values = self.integers(key) or []
        if len(values) != count or min(values, default=0) < 1:
            raise self._wrong(key, values, f"a whole number >= 1, or a list of {count}")
        return values

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

    def text_or_none(self, key: str, default: str) -> str | None:
        """None where the config says null, the default only where it says nothing."""
        if self._data.get(self._names.get(key, key), default) is None:
            return None
        return self.text(key, default)

    def texts(self, key: str) -> list[str] | None:
        value = self._get(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return value

    def section(self, key: str) -> Config | None:
        """A nested object; None when there is none or nothing in it."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Config(value, f"{self._where}: {key}") if value else None

    def _get(self, key: str, default: object) -> object:
        name = self._names.get(key, key)
        value = self._data.get(name)
        if value is None:
            if default is _MISSING:
                raise ExportError(f"{self._where} has no '{name}'; the description of this model_type needs it.")
            return default
        return value

    def _wrong(self, key: str, value: object, expected: str) -> ExportError:
        name = self._names.get(key, key)
        return ExportError(f"{self._where}: '{name}' is {reprlib.repr(value)}; expected {expected}.")
