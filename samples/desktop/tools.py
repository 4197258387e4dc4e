"""What the model may call in the tools pane: each is shown with its arguments, and asked for, before it runs."""

from __future__ import annotations

import ast
import operator
import platform
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import cast

import embedllm

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST = 200  # characters of an expression

FUNCTIONS: dict[str, Callable[..., str]] = {}
SCHEMAS: list[embedllm.Tool] = []


def calculator(expression: str) -> str:
    """The value of an expression of numbers, + - * / and brackets. Raises ValueError for anything else.

    There is no eval: a model writes the expression.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters; at most {_LONGEST} are computed.")
    try:
        return f"{_value(ast.parse(expression.strip(), mode='eval').body):.12g}"
    except (SyntaxError, RecursionError, MemoryError, ArithmeticError) as error:
        raise ValueError(f"'{expression}' cannot be computed ({error}).") from error


def get_system_info() -> str:
    """The system, its processor, date and time."""
    now = datetime.now().astimezone()
    return f"{now:%A %Y-%m-%d %H:%M}, {platform.system()} {platform.release()}, {platform.machine()}"


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError(f"'{ast.unparse(node)}' is not understood; expected numbers, + - * / and brackets.")


def _add(function: Callable[..., str], description: str, **parameters: str) -> None:
    """A tool, with the description of each parameter, all of which are texts."""
    properties = {name: {"type": "string", "description": what} for name, what in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    FUNCTIONS[function.__name__] = function
    described = {"name": function.__name__, "description": description, "parameters": schema}
    SCHEMAS.append(cast("Mapping[str, str]", {"type": "function", "function": described}))


# schemas in place of the functions: their words are for the model, the docstrings above for the reader
_add(calculator, "Evaluate an arithmetic expression.", expression="for example 2 + 2")
_add(get_system_info, "Get the system information: processor, memory, disk, battery, date and time.")
