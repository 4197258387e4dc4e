"""Options that several commands share, gathered into one value; no command acts in here."""

from __future__ import annotations

import functools
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import click
from click.core import ParameterSource

import embedllm
from embedllm.backends.options import OpenVINOOptions
from embedllm.cli.progress import fetching, waiting
from embedllm.cli.structured_options import format_options, response_format
from embedllm.cli.text_writer import can_style, has_colours
from embedllm.files.switches import switch
from embedllm.generation.options import ReplyOptions, Speculate
from embedllm.loading.load import open_model
from embedllm.loading.options import LoadOptions
from embedllm.sampling.option_table import SAMPLING_OPTIONS, Option
from embedllm.sampling.options import Sampling
from embedllm.sampling.structured.response_format import grammar_source

if TYPE_CHECKING:
    from embedllm.sampling.structured.response_format import ResponseFormat
    from embedllm.text.chat_template import JSON

C = TypeVar("C", bound=Callable[..., object])
_SLOW_S = 5.0
# of LoadOptions
_OF_LOADING = (
    "revision",
    "device",
    "threads",
    "exact",
    "kv",
    "context",
    "openvino",
    "draft",
    "cache_dir",
    "parse_special",
)
_DEBUG = "embedllm.debug"  # keys of the click context
_VERBOSE = "embedllm.verbose"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the model and its replies."""

    model: str
    load: LoadOptions
    system: str | None
    sampling: Mapping[str, object]  # only the given options; the rest are the model's defaults
    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    response_format: ResponseFormat | None
    speculate: Speculate
    variables: dict[str, JSON] | None  # of the chat template
    reasoning: str  # "show" or "hide"
    plain: bool  # a terminal gets replies as they are
    stats: bool

    @property
    def reply(self) -> ReplyOptions:
        """What calls that make a reply take by name."""
        adapter: ReplyOptions = {}
        for name in self.load.adapters or ():
            adapter = {"adapter": name}
        return {
            **adapter,
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "stop": self.stop,
            "response_format": self.response_format,
            "speculate": self.speculate,
        }

    @property
    def is_markdown(self) -> bool:
        """Whether a terminal renders the replies; not those that follow a grammar."""
        return not self.plain and self.response_format is None

    def open_model(self) -> embedllm.Model:
        """Loads the model, after the other options were checked."""
        Sampling(**self.sampling)  # type: ignore[arg-type]  # the options have the fields' own types
        grammar_source(self.response_format)
        slow = f"loading '{self.model}'; the first load on a GPU or NPU takes minutes (-v logs more)"
        with ExitStack() as shown:
            shown.enter_context(_note_after(_SLOW_S, slow))
            on_progress = shown.enter_context(fetching(self.model))
            if on_progress is None:  # else it has bars
                shown.enter_context(waiting(f"loading '{self.model}'"))
            return open_model(self.model, replace(self.load, on_progress=on_progress))

    @property
    def is_model_named(self) -> bool:
        """Whether --model was given."""
        return click.get_current_context().get_parameter_source("model") is not ParameterSource.DEFAULT

    def of_model(self, model: str | None) -> Settings:
        """These with the model that was named by its place; None: it was not. Not with --model beside it."""
        if model is None:
            return self
        if self.is_model_named:
            raise click.UsageError(f"found two models, '{model}' and --model '{self.model}'; give one.")
        return replace(self, model=model)

    def merge_sampling(self, defaults: Sampling) -> Sampling:
        """The model's default sampling with the given options; notes options that have no effect."""
        sampling = replace(defaults, **self.sampling)  # type: ignore[arg-type]  # as above
        idle = [_flag(option) for option in SAMPLING_OPTIONS if option.needs_chance and option.name in self.sampling]
        if sampling.temperature == 0 and idle:
            note(f"{', '.join(idle)}: no effect at temperature 0; add for example --temperature 0.7.")
        return sampling


def _load_options(values: dict[str, object]) -> LoadOptions:
    """Takes the options of loading out of what click hands over."""
    options = {name: values.pop(name) for name in _OF_LOADING}
    adapter = values.pop("adapter")
    if isinstance(adapter, Path):
        options["adapters"] = {adapter.resolve().name: adapter}  # where the path is "." or "..", too
    return LoadOptions(**options)  # type: ignore[arg-type]  # the options have the fields' own types


@contextmanager
def _note_after(seconds: float, text: str) -> Iterator[None]:
    """Prints a note when the block takes longer."""
    timer = threading.Timer(seconds, note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def note(text: str) -> None:
    """Prints a line to stderr; stdout may be redirected."""
    click.echo(text, err=True)


def say_error(message: str) -> None:
    """Prints an error as one line to stderr."""
    style = "1;31" if has_colours() else "1"
    label = f"\x1b[{style}merror:\x1b[0m" if can_style(sys.stderr) else "error:"
    note(f"{label} {' '.join(message.split())}")


def common_options(command: C) -> C:
    """-v and --debug; before the command's name they mean the same."""
    debug = click.option("--debug", is_flag=True, expose_value=False, callback=_set_debug,
                         help="Show the traceback of an error (also: EMBEDLLM_DEBUG=1).")  # fmt: skip
    verbose = click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=_set_verbose,
                           help="Verbose logging to stderr.")  # fmt: skip
    return verbose(debug(command))


def wants_traceback(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_DEBUG)) or switch("EMBEDLLM_DEBUG") == "on"


