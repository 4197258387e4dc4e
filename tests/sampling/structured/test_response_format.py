"""What callers may say a reply shall be, and what is refused."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Optional, TypedDict

import pytest

from embedllm.generation.chunk import Chunk, Statistics
from embedllm.generation.completion import collect
from embedllm.sampling.structured.response_format import ResponseFormat, Source, grammar_source, read_reply
from embedllm.text.chat_template import JSON


def schema_of(response_format: ResponseFormat) -> object:
    source = grammar_source(response_format)
    assert source is not None
    assert source.kind == "json_schema"
    return json.loads(source.text)


class Point:
    """As pydantic's classes are asked."""

    @classmethod
    def model_json_schema(cls) -> dict[str, JSON]:
        inner: dict[str, JSON] = {
            "type": "object",
            "properties": {"properties": {"type": "string"}},
            "required": ["properties"],
        }
        return {"$defs": {"Inner": inner}, "type": "object", "properties": {"inner": {"$ref": "#/$defs/Inner"}}}


def test_text_and_none_hold_a_reply_to_nothing() -> None:
    assert grammar_source(None) is None
    assert grammar_source({"type": "text"}) is None


def test_openais_objects_are_json_schemas() -> None:
    assert schema_of({"type": "json_object"}) == {"type": "object"}
    named = {"name": "n", "schema": {"type": "null"}, "strict": True, "description": "d"}
    assert schema_of({"type": "json_schema", "json_schema": named}) == {"type": "null"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"type": ["string", "null"]},
        {"properties": {"type": {"const": "text"}}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/a", "$defs": {"a": {"enum": [1]}}},
        {"anyOf": [{"type": "null"}, {"const": 1}]},
        {"enum": ["a", 2]},
    ],
)
def test_a_schema_is_taken_as_it_is_as_ollama_does(schema: dict[str, object]) -> None:
    assert schema_of(schema) == schema
    assert schema_of({"type": "json_object", "schema": schema}) == schema  # llama.cpp's object


def test_the_order_of_properties_stays() -> None:
    source = grammar_source({"type": "json_schema", "json_schema": {"schema": {"properties": {"b": {}, "a": {}}}}})
    assert source is not None
    assert source.text.index('"b"') < source.text.index('"a"')


def test_a_class_has_no_other_properties_than_its_own() -> None:
    found = schema_of(Point)
    assert isinstance(found, dict)
    assert found["additionalProperties"] is False
    assert found["$defs"]["Inner"] == {
        "additionalProperties": False,
        "type": "object",
        "properties": {"properties": {"type": "string"}},
        "required": ["properties"],
    }


def test_a_dictionary_in_a_class_keeps_its_values_type() -> None:
    class Map(Point):
        @classmethod
        def model_json_schema(cls) -> dict[str, JSON]:
            return {"properties": {"of": {"additionalProperties": {"type": "integer"}, "type": "object"}}}

    found = schema_of(Map)
    assert isinstance(found, dict)
    assert found["properties"]["of"] == {"additionalProperties": {"type": "integer"}, "type": "object"}


class Label(enum.Enum):
    GOOD = "good"
    NONE = None
    THIRD = 3


@dataclasses.dataclass
class Rated:
    label: Label
    path: str = ""


class Pair(TypedDict):
    a: Rated
    b: int


def test_an_enum_is_a_choice_of_its_values() -> None:
    assert grammar_source(Label) == grammar_source(["good", "null", "3"])


def test_a_dataclass_and_a_typed_dict_are_objects_of_their_fields() -> None:
    label = {"type": ["string", "null", "integer"], "enum": ["good", None, 3]}
    rated = {
        "type": "object",
        "properties": {"label": label, "path": {"type": "string"}},
        "additionalProperties": False,
        "required": ["label"],
    }
    assert schema_of(Rated) == rated
    assert schema_of(Pair) == {
        "type": "object",
        "properties": {"a": rated, "b": {"type": "integer"}},
        "additionalProperties": False,
        "required": ["a", "b"],
    }


@dataclasses.dataclass
class Node:
    next: Node | None


