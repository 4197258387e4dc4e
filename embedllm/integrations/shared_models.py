"""Loaded models by path and device: objects of an integration that name the same model share its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from embedllm.generation.chunk import Statistics
    from embedllm.model.model import Model
    from embedllm.tools.calls import ToolCall

_lock = Lock()
_loaded: WeakValueDictionary[tuple[str, str | None], Model] = WeakValueDictionary()


def shared_model(path: str, device: str | None = None) -> Model:
    """A model that is loaded with the first call and freed when no object holds it any more.

    path, device: as load() takes them, and it raises the same errors.
    """
    from embedllm.loading.load import load

    with _lock:
        model = _loaded.get((path, device))
        if model is None or model.runner.sequences.is_closed:
            model = _loaded[path, device] = load(path, device=device)
        return model


async def in_thread(load: Callable[[], Model]) -> Model:
    """What a first load gives, without blocking the event loop."""
    from embedllm.generation.run_in_thread import run_in_thread

    return await run_in_thread(lambda _: load())


def drop_none(**options: object) -> dict[str, Any]:
    """The options that are not None: those of the others stay the model's own."""
    return {name: value for name, value in options.items() if value is not None}


def json_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The response_format of a reply that follows a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chat templates take it, in OpenAI's form."""
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": dict(parameters)},
    }


def function_call(identifier: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call of a message, in OpenAI's form but that its arguments are an object."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def usage(statistics: Statistics) -> dict[str, int]:
    """The numbers of tokens of a reply, by OpenAI's names."""
    prompt, reply = statistics.prompt_tokens, statistics.tokens
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


def check_calls(calls: Sequence[ToolCall]) -> None:
    """For libraries without a place for calls that cannot be run. Raises ValueError for the first such call."""
    for call in calls:
        if call.problem:
            raise ValueError(
                f"the model wrote a tool call that cannot be run: {call.problem}. It wrote: {call.text!r}. Ask again, "
                "or pass tool_choice='required', with which every call is valid."
            )
