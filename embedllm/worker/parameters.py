"""What the methods of `embedllm worker` take: a table of names and kinds, and the values checked against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from embedllm.backends.options import MOST_THREADS
from embedllm.generation.options import PromptOptions, Speculate
from embedllm.loading.options import LoadOptions
from embedllm.sampling.option_table import SAMPLING_OPTIONS
from embedllm.worker.protocol import INVALID_PARAMS, RpcError, kind_of

if TYPE_CHECKING:
    from embedllm.text.chat_template import JSON, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParams:
    """What `load` was given."""

    model: str
    options: LoadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyParams:
    """What `generate` or `chat` was given."""

    prompt: str | Sequence[Message]
    options: PromptOptions
    sampling: Mapping[str, object]  # only what was given; the rest are the model's own defaults


@dataclass(frozen=True, slots=True)
class _Kind:
    words: str  # what was expected
    fits: Callable[[object], bool]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _are_texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))


def _are_devices(value: object) -> bool:
    names = [value] if isinstance(value, str) else value
    return bool(names) and _are_texts(names) and all(name.strip() for name in names)  # type: ignore[union-attr]  # texts


def _are_messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in value)
    )


def _are_listed(value: object) -> bool:
    return isinstance(value, list) and _are_texts(value)


def _one_of(*names: str) -> _Kind:
    return _Kind(f"one of {', '.join(names)}", lambda value: value in names)


_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_TEXTS = _Kind("a text or a list of texts", _are_texts)
_LIST = _Kind("a list of texts", _are_listed)
_DEVICES = _Kind("a device's name, or a list of at least one", _are_devices)
_THREADS = _Kind(
    f"0 (one a physical core) to {MOST_THREADS}",
    lambda value: _is_whole(value) and 0 <= value <= MOST_THREADS,  # type: ignore[operator]  # a whole number
)
_WHOLE = _Kind("a whole number", _is_whole)
_NUMBER = _Kind("a number", _is_number)
_SWITCH = _Kind("true or false", lambda value: isinstance(value, bool))
_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))
_MESSAGES = _Kind("a list of at least one object, each with a 'role' and a 'content'", _are_messages)
_ID = _Kind("a whole number or a text", lambda value: isinstance(value, str) or _is_whole(value))

_KV = _one_of("int8", "int4")
_ADAPTERS = _Kind(
    "an object of texts",
    lambda value: isinstance(value, dict) and all(isinstance(path, str) for path in value.values()),
)
_FORMAT = _Kind(
    "an object with a 'type', or a list of texts", lambda value: isinstance(value, dict) or _are_listed(value)
)
_TOOLS = _Kind(
    "a list of objects",
    lambda value: isinstance(value, list) and all(isinstance(tool, dict) for tool in value),
)
_BY_TYPE = {float: _NUMBER, int: _WHOLE, str: _TEXT}
_SAMPLING = {option.name: _LIST if option.is_list else _BY_TYPE[option.kind] for option in SAMPLING_OPTIONS}
_LIMITS = {
    "max_tokens": _WHOLE,
    "min_tokens": _WHOLE,
    "stop": _TEXTS,
    "response_format": _FORMAT,
    "speculate": _one_of(*get_args(Speculate)),
    "adapter": _TEXT,
}
_OF_TEMPLATE = {"tools": _TOOLS, "tool_choice": _TEXT, "variables": _OBJECT}

PARAMETERS: dict[str, dict[str, _Kind]] = {
    "initialize": {"protocol": _WHOLE},
    "devices": {},
    "load": {
        "model": _TEXT,
        "device": _DEVICES,
        "threads": _THREADS,
        "exact": _SWITCH,
        "parse_special": _SWITCH,
        "kv": _KV,
        "draft": _TEXT,
        "adapters": _ADAPTERS,
        "cache_dir": _TEXT,
    },
    "generate": {"prompt": _TEXT, **_LIMITS, **_SAMPLING},
    "chat": {"messages": _MESSAGES, "system": _TEXT, **_OF_TEMPLATE, **_LIMITS, **_SAMPLING},
    "cancel": {"id": _ID},
    "unload": {},
    "shutdown": {},
}
_REQUIRED = {"generate": "prompt", "chat": "messages", "cancel": "id"}


def checked(method: str, params: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """The values that were given; null counts as not given. Raises RpcError for a wrong or a missing one."""
    kinds = PARAMETERS[method]
    given = {name: value for name, value in params.items() if value is not None}
    for name, value in given.items():
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            raise RpcError(INVALID_PARAMS, f"'{method}' has no parameter '{name}'; expected: {known}.")
        if not kinds[name].fits(value):
            raise RpcError(INVALID_PARAMS, f"'{name}' of '{method}' is {value!r:.80}; expected {kinds[name].words}.")
    if method == "chat" and isinstance(messages := given.get("messages"), list):
        _check_contents(messages)
    required = _REQUIRED.get(method)
    if required is not None and required not in given:
        raise RpcError(INVALID_PARAMS, f"'{method}' lacks '{required}'; expected {kinds[required].words}.")
    return given


def _check_contents(messages: Sequence[JSON]) -> None:
    """Raises RpcError for a content that templates would stumble over. Which roles there are is a template's own."""
    for place, message in enumerate(messages):
        assert isinstance(message, dict), "the table of parameters says so"
        content = message.get("content")
        is_call = message["role"] == "assistant" and bool(message.get("tool_calls"))
        if not isinstance(content, str) and not (content is None and is_call):
            found = f"'content' of messages[{place}] is {kind_of(content)}"
            only = "Only an assistant's message with 'tool_calls' may lack it."
            raise RpcError(INVALID_PARAMS, f"{found}; expected a text. {only}")


def load_params(params: Mapping[str, JSON]) -> LoadParams:
    """As checked() for `load`."""
    given = dict(checked("load", params))
    if (kv := given.get("kv")) is not None and given.get("exact"):
        raise RpcError(INVALID_PARAMS, f"'kv' is '{kv}' and 'exact' is true; leave out one of them.")
    model = given.pop("model", "demo")
    return LoadParams(model=str(model), options=LoadOptions(**given))  # type: ignore[arg-type]  # the table's types


def reply_params(method: str, params: Mapping[str, JSON]) -> ReplyParams:
    """As checked() for `generate` and `chat`, with the system text put before the messages."""
    given: dict[str, object] = dict(checked(method, params))
    sampling = {name: given.pop(name) for name in _SAMPLING if name in given}
    if method == "chat":
        system = given.pop("system", None)
        before = [] if system is None else [{"role": "system", "content": system}]
        given["prompt"] = before + given.pop("messages")  # type: ignore[operator]  # the table says: a list
    prompt = given.pop("prompt")
    return ReplyParams(prompt=prompt, sampling=sampling, options=given)  # type: ignore[arg-type]  # as above
