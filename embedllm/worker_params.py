"""What the methods of `embedllm worker` take: a table of names and kinds, and the values checked against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.worker_messages import INVALID_PARAMS, RpcError, kind_of

if TYPE_CHECKING:
    from embedllm.chat import JSON, Message

_MOST_THREADS = 1024  # as opening.load() has it, which a test holds; here, as `load` frees the held model before it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParams:
    """What `load` was given."""

    model: str = "demo"
    device: str | Sequence[str] | None = None  # None: EMBEDLLM_DEVICE, or "auto"
    threads: int = 0
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyParams:
    """What `generate` or `chat` was given."""

    prompt: str | Sequence[Message]
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    variables: Mapping[str, JSON] | None = None  # of the chat template
    sampling: Mapping[str, float | int]  # only what was given; the rest are the model's own defaults


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


_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_TEXTS = _Kind("a text or a list of texts", _are_texts)
_DEVICES = _Kind("a device's name, or a list of at least one", _are_devices)
_THREADS = _Kind(
    f"0 (one a physical core) to {_MOST_THREADS}",
    lambda value: _is_whole(value) and 0 <= value <= _MOST_THREADS,  # type: ignore[operator]  # a whole number
)
_WHOLE = _Kind("a whole number", _is_whole)
_NUMBER = _Kind("a number", _is_number)
_SWITCH = _Kind("true or false", lambda value: isinstance(value, bool))
_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))
_MESSAGES = _Kind("a list of at least one object, each with a 'role' and a 'content'", _are_messages)
_ID = _Kind("a whole number or a text", lambda value: isinstance(value, str) or _is_whole(value))

_SAMPLING = {
    "temperature": _NUMBER,
    "top_k": _WHOLE,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "typical_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "seed": _WHOLE,
}
_LIMITS = {"max_tokens": _WHOLE, "stop": _TEXTS}

PARAMETERS: dict[str, dict[str, _Kind]] = {
    "initialize": {"protocol": _WHOLE},
    "devices": {},
    "load": {"model": _TEXT, "device": _DEVICES, "threads": _THREADS, "exact": _SWITCH},
    "generate": {"prompt": _TEXT, **_LIMITS, **_SAMPLING},
    "chat": {"messages": _MESSAGES, "system": _TEXT, "variables": _OBJECT, **_LIMITS, **_SAMPLING},
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
    return LoadParams(**checked("load", params))  # type: ignore[arg-type]  # the table has the fields' own types


def reply_params(method: str, params: Mapping[str, JSON]) -> ReplyParams:
    """As checked() for `generate` and `chat`, with the system text put before the messages."""
    given: dict[str, object] = dict(checked(method, params))
    sampling = {name: given.pop(name) for name in _SAMPLING if name in given}
    if method == "chat":
        system = given.pop("system", None)
        before = [] if system is None else [{"role": "system", "content": system}]
        given["prompt"] = before + given.pop("messages")  # type: ignore[operator]  # the table says: a list
    return ReplyParams(sampling=sampling, **given)  # type: ignore[arg-type]  # as above
