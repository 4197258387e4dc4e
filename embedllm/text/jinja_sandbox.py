"""Runs a chat template, which came with a model and is trusted with nothing: Jinja in its sandbox.

The environment is the one that templates are written for, Hugging Face's, as of transformers 5.23:
ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks, loop controls, {% generation %}, and the names tojson,
raise_exception, strftime_now, dict and namespace. tests/text/test_chat_template.py compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace

from embedllm.errors import TemplateError
from embedllm.types import JSON

_FILE = "<template>"  # what Jinja calls a template that was made from text, in tracebacks


class SandboxedTemplate:
    """A template, compiled once.

    clock: the time that strftime_now formats.
    Raises TemplateError when the text is not a template, or too deeply nested for one.
    """

    def __init__(self, source: str, *, clock: Callable[[], datetime]) -> None:
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
        )
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
        try:
            return self._template.render(variables)
        except _Refusal as error:
            raise TemplateError(f"the chat template refuses the messages{_line(error)}: {error.message}") from error
        except Exception as error:  # an expression of the template can raise anything that Python does
            reason = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template fails on these messages{_line(error)}: {reason}") from error


class _Refusal(jinja2.TemplateError):
    """What raise_exception raises."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, but reaching for Python's insides fails immediately instead of giving an undefined value."""

    def unsafe_undefined(self, obj: object, attribute: str) -> Undefined:
        if attribute.startswith("_"):
            raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")
        return super().unsafe_undefined(obj, attribute)


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
