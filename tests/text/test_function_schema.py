"""Functions as tools: their schemas by hand, and against those of transformers."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from embedllm.text.chat_template import ChatTemplate
from embedllm.text.function_schema import argument_reader, tool_schema

USER = [{"role": "user", "content": "Hi"}]


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


def forecast(city: str, days: int = 1, *, unit: Unit = Unit.CELSIUS) -> dict[str, float]:
    """The weather to come.

    From the nearest station.

    Args:
        city: Where; a name
            or a postal code.
        days: How many days.
        unit: Of the temperature.

    Returns:
        Temperature by hour.
    """
    raise NotImplementedError


def search(
    query: str, kind: Literal["web", 3, None], words: list[str], box: tuple[int, float], more: dict[str, list[int]]
) -> list[str] | None:
    """Search (for: things).
    Args:
        query: What to look for: anything
        kind: one of these (choices: ["web ", "news"])
        words: A list

        box: A box.
        more: More (see
          below).
    Raises:
        ValueError: never
    """


def flexible(
    a: int | str,
    b: Optional[float],  # noqa: UP045 # the older spelling is another type
    c: list[int] | str | None,
    d: Any,  # noqa: ANN401 # a schema without a type
    e: list | tuple,
    f: dict,
) -> object:
    """Takes much.

    Args:
        a: first
        b: second
        c: third
        d: fourth
        e: fifth
        f: sixth
    """


def with_types(city: str, days: int = 1, note: str = "") -> str:
    """Types stand in the docstring, too, as in Google's style guide.

    Args:
        city (str): Where (a name):
            or a postal code.
        days(int, optional): How many days.
        note ( a text ): see (below): more
    """
    return ""


def nothing() -> None:
    """Does nothing."""


class Tools:
    """Holds a tool."""

    def method(self, x: bool) -> str:
        """A method.

        Args:
            x: a truth
        """
        return str(x)


FUNCTIONS = [forecast, search, flexible, with_types, nothing, Tools().method]


def test_a_function_becomes_a_schema() -> None:
    assert tool_schema(forecast) == {
        "type": "function",
        "function": {
            "name": "forecast",
            "description": "The weather to come.\n\nFrom the nearest station.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where; a name or a postal code."},
                    "days": {"type": "integer", "description": "How many days."},
                    "unit": {"type": "string", "enum": ["celsius", "kelvin"], "description": "Of the temperature."},
                },
                "required": ["city"],
            },
            "return": {
                "type": "object",
                "additionalProperties": {"type": "number"},
                "description": "Temperature by hour.",
            },
        },
    }
    template = ChatTemplate("{{ tools[0].function.name }}{{ tools[1].name }}")
    assert template.render(USER, tools=[forecast, {"name": "other"}]) == "forecastother"


def test_types_in_a_docstring_are_no_part_of_names_and_descriptions() -> None:
    found: Any = tool_schema(with_types)
    properties = found["function"]["parameters"]["properties"]
    assert {name: schema["description"] for name, schema in properties.items()} == {
        "city": "Where (a name): or a postal code.",
        "days": "How many days.",
        "note": "see (below): more",
    }


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_schemas_are_those_of_transformers(function: Callable[..., object]) -> None:
    transformers_utils = pytest.importorskip("transformers.utils")
    expected = transformers_utils.get_json_schema(function)
    assert json.dumps(tool_schema(function)) == json.dumps(expected)


def undocumented(x: int) -> None: ...


def undescribed(x: int) -> None:
    """No arguments here."""


def untyped(x) -> None:  # noqa: ANN001 # the missing type is what is tested
    """No type.

    Args:
        x: a thing
    """


def unknown_type(x: Path) -> None:
    """A type that JSON lacks.

    Args:
        x: a path
    """


def bad_choices(x: str) -> None:
    """Choices that are not JSON.

    Args:
        x: a thing (choices: [a, b])
    """


def variable(*x: int) -> None:
    """Any number of values.

    Args:
        x: values
    """


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (variable, "argument 'x': it cannot be given by name, as variadic positional"),
        (undocumented, "tool 'undocumented' has no docstring"),
        (undescribed, "tool 'undescribed', argument 'x': the docstring does not"),
        (untyped, "argument 'x': there is no type hint"),
        (unknown_type, "argument 'x': .*Path.* has no JSON schema"),
        (bad_choices, "argument 'x': the choices are not a JSON list"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(function: Callable[..., object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ChatTemplate("").render(USER, tools=[function])


def test_a_docstring_that_python_removed_is_told_from_one_that_was_not_written() -> None:
    program = """
import embedllm.text.function_schema as tools
def documented():
    "Lists the files."
try:
    tools.tool_schema(documented)
except ValueError as error:
    print(error)
"""
    command = [sys.executable, "-OO", "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "'documented' has no docstring" in said
    assert "-OO removes docstrings" in said


def test_callables_that_are_not_functions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tools\[0\] is a type"):
        ChatTemplate("").render(USER, tools=[Tools])


def test_the_hints_of_a_function_are_read_once_for_all_calls() -> None:
    def add(numbers: tuple[int, int]) -> int:
        """Adds."""
        return sum(numbers)

    read = argument_reader(add)
    add.__annotations__.clear()
    assert read({"numbers": [1, 2]}) == {"numbers": (1, 2)}
    with pytest.raises(ValueError, match="the argument 'numbers': found 1 values, expected the 2"):
        read({"numbers": [1]})


def test_a_hint_that_cannot_be_resolved_is_refused() -> None:
    def look(place: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821  # the slip
        """Looks.

        Args:
            place: Where.
        """
        raise NotImplementedError

    with pytest.raises(ValueError, match=r"the tool 'look' has a type hint that cannot be resolved .*'Nowhere'"):
        tool_schema(look)
