"""What a caller may give as a prompt: text, messages or token ids, and what goes with messages."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from embedllm.text.chat_template import Message, Tool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedllm.text.chat_template import JSON

Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer] | Sequence[Message]"


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """What goes to the chat template beside the messages."""

    tools: Sequence[Tool] | None = None
    variables: Mapping[str, JSON] | None = None
    documents: Sequence[Mapping[str, JSON]] | None = None
    continue_final_message: bool = False


def are_messages(prompt: object) -> bool:
    """Whether a prompt goes through the chat template."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def check_messages(messages: object) -> None:
    """Raises ValueError for what is no list of messages."""
    if isinstance(messages, str):
        raise ValueError("chat takes a list of messages, found a text; give messages, or use generate to continue it.")
    if not are_messages(messages):
        raise ValueError(f"messages must be a list of at least one message, found {messages!r}.")


def token_ids(prompt: object) -> list[int]:
    """Token ids out of anything that holds whole numbers, an array too.

    Raises ValueError for anything else.
    """
    try:
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
            raise TypeError(f"found {type(prompt).__name__}")
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise ValueError(f"the prompt must be a text, a list of messages or a list of token ids: {error}.") from error
