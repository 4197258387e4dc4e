"""Python types as JSON schemas, and JSON as values of those types: the arguments of tools, and structured replies."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from embedllm.types import JSON

Schema: typing.TypeAlias = dict[str, JSON]

_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_PLAIN = {**_SCALARS, list: "array", tuple: "array", dict: "object"}


class TypeSchemas:
    """Writes the JSON schemas of Python types.

    as_transformers: as transformers 5.24 has them (get_json_schema): "nullable" where None may be, tuples of any
    length. Otherwise each value of the schema is one of the type.
    """

    def __init__(self, *, as_transformers: bool = False) -> None:
        self.definitions: dict[str, Schema] = {}
        """The "$defs" of the schemas read so far: of the classes that contain themselves."""
        self._as_transformers = as_transformers
        self._open: list[type] = []
        self._names: dict[type, str] = {}  # in definitions

    def read(self, hint: object, where: str) -> Schema:
        """The schema of a type. Raises ValueError, with `where` and the field, for a type that has none."""
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if hint is typing.Any:
            return {}
        if hint is None:
            hint = type(None)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _values_schema([member.value for member in hint], where)
        if isinstance(hint, type) and hint in _PLAIN:
            return {"type": _PLAIN[hint]}
        if has_fields(hint):
            return self._class_schema(hint, where)
        if origin is typing.Literal:
            return _values_schema(args, where)
        if _is_union(origin):
            return self._union_schema(args, where)
        if not args and origin in _PLAIN:  # typing.List without what it holds
            return {"type": _PLAIN[origin]}
        if origin is list:
            return {"type": "array", "items": self.read(args[0], where)}
        if origin is tuple and len(args) > 1 and ... not in args:
            items: Schema = {"type": "array", "prefixItems": [self.read(arg, where) for arg in args]}
            return items if self._as_transformers else {**items, "items": False, "minItems": len(args)}
        if origin is dict and (str in args[:1] or self._as_transformers):
            return {"type": "object", "additionalProperties": self.read([*args][1], where)}
        raise ValueError(
            f"{where}: {hint!r} has no JSON schema here. Use int, float, str, bool, None, an Enum, Literal, a "
            "dataclass, a TypedDict, list, dict with str keys, a tuple of two or more, or unions of these; or write "
            "the whole schema by hand and pass it as a dict."
        )

    def _class_schema(self, kind: type, where: str) -> Schema:
        """An object of the class's fields; a reference where the class contains itself."""
        if kind in self._open and kind not in self._names:
            is_taken = kind.__name__ in self._names.values()
            self._names[kind] = f"{kind.__name__}{len(self._names) if is_taken else ''}"
        if kind in self._names:
            return {"$ref": f"#/$defs/{self._names[kind]}"}
        self._open.append(kind)
        try:
            fields, required = _fields(kind)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error.__cause__
        properties = {name: self.read(hint, f"{where}, field '{name}'") for name, hint in fields.items()}
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = [*required]
        self._open.remove(kind)
        if kind not in self._names:
            return schema
        self.definitions[self._names[kind]] = schema
        return {"$ref": f"#/$defs/{self._names[kind]}"}

    def _union_schema(self, args: Sequence[object], where: str) -> Schema:
        """Plain types side by side become a list of names, others "anyOf"."""
        is_nullable = self._as_transformers and type(None) in args
        members = [self.read(arg, where) for arg in args if not (is_nullable and arg is type(None))]
        schema: Schema
        if len(members) == 1:
            schema = members[0]
        elif all(member.keys() == {"type"} and isinstance(member["type"], str) for member in members):
            names = sorted({str(member["type"]) for member in members})
            schema = {"type": names[0] if len(names) == 1 else names}
        else:
            schema = {"anyOf": members}
        return {**schema, "nullable": True} if is_nullable else schema


