"""What can be done with a text, and what the worker is asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from embedllm_settings import Settings


@dataclass(frozen=True)
class Action:
    """One entry of the menu."""

    title: str  # as the undo list shows it
    system: str  # what the model is told; empty: the text is continued as it stands
    replaces: bool  # the reply takes the text's place
    separator: str = ""  # between text and reply, where both stay


ACTIONS = {
    "rewrite": Action(
        title="Rewrite",
        system="Rewrite the user's text so that it is clear and correct. Keep its language and its meaning. "
        "Give the new text only.",
        replaces=True,
    ),
    "summarise": Action(
        title="Summarise",
        system="Summarise the user's text in a few sentences, in its own language. Give the summary only.",
        replaces=False,
        separator="\n",
    ),
    "continue": Action(title="Continue", system="", replaces=False),
}


def load_params(settings: Settings) -> dict[str, Any]:
    """The parameters of `load`."""
    return {"model": settings.model, "device": list(settings.devices)}


def request(action: Action, text: str, settings: Settings) -> tuple[str, dict[str, Any]]:
    """The method and its parameters for an action on a text."""
    options: dict[str, Any] = {"max_tokens": settings.max_tokens, "temperature": settings.temperature}
    if not action.system:
        return "generate", {"prompt": text, **options}
    messages = [{"role": "user", "content": text}]
    return "chat", {"messages": messages, "system": action.system, "variables": settings.variables, **options}
