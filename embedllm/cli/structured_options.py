"""The structured output options of `run` and `chat`, and the response_format that they make."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from embedllm.files.home_path import expanded

if TYPE_CHECKING:
    from embedllm.sampling.structured.response_format import ResponseFormat
    from embedllm.text.chat_template import JSON

T = TypeVar("T")


def format_options() -> list[Callable[[Callable[..., object]], Callable[..., object]]]:
    """The options; they are mutually exclusive."""
    return [
        click.option("--json-schema", metavar="FILE|TEXT", callback=_read(_schema),
                     help="Constrain the reply to a JSON schema: a file, or the schema itself."),
        click.option("--regex", metavar="TEXT", callback=_read(lambda text: {"type": "regex", "regex": text}),
                     help="Constrain the whole reply to a regex (Rust syntax)."),
        click.option("--choices", metavar="TEXT", callback=_read(_choices),
                     help="Constrain the reply to one of these: comma-separated, or a JSON list."),
        click.option("--grammar", metavar="FILE", callback=_read(_grammar),
                     help="Constrain the reply to a grammar (llguidance Lark)."),
    ]  # fmt: skip


def response_format(values: dict[str, object]) -> ResponseFormat | None:
    """Takes the options out of what the command line gave; the response_format. Raises UsageError for more than one."""
    options = {name: values.pop(name) for name in ("json_schema", "regex", "choices", "grammar")}
    formats = {name: value for name, value in options.items() if value is not None}
    if len(formats) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in formats)
        raise click.UsageError(f"{names} are mutually exclusive.")
    return next(iter(formats.values()), None)  # type: ignore[return-value]  # made below


def _read(make: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """What click calls with the text that was given."""
    return lambda ctx, parameter, text: None if text is None else make(text)


def _schema(text: str) -> dict[str, object]:
    is_text = text.lstrip().startswith("{")
    try:
        schema: JSON = json.loads(text if is_text else _file(text))
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{'the text' if is_text else repr(text)} is no JSON ({error}).") from None
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}


def _choices(text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [choice.strip() for choice in text.split(",")]
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is no JSON list ({error}).") from None
    return choices


def _grammar(name: str) -> dict[str, object]:
    return {"type": "lark", "lark": _file(name)}


def _file(name: str) -> str:
    try:
        return expanded(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise click.BadParameter(f"cannot read '{name}': {error.strerror or error}.") from None
    except ValueError:
        raise click.BadParameter(f"'{name}' is no UTF-8 text.") from None
