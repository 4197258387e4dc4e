"""A request of OpenAI's chat completions -> messages and options of this library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from embedllm.files.nearest import nearest
from embedllm.generation.options import PromptOptions
from embedllm.openai.reasoning_effort import effort_variables
from embedllm.openai.schema import InvalidRequest
from embedllm.openai.types import as_message
from embedllm.text.chat_template import tool_schemas
from embedllm.tools.calls import tool_parameters
from embedllm.tools.tool_choice import choice_name

if TYPE_CHECKING:
    from embedllm.sampling.structured.response_format import ResponseFormat
    from embedllm.text.chat_template import Message, Tool
    from embedllm.types import JSON


class CreateOptions(TypedDict, total=False):
    """Parameters of create(), beside messages, model and stream. None counts as not given."""

    max_completion_tokens: int | None
    max_tokens: int | None
    n: int | None
    temperature: float | None
    top_p: float | None
    stop: str | Sequence[str] | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[str, float] | Mapping[int, float] | None
    logprobs: bool | None
    top_logprobs: int | None
    tools: Sequence[Tool] | None
    tool_choice: str | Mapping[str, JSON] | None
    parallel_tool_calls: bool | None
    response_format: ResponseFormat | None
    reasoning_effort: str | None
    stream_options: Mapping[str, bool] | None
    timeout: float | None
    extra_body: Mapping[str, Any] | None  # Any: options by name, each of its own type
    # accepted without an effect: for the books of a service
    user: str | None
    metadata: Mapping[str, str] | None
    store: bool | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    service_tier: str | None


_SAME = ("temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "tools", "tool_choice",
         "response_format", "timeout")  # fmt: skip
_INSTEAD = {
    "functions": "tools",
    "function_call": "tool_choice",
    "stream": "create(stream=...)",
    "model": "create(model=...)",
    "messages": "create(messages=...)",
}
_OWN = PromptOptions.__optional_keys__ - {"logprobs", "continue_final_message"}  # further ones, by extra_body too
_MOST_TOP = 20  # OpenAI's


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a request stands for here."""

    messages: list[Message]
    options: PromptOptions
    n: int
    has_logprobs: bool
    counts_tokens: bool  # a stream ends with the usage


def chat_request(messages: object, values: Mapping[str, object], *, is_stream: bool) -> ChatRequest:
    """Raises ValueError for values that cannot be followed, TypeError for parameters that there are not."""
    options = _present_options(values)
    if unknown := [name for name in options if name not in CreateOptions.__optional_keys__ | _OWN]:
        name = unknown[0]
        hint = f" Use {_INSTEAD[name]}." if name in _INSTEAD else nearest(name, CreateOptions.__optional_keys__ | _OWN)
        raise TypeError(f"there is no parameter '{name}'.{hint}")
    n = options.get("n", 1)
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n is {n!r}; expected a whole number of 1 or more.")
    if options.get("parallel_tool_calls") is False:
        raise ValueError("parallel_tool_calls is False, which is not done here; with tool_choice='required' it is one.")
    return ChatRequest(
        messages=_messages(messages),
        options=own_options(options),
        n=n,
        has_logprobs=_flag("logprobs", options.get("logprobs", False)),
        counts_tokens=_counts_tokens(options.get("stream_options", {}), is_stream=is_stream),
    )


def read_chat_body(body: Mapping[str, Any]) -> ChatRequest:
    """As chat_request(), of a JSON body that CHAT_PARAMETERS has checked; of stream_options it takes what it knows."""
    values = {name: value for name, value in body.items() if name not in _APART}
    if options := body.get("stream_options"):
        values["stream_options"] = {name: options[name] for name in ("include_usage",) if name in options}
    if not values.get("tools", True):  # some clients send an empty list
        del values["tools"]
    if replaced := [name for name in ("functions", "function_call") if name in values]:
        raise InvalidRequest(f"there is no parameter '{replaced[0]}'. Use {_INSTEAD[replaced[0]]}.", param=replaced[0])
    return chat_request(body["messages"], values, is_stream=body.get("stream", False))


_APART = ("model", "messages", "stream", "stream_options", "parallel_tool_calls", "modalities")


def _present_options(values: Mapping[str, object]) -> dict[str, object]:
    """What is there, extra_body among it; None, and what the package openai has for it, is not."""
    options = {name: value for name, value in values.items() if not _is_missing(value)}
    extra = options.pop("extra_body", {})
    if not isinstance(extra, Mapping):
        raise ValueError(f"extra_body is {extra!r}; expected a mapping of options.")
    if twice := [name for name in extra if name in options]:
        raise ValueError(f"'{twice[0]}' is given twice: as a parameter and in extra_body.")
    options |= {name: value for name, value in extra.items() if not _is_missing(value)}
    if "chat_template_kwargs" in options:  # vLLM's name
        options["variables"] = options.pop("chat_template_kwargs")
    return options


