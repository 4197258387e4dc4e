"""Runs a chat template, which came with a model and is trusted with nothing: Jinja in its sandbox.

The environment is the one that templates are written for, Hugging Face's, as of transformers 5.24:
ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, loop controls, {% generation %}, and the names tojson,
raise_exception, strftime_now, dict and namespace; without lipsum, and with limits of what a template may take.
tests/text/test_chat_template.py compares the two.
"""

from __future__ import annotations

import functools
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.utils import Namespace
from jinja2.visitor import NodeVisitor

from embedllm.errors import TemplateError
from embedllm.types import JSON

_MOST_STEPS = 2_000_000  # rounds of loops
_CALL = 20  # rounds that a call of a macro counts for, as it takes that much longer
_MOST_CHARACTERS = 1 << 26  # of a text; items of a list
_MOST_BITS = 1 << 16  # of a number
_MOST_WIDTH = 100_000  # numbers that filters and methods of texts make text of
_GROWING = ("batch", "center", "format", "indent", "join", "replace", "round", "slice", "truncate", "wordwrap")
_WIDTH = re.compile(r"\d+(?=[^{}%]*[}a-zA-Z%])")  # in "%9d" and "{:>9}"
_FILE = "<template>"  # what Jinja calls a template that was made from text, in tracebacks


class SandboxedTemplate:
    """A template, compiled once.

    clock: the time that strftime_now formats.
    Raises TemplateError when the text is not a template, or too deeply nested for one.
    """

    def __init__(self, source: str, *, clock: Callable[[], datetime]) -> None:
        environment = _Environment()
        self._limits = environment.limits
        environment.filters["tojson"] = _tojson
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda format: clock().strftime(format),
            "dict": _DictMaker(),
            "namespace": _PlainNamespace,
        }
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is not valid Jinja, line {error.lineno}: {error.message}"
            ) from error
        except Exception as error:  # Jinja's parser and Python's compiler have limits of their own, such as nesting
            reason = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template cannot be compiled ({reason}); is it nested too deeply?") from error

    def render(self, variables: Mapping[str, JSON]) -> str:
        """The text that the template makes of its variables.

        Raises TemplateError, with the template's own words and line, when it refuses or fails.
        """
        self._limits.begin()
        try:
            return self._template.render(variables)
        except _Refusal as error:
            raise TemplateError(f"the chat template refuses the messages{_line(error)}: {error.message}") from error
        except Exception as error:  # an expression of the template can raise anything that Python does
            reason = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template fails on these messages{_line(error)}: {reason}") from error


class _Refusal(jinja2.TemplateError):
    """What raise_exception raises."""


