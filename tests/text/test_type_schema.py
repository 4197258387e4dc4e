"""Python types as JSON schemas, and JSON read back as their values."""

from __future__ import annotations

import dataclasses
import enum
import typing
from pathlib import Path
from typing import Any, Literal, NotRequired, Optional, TypedDict

import jsonschema
import pytest
import typing_extensions

from embedllm.text.type_schema import TypeSchemas, from_json


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Size:
    width: float
    unit: Unit = Unit.METRE


@dataclasses.dataclass
class Thing:
    name: str
    size: Size
    corners: tuple[int, int]
    level: Level | None
    tags: list[str] = dataclasses.field(default_factory=list)
    others: dict[str, Size] = dataclasses.field(default_factory=dict)
    key: int = dataclasses.field(default=0, init=False)


class Base(TypedDict):
    kind: Literal["a", "b"]


class Movie(Base, total=False):
    year: int
    size: Size


class Partly(TypedDict):  # whose hints are text here, which Python itself does not look into
    a: int
    b: NotRequired[str]


class Older(typing_extensions.TypedDict):
    a: int
    b: typing_extensions.NotRequired[str]


@dataclasses.dataclass
class Tree:
    label: str
    branches: list[Tree]
    parent: Optional[Tree] = None  # noqa: UP045 # the older spelling is another type


SIZE = {
    "type": "object",
    "properties": {"width": {"type": "number"}, "unit": {"type": "string", "enum": ["m", "ft"]}},
    "additionalProperties": False,
    "required": ["width"],
}


def test_a_dataclass_is_an_object_of_its_fields() -> None:
    assert TypeSchemas().read(Thing, "x") == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "size": SIZE,
            "corners": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "integer"}],
                "items": False,
                "minItems": 2,
            },
            "level": {"anyOf": [{"type": "integer", "enum": [1, 2]}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "others": {"type": "object", "additionalProperties": SIZE},
        },
        "additionalProperties": False,
        "required": ["name", "size", "corners", "level"],
    }


def test_a_typed_dict_requires_what_it_does_not_leave_open() -> None:
    found = TypeSchemas().read(Movie, "x")
    assert found["properties"] == {
        "kind": {"type": "string", "enum": ["a", "b"]},
        "year": {"type": "integer"},
        "size": SIZE,
    }
    assert found["required"] == ["kind"]
    assert [TypeSchemas().read(kind, "x")["required"] for kind in (Partly, Older)] == [["a"], ["a"]]


def test_unions_of_plain_types_are_lists_of_them() -> None:
    assert TypeSchemas().read(int | str | None, "x") == {"type": ["integer", "null", "string"]}
    assert TypeSchemas(as_transformers=True).read(int | None, "x") == {"type": "integer", "nullable": True}


def test_a_class_that_contains_itself_is_referred_to() -> None:
    types = TypeSchemas()
    reference = {"$ref": "#/$defs/Tree"}
    assert types.read(list[Tree], "x") == {"type": "array", "items": reference}
    assert types.definitions["Tree"]["properties"] == {
        "label": {"type": "string"},
        "branches": {"type": "array", "items": reference},
        "parent": {"anyOf": [reference, {"type": "null"}]},
    }


def test_classes_of_one_name_that_contain_themselves_have_definitions_of_their_own() -> None:
    types = TypeSchemas()
    other = dataclasses.make_dataclass("Tree", [("again", "Tree | None")])
    other.__module__ = "nowhere"
    with pytest.raises(ValueError, match=r"x, field 'b': 'Tree' has a type hint that cannot be resolved .*'Tree'"):
        types.read(dataclasses.make_dataclass("Both", [("a", Tree), ("b", other)]), "x")
    other.__annotations__["again"] = other | None
    types = TypeSchemas()
    types.read(dataclasses.make_dataclass("Both", [("a", Tree), ("b", other)]), "x")
    assert [*types.definitions] == ["Tree", "Tree1"]


@dataclasses.dataclass
class Odd:
    size: list[Path]


class Pair(enum.Enum):
    A = (1, 2)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (Path, "here: <class 'pathlib.*Path'> has no JSON schema"),
        (dataclasses.make_dataclass("Outer", [("odd", Odd)]), "here, field 'odd', field 'size': .*Path.*Use int"),
        (dict[int, str], r"here: dict\[int, str\] has no"),
        (set[str], "here: set"),
        (Pair, r"here: its values \[\(1, 2\)\] must be"),
        (enum.Enum("None_", []), r"here: its values \[\] must be"),
    ],
)
def test_what_json_does_not_know_is_refused_with_field_and_type(hint: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TypeSchemas().read(hint, "here")


THING: Any = {
    "name": "box",
    "size": {"width": 2, "unit": "ft"},
    "corners": [1, 2],
    "level": 2,
    "others": {"lid": {"width": 0.5}},
}


def test_json_becomes_the_value_of_a_type() -> None:
    jsonschema.validate(THING, TypeSchemas().read(Thing, "x"))
    size, lid = Size(width=2, unit=Unit.FOOT), Size(width=0.5)
    assert from_json(THING, Thing) == Thing("box", size, (1, 2), Level.HIGH, others={"lid": lid})
    movie = {"kind": "a", "size": {"width": 1}}
    assert from_json(movie, Movie) == {"kind": "a", "size": Size(width=1)}
    tree = {"label": "a", "branches": [{"label": "b", "branches": []}]}
    assert from_json(tree, Tree) == Tree("a", [Tree("b", [])])


def test_the_hints_of_a_class_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = dataclasses.make_dataclass("Fresh", [("a", int)])
    reads: list[object] = []
    resolve = typing.get_type_hints
    monkeypatch.setattr(
        typing, "get_type_hints", lambda *args, **options: reads.append(args) or resolve(*args, **options)
    )
    assert from_json([{"a": at} for at in range(9)], list[kind]) == [kind(at) for at in range(9)]
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ({"width": 1}, str | Size, Size(width=1)),
        ("ft", Size | Unit, Unit.FOOT),
        ("ft", str | Unit, "ft"),  # the first that takes it
        (None, list[Unit] | None, None),
        (["m"], list[Unit] | None, [Unit.METRE]),
        (3, float, 3),
        (3.0, int, 3),  # JSON Schema's integer: range() takes no float
        (3.0, str | int, 3),
        (True, int | bool, True),
        ([1, "a"], tuple, (1, "a")),
        ({"a": 1}, Any, {"a": 1}),
    ],
)
def test_a_value_is_read_by_the_member_of_a_union_that_takes_it(value: Any, hint: object, expected: object) -> None:  # noqa: ANN401 # JSON
    found = from_json(value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ("x", Unit, "'x' is not a valid Unit"),
        ("x", int | Size, "found 'x', expected one of"),
        (True, int, "found True"),
        ({"unit": "m"}, Size, "Size.width is missing"),
        ({"width": 1, "height": 2}, Size, "Size has no 'height'; expected width, unit"),
        ([1], tuple[int, int], r"found 1 values, expected the 2 of tuple\[int, int\]"),
        ([1, "a"], list[int], "found 'a'"),
        ("c", Literal["a", "b"], "found 'c'"),
        (True, Literal[1], "found True"),
        ([], Size, r"found \[\]"),
    ],
)
def test_json_that_is_no_value_of_a_type_is_refused(value: Any, hint: object, message: str) -> None:  # noqa: ANN401 # JSON
    with pytest.raises(ValueError, match=message):
        from_json(value, hint)