def _is_missing(value: object) -> bool:
    return value is None or type(value).__name__ in ("NotGiven", "Omit")


def own_options(options: Mapping[str, object]) -> PromptOptions:
    """The options of this library that some of OpenAI's stand for. Raises ValueError for values of another form."""
    prompt_options: dict[str, object] = {
        name: options[name] for name in options if name in _OWN and name not in ("max_tokens", "logit_bias")
    }
    for name in ("max_tokens", "max_completion_tokens"):
        if name in options:
            prompt_options["max_tokens"] = options[name]
    if "logit_bias" in options:
        prompt_options["logit_bias"] = token_biases(options["logit_bias"])
    if "top_logprobs" in options:
        prompt_options["logprobs"] = _top_logprobs(options)
    choice = options.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        prompt_options |= _allowed_tools(choice, cast("Sequence[Tool]", options.get("tools", ())))
    if "reasoning_effort" in options:
        variables = prompt_options.get("variables", {})
        if not isinstance(variables, Mapping):
            raise ValueError(f"variables is {variables!r}; expected a mapping.")
        prompt_options["variables"] = {**effort_variables(options["reasoning_effort"]), **variables}
    return cast("PromptOptions", prompt_options)


def _allowed_tools(choice: Mapping[str, object], tools: Sequence[Tool]) -> dict[str, object]:
    """The tools that a choice leaves, and whether one of them must be called. Raises ValueError."""
    allowed = choice.get("allowed_tools", choice)
    entries = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(allowed, Mapping) or not isinstance(entries, list):
        raise ValueError(f"tool_choice is {choice!r:.160}; expected a list of tools in 'allowed_tools'.")
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise ValueError(f"tool_choice has the mode {mode!r:.80}; expected 'auto' or 'required'.")
    by_name = dict(zip(tool_parameters(tool_schemas(tools)), tools, strict=True))
    names = [choice_name(entry) for entry in entries]
    if unknown := [name for name in names if name not in by_name]:
        listed = ", ".join(map(repr, by_name)) or "none"
        raise ValueError(f"tool_choice allows '{unknown[0]:.80}', which is none of the tools: {listed}.")
    return {"tools": [tool for name, tool in by_name.items() if name in names], "tool_choice": mode}


def _top_logprobs(options: Mapping[str, object]) -> int:
    count = options["top_logprobs"]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_TOP:
        raise ValueError(f"top_logprobs is {count!r}; expected 0 to {_MOST_TOP}.")
    if count and options.get("logprobs") is not True:
        raise ValueError("top_logprobs goes with logprobs=True.")
    return count


def token_biases(biases: object) -> dict[int, float]:
    """OpenAI's keys are token ids as text."""
    try:
        return {int(token): value for token, value in cast("Mapping[str, float]", biases).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"logit_bias is {biases!r:.80}; expected token ids with what is added: {error}.") from error


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; expected True or False.")
    return value


def _counts_tokens(options: object, *, is_stream: bool) -> bool:
    if not isinstance(options, Mapping) or (odd := [name for name in options if name != "include_usage"]):
        actual = repr(options) if not isinstance(options, Mapping) else f"a mapping with {odd[0]!r}"  # pyright: ignore[reportPossiblyUnboundVariable] # of a mapping
        raise ValueError(f"stream_options is {actual}; expected {{'include_usage': True}}.")
    if options and not is_stream:
        raise ValueError("stream_options goes with stream=True.")
    return _flag("include_usage", options.get("include_usage", False))


def _messages(messages: object) -> list[Message]:
    """A developer's message is a system message, whose place it has taken with OpenAI's newer models."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"messages is {messages!r:.80}; expected a list of at least one message.")
    plain = [_with_readable_refusal(as_message(message)) for message in messages]
    for place, message in enumerate(plain):
        if "content" not in message and not message.get("tool_calls"):
            raise ValueError(f"messages[{place}] has no 'content'; only a message with 'tool_calls' may lack it.")
    return [{**message, "role": "system"} if message.get("role") == "developer" else message for message in plain]


def _with_readable_refusal(message: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """A refusal of an earlier reply, which another model wrote, is text to this one."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    parts: list[JSON] = [
        {"type": "text", "text": part.get("refusal")}
        if isinstance(part, Mapping) and part.get("type") == "refusal"
        else part
        for part in content
    ]
    return {**message, "content": parts}
