"""Decoder <-> JSON, so that a package carries its own description and can be read without the model's source."""

from __future__ import annotations

import dataclasses
import reprlib
import sys
import types
import typing
from functools import cache
from typing import TypeVar

from embedllm.errors import PackageError
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.mlp import Moe
from embedllm.package.architecture.position_bias import PositionBias
from embedllm.package.architecture.recurrent import DeltaNet, Mamba2, ShortConv
from embedllm.package.architecture.rope import RopeScaling
from embedllm.package.architecture.vision import DynamicVision, PatchPooler
from embedllm.package.external_graph import ExternalGraph

T = TypeVar("T")
_KIND = "kind"  # which dataclass of a union an object is


def to_json(model: Decoder | ExternalGraph) -> dict[str, object]:
    """Fields by name; a field that has its default is left out."""
    return typing.cast("dict[str, object]", _write(model))  # a dataclass becomes a dict


def from_json(data: object) -> Decoder | ExternalGraph:
    """The inverse of to_json. Raises PackageError, naming the field, for anything else."""
    is_external = isinstance(data, dict) and data.get(_KIND) == ExternalGraph.__name__
    return _read(ExternalGraph if is_external else Decoder, data, "architecture")


def _write(value: object) -> object:
    if dataclasses.is_dataclass(value):
        fields = {f.name: f.default for f in dataclasses.fields(value)}
        data = {n: _write(getattr(value, n)) for n, default in fields.items() if getattr(value, n) != default}
        return {_KIND: type(value).__name__, **data} if type(value) in _in_unions() else data
    if isinstance(value, tuple):
        return [_write(item) for item in value]
    return value


def _in_unions() -> frozenset[object]:
    """The dataclasses that say what they are; in others, a field of that name is one as all are."""
    # not Attention, Mlp, Vision and Decoder, which have been there before there was a choice
    unions = (*typing.get_args(RopeScaling), *typing.get_args(PositionBias))
    return frozenset((*unions, Moe, ShortConv, DeltaNet, Mamba2, DynamicVision, PatchPooler, ExternalGraph))


def _read(kind: type[T], data: object, where: str) -> T:
    if not isinstance(data, dict):
        raise PackageError(f"the manifest's '{where}' is {type(data).__name__}; expected an object.")
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # a dataclass always
    unknown = data.keys() - fields.keys() - {_KIND}
    if unknown:
        raise PackageError(f"the manifest's '{where}' has '{min(unknown)}', which this version does not know.")
    values: dict[str, object] = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _read_value(hints[name], data[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING:
            raise PackageError(f"the manifest's '{where}' lacks '{name}'.")
    return kind(**values)


@cache
def _hints(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind)


def _read_value(hint: object, data: object, where: str) -> object:
    if typing.get_origin(hint) is tuple:
        (item, _) = typing.get_args(hint)
        if not isinstance(data, list):
            raise PackageError(f"the manifest's '{where}' is {type(data).__name__}; expected a list.")
        return tuple(_read_value(item, value, f"{where}[{index}]") for index, value in enumerate(data))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return _read_union(typing.get_args(hint), data, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _read(hint, data, where)
    if hint is float and type(data) is int and abs(data) <= sys.float_info.max:
        return float(data)
    if not isinstance(hint, type) or type(data) is not hint:
        text = reprlib.repr(data)
        raise PackageError(f"the manifest's '{where}' is {text}; expected {getattr(hint, '__name__', hint)}.")
    return data


def _read_union(members: tuple[object, ...], data: object, where: str) -> object:
    if data is None and types.NoneType in members:
        return None
    kinds = [m for m in members if m is not types.NoneType]
    if isinstance(data, dict) and _KIND in data and not _in_unions().isdisjoint(kinds):
        kinds = [m for m in kinds if getattr(m, "__name__", "") == data[_KIND]]
    elif isinstance(data, dict):
        kinds = kinds[:1]  # written when there was only this one: a union keeps its oldest member first
    if len(kinds) != 1:
        raise PackageError(f"the manifest's '{where}' is of a kind that this version does not know.")
    return _read_value(kinds[0], data, where)
