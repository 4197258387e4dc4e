"""Arithmetic without eval: an expression is parsed, and only numbers, operators and a few functions are computed."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

Number = int | float

_LONGEST = 300  # characters
_MOST_BITS = 4096  # of any whole number on the way: about 1200 digits
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_SIGNS: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[[Number], Number]] = {"abs": abs, "round": round, "sqrt": math.sqrt}
_CONSTANTS = {"pi": math.pi, "e": math.e}


def calculate(expression: str) -> Number:
    """The value of an expression such as "12.5 * (3 + 4) ** 2".

    Raises ValueError, with what is wrong, for anything else, for no real result and for numbers beyond 4096 bits.
    """
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters; at most {_LONGEST} are computed.")
    if "\0" in expression:  # a ValueError of another text before Python 3.11.4
        raise ValueError(f"{expression!r} is no arithmetic expression.")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, MemoryError, RecursionError) as error:  # the latter two: nested too deeply
        raise ValueError(f"'{expression}' is no arithmetic expression.") from error
    except ArithmeticError as error:
        raise ValueError(f"'{expression}' cannot be computed: {error}.") from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            return _SIGNS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            first, second = _value(left), _value(right)
            if isinstance(op, ast.Pow):
                _check_power(first, second)
            return _bounded(_OPERATORS[type(op)](first, second))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(argument))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
    raise ValueError(
        f"'{ast.unparse(node)}' is not understood; expected numbers, + - * / // % **, brackets, "
        f"{', '.join(_FUNCTIONS)}, {', '.join(_CONSTANTS)}."
    )


def _check_power(base: Number, exponent: Number) -> None:
    """Refuses a power before it is computed: 9**9**9 would take all memory."""
    if isinstance(base, int) and isinstance(exponent, int) and (base.bit_length() - 1) * exponent >= _MOST_BITS:
        raise ValueError(f"{base}**{exponent} is too large; whole numbers go up to {_MOST_BITS} bits.")


def _bounded(number: Number) -> Number:
    if isinstance(number, complex):
        raise ValueError("the result is no real number.")
    if isinstance(number, int) and number.bit_length() > _MOST_BITS:
        raise ValueError(f"a number is too large; whole numbers go up to {_MOST_BITS} bits.")
    return number