def test_a_class_that_contains_itself_brings_its_definition() -> None:
    found = schema_of(Node)
    assert isinstance(found, dict)
    assert found["$ref"] == "#/$defs/Node"
    assert found["$defs"]["Node"]["properties"] == {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}


def test_a_dataclass_of_pydantics_has_pydantics_schema() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Counted:
        count: int = pydantic.Field(gt=0)

    found = schema_of(pydantic.dataclasses.dataclass(Counted))
    assert isinstance(found, dict)
    assert found["properties"]["count"]["exclusiveMinimum"] == 0
    assert (found["required"], found["additionalProperties"]) == (["count"], False)


def test_a_reply_is_read_as_the_class_that_it_was_asked_for_by() -> None:
    assert [read_reply(text, Label) for text in ("good", "null", "3")] == list(Label)
    assert read_reply('{"label": 3}', Rated) == Rated(Label.THIRD)
    assert read_reply('{"a": {"label": null, "path": "x"}, "b": 2}', Pair) == {"a": Rated(Label.NONE, "x"), "b": 2}
    assert read_reply('{"next": {"next": null}}', Node) == Node(Node(None))


@pytest.mark.parametrize(
    ("kind", "schema", "text", "value"),
    [
        (list[int], {"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        (int, {"type": "integer"}, "7", 7),
        (str, {"type": "string"}, '"yes"', "yes"),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}, '{"a": 1.5}', {"a": 1.5}),
        (int | None, {"type": ["integer", "null"]}, "null", None),
        (Optional[bool], {"type": ["boolean", "null"]}, "true", True),  # noqa: UP045  # another type than with |
    ],
)
def test_a_type_is_the_json_of_its_values(kind: type, schema: object, text: str, value: object) -> None:
    assert schema_of(kind) == schema
    assert read_reply(text, kind) == value


def test_objects_may_lie_in_lists_tuples_and_unions() -> None:
    found = schema_of(list[Rated | Node])
    assert isinstance(found, dict)
    rated, node = found["items"]["anyOf"]
    assert (rated, node) == (schema_of(Rated), {"$ref": "#/$defs/Node"})
    assert [*found["$defs"]] == ["Node"]
    text = '[{"label": "good"}, {"next": null}]'
    assert read_reply(text, list[Rated | Node]) == [Rated(Label.GOOD), Node(None)]
    assert read_reply('[{"label": "good"}, null]', tuple[Rated, Label]) == (Rated(Label.GOOD), Label.NONE)


def test_a_literal_is_a_choice_of_its_values_as_an_enum_is() -> None:
    kind = Literal["good", None, 3]
    assert grammar_source(kind) == grammar_source(Label)
    assert [read_reply(text, kind) for text in ("good", "null", "3")] == ["good", None, 3]


def test_classes_of_pydantics_in_other_types_are_pydantics() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", count=(int, pydantic.Field(gt=0)))
    found = schema_of(list[model | None])
    assert isinstance(found, dict)
    assert found["$defs"]["Model"]["properties"]["count"]["exclusiveMinimum"] == 0
    assert found["$defs"]["Model"]["additionalProperties"] is False
    assert read_reply('[{"count": 4}, null]', list[model | None]) == [model(count=4), None]
    with pytest.raises(ValueError, match="greater than 0"):
        read_reply('[{"count": 0}]', list[model])


def test_what_pydantic_has_no_schema_of_is_refused_as_other_types_are() -> None:
    pydantic = pytest.importorskip("pydantic")
    calls = pydantic.create_model("Calls", run=(Callable[[], int], ...))

    class Plain:
        pass

    for kind in (calls | None, list[calls | Plain]):
        with pytest.raises(ValueError, match=r"response_format '.*Calls.*': pydantic has no JSON schema of it \("):
            grammar_source(kind)