class _Limits(threading.local):
    """Ends a template that would run or grow without end. One for each thread, as a template may run in several."""

    steps = 0

    def begin(self) -> None:
        self.steps = 0

    def round(self) -> None:
        """Called in each round of a loop."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise SecurityError(f"it takes more than {_MOST_STEPS:,} rounds of loops, a call of a macro being {_CALL}")

    def macro(self) -> None:
        """Called in each call of a macro."""
        self.steps += _CALL
        self.round()

    def join(self, parts: Iterable[object]) -> str:
        """The texts in one, which ends before the memory does."""
        texts: list[str] = []
        size = 0
        for part in parts:
            texts.append(str(part))
            size += len(texts[-1])
            check_size(size)
        return "".join(texts)


def check_size(size: int) -> None:
    """Raises SecurityError for a text or a list that no prompt needs."""
    if size > _MOST_CHARACTERS:
        raise SecurityError(
            f"it makes a text or a list of {size:,} characters or items, more than {_MOST_CHARACTERS:,}"
        )


def _check_number(bits: int) -> None:
    if bits > _MOST_BITS:
        raise SecurityError(f"it computes a number of {bits:,} bits")


def _check_growth(name: str, value: object, arguments: Sequence[object]) -> None:
    """Refuses what a filter, or a method of a text, would make much of little with."""
    text = value if isinstance(value, str) else ""
    numbers = [argument for argument in arguments if isinstance(argument, int)]
    if any(abs(number) > _MOST_WIDTH for number in numbers):
        raise SecurityError(f"it gives '{name}' the number {max(numbers, key=abs):.6g}; {_MOST_WIDTH:,} are allowed")
    if name == "replace" and len(arguments) > 1:
        old, new = str(arguments[0]), str(arguments[1])
        check_size(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
    elif name == "indent":
        check_size(len(text) + (text.count("\n") + 1) * max([4, *map(_size, arguments), *numbers]))
    elif name == "expandtabs":
        check_size(len(text) + text.count("\t") * max([8, *numbers]))
    elif name == "join":
        first = arguments[0] if arguments else ""
        items, separator = (first, text) if isinstance(value, str) else (value, first)
        if isinstance(items, list | tuple):
            check_size(sum(map(_size, items)) + _size(separator) * len(items))
    elif name in ("format", "%") and any(int(width) > _MOST_WIDTH for width in _WIDTH.findall(text)):
        raise SecurityError(f"it formats a text to a width of more than {_MOST_WIDTH:,} characters")


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


class _Bounded(NodeVisitor):
    """Puts a step into each loop and each macro of a template."""

    def generic_visit(self, node: nodes.Node, *args: object, **named: object) -> None:
        super().generic_visit(node, *args, **named)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            step = nodes.ExprStmt(nodes.EnvironmentAttribute("round" if isinstance(node, nodes.For) else "macro"))
            node.body.insert(0, step.set_lineno(node.lineno))


class _BoundedCode(CodeGenerator):
    """Writes the steps, and texts that are put together by "~" with a limit."""

    def visit_EnvironmentAttribute(self, node: nodes.EnvironmentAttribute, frame: Frame) -> None:  # noqa: N802
        self.write(f"environment.limits.{node.name}()")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.limits.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, but reaching for Python's insides fails immediately instead of giving an undefined value.

    And loops, macros, numbers and texts have limits, which no template of a prompt comes near.
    """

    code_generator_class = _BoundedCode
    intercepted_binops = frozenset(("+", "*", "**", "%"))  # which also keeps them from being computed while compiling

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag])
        self.limits = _Limits()
        self.concat = self.limits.join  # pyright: ignore[reportAttributeAccessIssue] # as NativeEnvironment has its own
        del self.globals["lipsum"]
        self.filters |= {name: _bounded_filter(name, self.filters[name]) for name in _GROWING}

    def unsafe_undefined(self, obj: object, attribute: str) -> Undefined:
        if attribute.startswith("_"):
            raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")
        return super().unsafe_undefined(obj, attribute)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Bounded().visit(tree)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, ANN401 # Jinja's own
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox has a "format" of its own
        if isinstance(text := getattr(method, "__self__", None), str):
            _check_growth(method.__name__, text, [*args, *kwargs.values()] if method is __obj else ())
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 # Jinja's own
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_number(left.bit_length() * max(right, 0))
        elif operator == "*" and (_size(left) or _size(right)):
            check_size(math.prod(value if isinstance(value, int) else _size(value) for value in (left, right)))
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _check_number(left.bit_length() + right.bit_length())
        elif operator == "+":
            check_size(_size(left) + _size(right))
        elif operator == "%":
            _check_growth("%", left, ())
        return super().call_binop(context, operator, left, right)


def _bounded_filter(name: str, apply: Callable[..., object]) -> Callable[..., object]:
    """A filter that refuses what would grow without end. Some are given their environment before the value."""
    first = 1 if hasattr(apply, "jinja_pass_arg") else 0

    @functools.wraps(apply)
    def bounded(*args: object, **named: object) -> object:
        _check_growth(name, args[first], [*args[first + 1 :], *named.values()])
        return apply(*args, **named)

    return bounded


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %}: marks what the assistant wrote, for training; here the body is all that counts.

    The body is called like a macro's, so that what it sets stays inside, as it does in transformers.
    """

    tags = {"generation"}  # noqa: RUF012 # Jinja's own declaration of it is an instance's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _DictMaker:
    """The global `dict`: makes dictionaries, and unlike the class leads nowhere else."""

    def __call__(self, *args: Iterable[tuple[str, JSON]], **items: JSON) -> dict[str, JSON]:
        return dict(*args, **items)

    def fromkeys(self, keys: Iterable[str], value: JSON = None) -> dict[str, JSON]:
        return dict.fromkeys(keys, value)


class _PlainNamespace(Namespace):
    """The global `namespace`, without names that begin with an underscore, which Python may read in its own way."""

    def __init__(self, /, *args: Mapping[str, object], **attributes: object) -> None:
        values = dict(*args, **attributes)
        for name in values:
            _PlainNamespace._check(name)  # not self._check: on a namespace that is a lookup among its values
        super().__init__(values)

    def __setitem__(self, name: str, value: object) -> None:
        _PlainNamespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}: it begins with an underscore")


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _line(error: Exception) -> str:
    """Where in the template an error arose, as ", line 3"; empty when it did not arise in it."""
    line = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f", line {line}"
