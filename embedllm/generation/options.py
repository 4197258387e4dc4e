"""The options of a reply, by name, as every call that generates takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

from embedllm.sampling.options import Sampling
from embedllm.text.chat_template import Tool

if TYPE_CHECKING:
    from embedllm.sampling.custom_processors import Processor
    from embedllm.sampling.structured.response_format import ResponseFormat
    from embedllm.text.chat_template import JSON


F = TypeVar("F", bound=Callable[..., object])
Speculate: TypeAlias = Literal["auto", "lookup", "draft", "off"]
WhenFull: TypeAlias = Literal["error", "drop-oldest", "shift"]


class SamplingOptions(TypedDict, total=False):
    """The fields of Sampling, each by itself; documented there."""

    temperature: float
    dynamic_temperature: float
    dynamic_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...]
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_breakers: Sequence[str]
    no_repeat_ngram: int
    bad_words: Sequence[str | Sequence[int]]
    processors: Sequence[Processor]
    order: Sequence[str]
    seed: int | None


class ReplyOptions(SamplingOptions, total=False):
    """Options of a reply; documented at Model.generate()."""

    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_tokens: Sequence[int] | None
    logprobs: int
    response_format: ResponseFormat | None
    speculate: Speculate | None
    tool_choice: str | Mapping[str, JSON]
    priority: int
    timeout: float | None
    adapter: str | None


class PromptOptions(ReplyOptions, total=False):
    """And what goes with a prompt."""

    tools: Sequence[Tool] | None
    variables: Mapping[str, JSON] | None
    documents: Sequence[Mapping[str, JSON]] | None
    continue_final_message: bool
    special: bool


def lists_options(kind: type[SamplingOptions], *, without: Collection[str] = ()) -> Callable[[F], F]:
    """Ends the docstring of a function with the names of the options that it takes, for help().

    kind: the TypedDict of its `options`. without: those that it refuses.
    """
    names = [name for name in kind.__annotations__ if name not in without]
    replies = ", ".join(name for name in names if name not in SAMPLING)
    draws = ", ".join(name for name in names if name in SAMPLING)
    text = f"Options, which help(embedllm.Model.generate) explains: {replies}."
    if draws:
        text += f" Fields of Sampling, which help(embedllm.Sampling) lists: {draws}."

    def add(function: F) -> F:
        if function.__doc__:  # python -OO leaves it out
            function.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n\n{fill(text, 116)}"
        return function

    return add


SAMPLING = frozenset(SamplingOptions.__annotations__)
_KNOWN = PromptOptions.__optional_keys__
_ELSEWHERE = {  # of other libraries, and what stands for it here: docs/coming-from.md
    "chat_template_kwargs": "variables={...}",
    "do_sample": "temperature=0, for greedy decoding",
    "format": "response_format=...",
    "grammar": 'response_format={"type": "lark", "lark": ...}',
    "images": "a part of a message's content (docs/guide-images.md)",
    "json_schema": "response_format=schema",
    "max_completion_tokens": "max_tokens=...",
    "n": "generate_n(prompt, n)",
    "num_beams": "beam_search(prompt, beams)",
    "num_predict": "max_tokens=...",
    "num_return_sequences": "generate_n(prompt, n)",
    "stop_strings": "stop=[...]",
    "stream": "stream(...)",
    "system": 'a message, {"role": "system", "content": ...}',
}


def take_sampling(sampling: Sampling | None, default: Sampling, options: Mapping[str, Any]) -> tuple[Sampling, Any]:
    """What tokens are drawn by, and the options that are not of it.

    sampling: None: `default`; each option of Sampling that is among the options takes the place of its field.
    Raises TypeError for an option that there is not, and for a `sampling` of another type.
    """
    if unknown := next((name for name in options if name not in _KNOWN), ""):
        from embedllm.files.nearest import nearest

        hint = f" Here it is {_ELSEWHERE[unknown]}." if unknown in _ELSEWHERE else nearest(unknown, _KNOWN)
        raise TypeError(f"there is no option '{unknown}'.{hint}")
    if not isinstance(sampling, Sampling | None):
        raise TypeError(
            f"sampling is {sampling!r}; expected an embedllm.Sampling, or give its options by name, as in "
            "temperature=0.2, top_p=0.9."
        )
    changed = {name: value for name, value in options.items() if name in SAMPLING}
    used = default if sampling is None else sampling
    rest = {name: value for name, value in options.items() if name not in SAMPLING}
    return replace(used, **changed) if changed else used, rest