def test_a_reply_is_read_as_a_class_of_pydantics_by_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Counted:
        count: int = pydantic.Field(gt=0)

    for kind in (pydantic.create_model("Model", count=(int, 7)), pydantic.dataclasses.dataclass(Counted)):
        found = read_reply('{"count": 4}', kind)
        assert getattr(found, "count", None) == 4
        with pytest.raises(ValueError, match="count"):
            read_reply('{"count": "x"}', kind)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ('{"label": "go', Rated, "ended by 'length', cannot be read as Rated: .* Give the reply more max_tokens"),
        ('{"label": "bad"}', Rated, "'bad' is not a valid Label"),
        ("bad", Label, r"found 'bad', expected one of \['good', 'null', '3'\]"),
        ("x", Literal["a", 2], r"read as typing.Literal\['a', 2\]: found 'x', expected one of \['a', '2'\]"),
        ('[{"label": "good"}, {"label": "bad"}]', list[Rated], "'bad' is not a valid Label"),
        ("1", Path, "cannot be read as Path: .* has no JSON schema here"),
        ("yes", ["yes", "no"], r"cannot be read as \['yes', 'no'\]: .* has no JSON schema here"),
        ("1", Point, "cannot be read as Point: it has no 'model_validate_json'"),
    ],
)
def test_what_is_no_object_of_the_class_says_so(text: str, kind: type, message: str) -> None:
    chunk = Chunk(text=text, token=1, logprob=0.0, finish_reason="length",
                  statistics=Statistics(prompt_tokens=1, cached_tokens=0))  # fmt: skip
    with pytest.raises(ValueError, match=message):
        collect([chunk]).parse(kind)


def test_regex_choices_and_lark_are_said_by_their_kinds() -> None:
    assert grammar_source({"type": "regex", "regex": "a+"}) == Source(kind="regex", text="a+")
    assert grammar_source({"type": "lark", "lark": 'start: "a"'}) == Source(kind="lark", text='start: "a"')
    assert grammar_source({"type": "choices", "choices": ["ü", "n"]}) == grammar_source(("ü", "n"))


def test_a_compiled_regex_brings_its_flags() -> None:
    assert grammar_source(re.compile("a+")) == Source(kind="regex", text="a+")
    assert grammar_source(re.compile("a.", re.IGNORECASE | re.DOTALL)) == Source(kind="regex", text="(?is)a.")
    with pytest.raises(ValueError, match="ASCII, which is not followed"):
        grammar_source(re.compile("a", re.ASCII))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("a+", r"response_format is 'a\+'; expected"),
        (7, "response_format is 7; expected"),
        ({"type": "xml"}, "response_format has the type 'xml'; expected"),
        ({"schema": {}}, "response_format has the type None; expected"),
        ({"type": "json_object", "mode": 1}, "response_format has 'mode', which is not followed; expected schema"),
        ({"type": {}}, "response_format has the type {}; expected"),
        ({"type": "json_schema"}, "response_format has no json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format has no json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "mode": 1}}, "response_format.json_schema has 'mode'"),
        ({"type": "json_schema", "json_schema": {"schema": {"const": float("nan")}}}, "the JSON schema is no JSON"),
        ({"type": "json_schema", "json_schema": {"schema": {1, 2}}}, "the JSON schema is no JSON"),
        ({"type": "regex", "regex": 7}, "response_format.regex is 7; expected a text"),
        ([], r"choices is \[\]; expected"),
        ({"type": "choices", "choices": "abc"}, "choices is 'abc'; expected"),
        (Path, "response_format 'Path': .* has no JSON schema here. Use int, float, .* a dataclass, a TypedDict"),
        (list[Path], r"response_format 'list\[pathlib.Path\]': .* has no JSON schema here"),
        (
            enum.Enum("Pairs", {"A": (1, 2)}),
            r"'Pairs': its values \[\(1, 2\)\] must be int, float, str",
        ),
        (
            dataclasses.make_dataclass("Where", [("at", Path)]),
            "response_format 'Where', field 'at': .*Path.* has no JSON schema",
        ),
        (["a", ""], "choices is .*; expected a list of one text or more, none of them empty"),
    ],
)
def test_another_shape_is_an_error_that_says_what_was_found(said: ResponseFormat, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grammar_source(said)
