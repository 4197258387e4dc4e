"""Options that several commands share, gathered into one value; no command acts in here."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

import embedllm
from embedllm.openvino_options import OpenVINOOptions
from embedllm.sampling import Sampling

if TYPE_CHECKING:
    from embedllm.chat import JSON

C = TypeVar("C", bound=Callable[..., object])
_SLOW_S = 5.0
_DEBUG = "embedllm.debug"  # keys of the click context
_VERBOSE = "embedllm.verbose"

# option, its field of Sampling, type, help
_SAMPLING = (
    ("--temperature", float, "0 always takes the most probable token; higher is more varied."),
    ("--top-k", int, "Draw from the K most probable tokens only; 0 = off."),
    ("--top-p", float, "Draw from the fewest best tokens that hold this probability; 1 = off."),
    ("--min-p", float, "Draw from tokens at least this share as probable as the best; 0 = off."),
    ("--typical-p", float, "Draw from the most ordinary tokens that hold this probability; 1 = off."),
    ("--repetition-penalty", float, "Above 1: what was in prompt or reply becomes less probable."),
    ("--presence-penalty", float, "Subtracted from the logits of tokens that are in the reply."),
    ("--frequency-penalty", float, "Subtracted once for each time that a token is in the reply."),
    ("--seed", int, "The same seed gives the same reply on the same device."),
)
_OF_CHANCE = {"top_k", "top_p", "min_p", "typical_p", "seed"}  # what means nothing when nothing is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was said about the model and its replies."""

    model: str
    device: str | None
    threads: int
    exact: bool
    openvino: OpenVINOOptions | None
    system: str | None
    sampling: Mapping[str, float | int]  # only what was given; the rest are the model's own defaults
    max_tokens: int | None
    stop: tuple[str, ...]
    variables: dict[str, JSON] | None  # of the chat template
    stats: bool

    def open_model(self) -> embedllm.Model:
        """Loads the model, once the other options were seen to make sense."""
        from embedllm.backends import select

        Sampling(**self.sampling)  # type: ignore[arg-type]  # the options have the fields' own types
        names = select.names_in(self.device or "")
        device = names if len(names) > 1 else self.device
        with _saying_after(
            _SLOW_S, f"loading '{self.model}'; on a GPU or NPU the first time takes minutes (-v says more)"
        ):
            return embedllm.load(
                self.model, device=device, threads=self.threads, exact=self.exact, openvino=self.openvino
            )

    def sampled(self, defaults: Sampling) -> Sampling:
        """The model's own sampling with what was given; says so when an option has no effect."""
        sampling = replace(defaults, **self.sampling)  # type: ignore[arg-type]  # as above
        idle = [f"--{name.replace('_', '-')}" for name in self.sampling if name in _OF_CHANCE]
        if sampling.temperature == 0 and idle:
            note(f"{', '.join(idle)}: without effect at temperature 0; add --temperature 0.7, say.")
        return sampling


@contextmanager
def _saying_after(seconds: float, text: str) -> Iterator[None]:
    """A note when the block takes long."""
    timer = threading.Timer(seconds, note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def note(text: str) -> None:
    """A line for the reader at the terminal, who may have sent the reply somewhere else."""
    click.echo(text, err=True)


def common_options(command: C) -> C:
    """-v and --debug; before the command's name they mean the same."""
    debug = click.option("--debug", is_flag=True, expose_value=False, callback=_set_debug,
                         help="Show the traceback of an error (also: EMBEDLLM_DEBUG=1).")  # fmt: skip
    verbose = click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_set_verbose,
                           help="Say on stderr what is chosen and why.")  # fmt: skip
    return verbose(debug(command))


def wants_traceback(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_DEBUG)) or os.environ.get("EMBEDLLM_DEBUG", "") not in ("", "0")


def reply_options(command: Callable[..., object]) -> Callable[..., object]:
    """The options of `run` and `chat`, which the command gets as `settings`."""

    @functools.wraps(command)
    def gathered(**values: object) -> object:  # click hands over whatever options it was told of
        given = {name: values.pop(name) for name in _names(_SAMPLING)}
        sampling = {name: value for name, value in given.items() if value is not None}
        own = {field.name: values.pop(field.name) for field in fields(Settings) if field.name != "sampling"}
        return command(settings=Settings(sampling=sampling, **own), **values)  # type: ignore[arg-type]  # by click

    options = [
        click.option("--model", "-m", default="demo", show_default=True, metavar="FOLDER",
                     help="A folder written by 'embedllm export', or 'demo'."),
        click.option("--device", metavar="NAME", help="From 'embedllm devices', or several by commas, to be tried in "
                     "turn. Else: EMBEDLLM_DEVICE, or the best one."),
        click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N",
                     help="CPU threads; by default one a physical core."),
        click.option("--exact", is_flag=True, help="Float activations in every product: slower, a little closer."),
        click.option("--openvino", multiple=True, metavar="KEY=VALUE", callback=_parse_openvino,
                     help="For OpenVINO's devices: precision, rounding_group, kv, cache, prompt, reply, as in "
                     "OpenVINOOptions. Repeatable."),
        click.option("--system", metavar="TEXT", help="What the model is told before all else."),
        *(click.option(name, type=kind, metavar=kind.__name__.upper(), help=text) for name, kind, text in _SAMPLING),
        click.option("--max-tokens", type=click.IntRange(min=1), metavar="N",
                     help="Tokens of a reply at most. Else: the model's default, or what the context leaves."),
        click.option("--stop", multiple=True, metavar="TEXT", help="Ends the reply and is not shown. Repeatable."),
        click.option("--var", "variables", multiple=True, metavar="KEY=JSON", callback=_parse_variables,
                     help="For the chat template, such as enable_thinking=false. Repeatable."),
        click.option("--stats", is_flag=True, help="Tokens and times on stderr."),
    ]  # fmt: skip
    gathered = common_options(gathered)  # first, so that they are listed last
    for option in reversed(options):
        gathered = option(gathered)
    return gathered


def _names(options: tuple[tuple[str, type, str], ...]) -> list[str]:
    return [name.removeprefix("--").replace("-", "_") for name, *_ in options]


def _parse_variables(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, JSON] | None:
    variables: dict[str, JSON] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=JSON, such as enable_thinking=false.")
        try:
            variables[key] = json.loads(text)
        except ValueError:
            raise click.BadParameter(
                f"the value of '{key}' is {text!r}; expected JSON: false, 3, or a text in double quotes "
                f"('{key}=\"text\"')."
            ) from None
    return variables or None


def _parse_openvino(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> OpenVINOOptions | None:
    types = {field.name: str(field.type) for field in fields(OpenVINOOptions)}
    given: dict[str, object] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if key not in types or not equals:
            raise click.BadParameter(f"{value!r}: expected KEY=VALUE with one of the keys {', '.join(types)}.")
        whole = "int" in types[key] and text.isdecimal()
        given[key] = int(text) if whole else Path(text) if "Path" in types[key] else text
    try:
        return OpenVINOOptions(**given) if given else None  # type: ignore[arg-type]  # it checks them
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_DEBUG] = True


def _set_verbose(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.meta.get(_VERBOSE):
        return
    ctx.meta[_VERBOSE] = True
    logger, handler = logging.getLogger("embedllm"), logging.StreamHandler(sys.stderr)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def restore() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    ctx.find_root().call_on_close(restore)