def reply_options(command: Callable[..., object]) -> Callable[..., object]:
    """The options of `run` and `chat`, which the command gets as `settings`."""

    @functools.wraps(command)
    def gathered(**values: object) -> object:  # click passes every declared option
        sampling_values = {option.name: values.pop(option.name) for option in SAMPLING_OPTIONS}
        values["sampling"] = {name: value for name, value in sampling_values.items() if value not in (None, ())}
        values["response_format"] = response_format(values)
        values["load"] = _load_options(values)
        own = {field.name: values.pop(field.name) for field in fields(Settings)}
        return command(settings=Settings(**own), **values)  # type: ignore[arg-type]  # by click

    options = [
        click.option("--model", "-m", default="demo", show_default=True, metavar="MODEL",
                     help="Package directory from 'embedllm export', 'demo', a GGUF file, or a Hugging Face "
                     "repository (org/name)."),
        click.option("--revision", metavar="NAME", help="Branch, tag or commit of a Hugging Face repository."),
        click.option("--device", metavar="NAME", help="A device of 'embedllm devices', or a comma-separated list to "
                     "try in order. Default: EMBEDLLM_DEVICE, or the best device."),
        click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N",
                     help="CPU threads. Default: number of physical cores."),
        click.option("--exact", is_flag=True, help="Float activations in every matmul: slower, more accurate."),
        click.option("--kv", type=click.Choice(["int8", "int4"]),
                     help="Quantize the KV cache to int8 or int4 (1/4 or 1/8 of float32); on the CPU this needs a "
                     "graph variant that 'embedllm graph' adds."),
        click.option("--context", type=click.IntRange(min=2), metavar="N",
                     help="Maximum number of tokens of prompt and reply. Default: all that the export holds."),
        click.option("--openvino", multiple=True, metavar="KEY=VALUE", callback=_parse_openvino,
                     help="OpenVINO options: precision, rounding_group, kv, cache, latents, prompt, reply; "
                     "see OpenVINOOptions. Repeatable."),
        click.option("--draft", type=click.Path(path_type=Path), metavar="FOLDER",
                     help="Draft model for speculative decoding (same tokenizer), or FOLDER/mtp, FOLDER/eagle."),
        click.option("--adapter", type=click.Path(path_type=Path), metavar="PATH",
                     help="LoRA adapter (PEFT format) to apply."),
        click.option("--cache-dir", type=click.Path(path_type=Path), metavar="FOLDER",
                     help="Store the KV cache of prompts here for later runs. Cached prompts are stored unencrypted."),
        click.option("--parse-special", is_flag=True,
                     help="Read the texts of special tokens in messages as these tokens, not as text."),
        click.option("--system", metavar="TEXT", help="System prompt."),
        *(_sampling_option(option) for option in SAMPLING_OPTIONS),
        click.option("--max-tokens", type=click.IntRange(min=1), metavar="N",
                     help="Maximum number of tokens to generate. Default: the model's, or the rest of the context."),
        click.option("--min-tokens", type=click.IntRange(min=0), default=0, metavar="N",
                     help="Minimum number of tokens to generate."),
        click.option("--stop", multiple=True, metavar="TEXT", help="Stop string; not part of the reply. Repeatable."),
        *format_options(),
        click.option("--speculate", type=click.Choice(get_args(Speculate)), default="auto", show_default=True,
                     help="Speculative decoding: prompt lookup, draft model, auto, off."),
        click.option("--var", "variables", multiple=True, metavar="KEY=JSON", callback=_parse_variables,
                     help="Chat template variable, such as enable_thinking=false. Repeatable."),
        click.option("--reasoning", type=click.Choice(["show", "hide"]), default="show", show_default=True,
                     help="Show the reasoning on stderr, or hide it."),
        click.option("--plain", is_flag=True, help="Show replies as they are: no Markdown, no word wrap."),
        click.option("--stats", is_flag=True, help="Print token counts and timings to stderr."),
    ]  # fmt: skip
    gathered = common_options(gathered)  # first, so that they are listed last
    for option in reversed(options):
        gathered = option(gathered)
    return gathered


def _flag(option: Option) -> str:
    return f"--{option.name.replace('_', '-')}"


def _sampling_option(option: Option) -> Callable[[Callable[..., object]], Callable[..., object]]:
    shown = {float: "FLOAT", int: "INT", str: "TEXT"}[option.kind]
    text = f"{option.text} Repeatable." if option.is_list else option.text
    return click.option(_flag(option), type=option.kind, multiple=option.is_list, metavar=shown, help=text)


def _parse_variables(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, JSON] | None:
    variables: dict[str, JSON] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=JSON, such as enable_thinking=false.")
        try:
            variables[key] = json.loads(text)
        except (ValueError, RecursionError):
            raise click.BadParameter(
                f"the value of '{key}' is {text!r}; expected JSON: false, 3, or a text in double quotes "
                f"('{key}=\"text\"')."
            ) from None
    return variables or None


def _parse_openvino(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> OpenVINOOptions | None:
    types = {field.name: str(field.type) for field in fields(OpenVINOOptions)}
    options: dict[str, object] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if key not in types or not equals:
            raise click.BadParameter(f"{value!r}: expected KEY=VALUE with one of the keys {', '.join(types)}.")
        options[key] = _parsed(types[key], text)
    try:
        return OpenVINOOptions(**options) if options else None  # type: ignore[arg-type]  # it checks them
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _parsed(type_: str, text: str) -> object:
    """A text as the type of a field of OpenVINOOptions; the text itself where it is no such value."""
    if "bool" in type_:
        return {"true": True, "false": False}.get(text, text)
    if "int" in type_ and text.isdecimal():
        return int(text)
    return Path(text) if "Path" in type_ else text


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