def type_hints(annotated: Callable[..., object], where: str) -> dict[str, typing.Any]:
    """The type hints of a function or a class, those written as text resolved.

    Raises ValueError, with `where`, for one that cannot be.
    """
    try:
        return typing.get_type_hints(annotated)
    except Exception as error:  # a hint is an expression, which can raise anything that Python does
        raise ValueError(
            f"{where} has a type hint that cannot be resolved ({type(error).__name__}: {error}). Import what it names "
            "where it is defined, not under TYPE_CHECKING only."
        ) from error


def has_fields(hint: object) -> typing.TypeGuard[type]:
    """Whether a type is a dataclass or a TypedDict, that of typing_extensions too. Those of pydantic are not."""
    if not isinstance(hint, type) or hasattr(hint, "__pydantic_fields__"):
        return False
    return dataclasses.is_dataclass(hint) or hasattr(hint, "__required_keys__")


def from_json(value: JSON, hint: object) -> object:
    """The value of a type that JSON stands for: an Enum's member, a dataclass, a tuple, and these within others.

    Raises ValueError where it stands for none; types without a schema take any.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if _is_union(origin):
        for arg in args:
            with suppress(ValueError):
                return from_json(value, arg)
        raise ValueError(f"found {value!r}, expected one of {hint!r}")
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    kind = hint if has_fields(hint) else origin or hint
    if not _fits(value, kind, args):
        raise ValueError(f"found {value!r}, expected {hint!r}")
    if kind is int:
        return int(typing.cast("float", value))  # 2.0 is an integer of JSON Schema
    if has_fields(hint):
        return _instance(typing.cast("Mapping[str, JSON]", value), hint)
    if origin is list and args:
        return [from_json(item, args[0]) for item in typing.cast("Sequence[JSON]", value)]
    if kind is tuple:
        items = typing.cast("Sequence[JSON]", value)
        if args and len(items) != len(args):
            raise ValueError(f"found {len(items)} values, expected the {len(args)} of {hint!r}")
        return tuple(map(from_json, items, args or [typing.Any] * len(items)))
    if origin is dict and args:
        return {name: from_json(item, args[1]) for name, item in typing.cast("Mapping[str, JSON]", value).items()}
    return value


def _instance(value: Mapping[str, JSON], kind: type) -> object:
    fields, required = _fields(kind)
    if missing := [name for name in required if name not in value]:
        raise ValueError(f"{kind.__name__}.{missing[0]} is missing")
    if unknown := [name for name in value if name not in fields]:
        raise ValueError(f"{kind.__name__} has no {unknown[0]!r}; expected {', '.join(fields) or 'nothing'}")
    return kind(**{name: from_json(part, fields[name]) for name, part in value.items()})


@functools.lru_cache(maxsize=256)  # a list may have thousands of them
def _fields(kind: type) -> tuple[dict[str, object], list[str]]:
    """The hints of a class's fields, by name, and the names of those that have to be there."""
    hints = type_hints(kind, f"'{kind.__name__}'")
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init]
        missing = dataclasses.MISSING
        required = [field.name for field in fields if field.default is missing and field.default_factory is missing]
        return {field.name: hints[field.name] for field in fields}, required
    marks = {name: typing.get_origin(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    known = typing.cast("typing.Any", kind).__required_keys__  # does not know NotRequired in hints that are text
    optional = [name for name in hints if marks[name] is typing.NotRequired or name not in known]
    return hints, [name for name in hints if marks[name] is typing.Required or name not in optional]


def _fits(value: JSON, kind: object, args: Sequence[object]) -> bool:
    """Whether JSON is a value of a type, seen from outside."""
    if kind is typing.Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if kind is int or kind is float:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return not isinstance(value, bool) and (is_whole or (kind is float and isinstance(value, float)))
    if kind is None or (isinstance(kind, type) and kind in (str, bool, type(None))):
        return isinstance(value, kind or type(None))
    if kind in (list, tuple):
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping) if kind is dict or has_fields(kind) else True


def _is_union(origin: object) -> bool:
    return origin is typing.Union or origin is types.UnionType


def _values_schema(values: Sequence[object], where: str) -> Schema:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise ValueError(f"{where}: its values {values!r} must be int, float, str, bool or None, and at least one.")
    kinds = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}  # pyright: ignore[reportReturnType] # scalars, checked above
