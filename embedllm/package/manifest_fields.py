"""The values of a manifest, each of the type that it must have; what is wrong is said with its key."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

from embedllm.errors import PackageError

_TOP = "the manifest's"  # where a key is looked up


def wrong(key: str, value: object, where: str, expected: str) -> PackageError:
    return PackageError(f"{where} '{key}' is {reprlib.repr(value)}; expected {expected}.")


def text_of(data: Mapping[str, object], key: str, where: str = _TOP) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise wrong(key, value, where, "a string")
    return value


def integer_of(data: Mapping[str, object], key: str, where: str = _TOP, *, least: int) -> int:
    value = data.get(key)
    if type(value) is not int or value < least:
        raise wrong(key, value, where, f"a whole number >= {least}")
    return value


def section_of(data: Mapping[str, object], key: str, where: str = _TOP) -> dict[str, object]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise wrong(key, value, where, "an object")
    return value


def list_of(data: Mapping[str, object], key: str, where: str = _TOP) -> list[object]:
    value = data.get(key)
    if not isinstance(value, list):
        raise wrong(key, value, where, "a list")
    return value


def integers_of(data: Mapping[str, object], key: str, where: str) -> list[int]:
    values = list_of(data, key, where)
    whole = [value for value in values if type(value) is int and value >= 0]
    if len(whole) != len(values):
        raise wrong(key, values, where, "whole numbers >= 0")
    return whole


def plain_name(name: str) -> str:
    """A file name that cannot lead out of the folder, on any system."""
    if not name.isprintable() or set(name) & set("\\:") or set(name.split("/")) & {"", ".", ".."}:
        raise PackageError(f"it names the file {name!r}; expected one inside its folder, of printable characters.")
    return name
