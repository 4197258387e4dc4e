"""What a caller may give as a prompt: text, messages or token ids, and what goes with messages."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from embedllm.text.chat_template import ChatTemplate, Message, Tool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedllm.text.chat_template import JSON

SYSTEM_ROLES = ("system", "developer")
Prompt: TypeAlias = "str | Sequence[int] | NDArray[np.integer] | Sequence[Message]"

_SAID = (*SYSTEM_ROLES, "user", "assistant")  # roles whose contents are texts; some templates take objects of tools
_ROLES = (*_SAID, "tool")  # those of OpenAI, which some templates leave out


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """What goes to the chat template beside the messages."""

    tools: Sequence[Tool] | None = None
    variables: Mapping[str, JSON] | None = None
    documents: Sequence[Mapping[str, JSON]] | None = None
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        if self.variables is not None and not isinstance(self.variables, Mapping):
            raise ValueError(
                f"variables is {self.variables!r}; expected names and values, such as {{'enable_thinking': False}}"
            )


def are_messages(prompt: object) -> bool:
    """Whether a prompt goes through the chat template."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def role_of(message: object) -> object:
    """None where there is none: the chat template's own check says what is wrong with such a message."""
    return message.get("role") if isinstance(message, Mapping) else None


def check_messages(messages: object) -> None:
    """Raises ValueError for what is no list of messages."""
    if isinstance(messages, str):
        raise ValueError("chat takes a list of messages, found a text; give messages, or use generate to continue it.")
    if not isinstance(messages, Sequence) or isinstance(messages, bytes | bytearray) or not messages:
        raise ValueError(f"messages must be a list of at least one message, found {messages!r}.")
    for place, message in enumerate(cast("Sequence[object]", messages)):
        if not isinstance(message, Mapping):
            raise ValueError(
                f"messages[{place}] is {message!r}; expected one like {{'role': 'user', 'content': 'text'}}."
            )


def check_roles(messages: Sequence[Message], prompt: str, template: ChatTemplate) -> None:
    """Raises ValueError for a message whose role the template passes over, so that its text is not in the prompt."""
    for place, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role in _ROLES or not isinstance(role, str):
            continue
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        is_left_out = any(isinstance(text, str) and text.strip() not in prompt for text in texts)
        if is_left_out and not any(role in source for source in template.templates.values()):
            raise ValueError(
                f"messages[{place}]['role'] is {role!r}, a role that the chat template leaves out of the prompt; "
                f"expected one of {', '.join(_ROLES)}."
            )


def plain_content(messages: Sequence[Message], *, joins_parts: bool) -> list[Message]:
    """Messages in OpenAI's other forms as templates take them.

    A content that is None is an empty text, but beside tool calls, where templates look whether there is one.
    joins_parts: lists of text parts become one text. Raises ValueError for a content of another type, which only the
    results of tools may have; for a part that is neither text nor the mark of an image, {"type": "image"}; and for
    images beside the content.
    """
    shown: list[Message] = []
    for place, message in enumerate(messages):
        if message.get("images"):  # Ollama's form of a message: templates leave the key out
            raise ValueError(
                f"messages[{place}] has 'images', which the model would not see; expected parts in 'content', such as "
                "{'type': 'image', 'image': Path('photo.png')}."
            )
        content = message.get("content", "")
        if isinstance(content, list | tuple):
            texts = [_part_text(part, place) for part in content]
            content = "".join(texts) if joins_parts else content
        elif content is None and not message.get("tool_calls"):
            content = ""
        elif not isinstance(content, str | None) and message.get("role") in _SAID:
            raise ValueError(f"messages[{place}]['content'] is {content!r}; expected a text or a list of parts.")
        shown.append(message if content is message.get("content", "") else {**message, "content": content})
    return shown


def texts_as_parts(messages: Sequence[Message]) -> list[Message]:
    """Messages whose texts are lists of one part, for templates that write nothing else."""
    return [
        {**message, "content": [{"type": "text", "text": text}]} if isinstance(text, str) else message
        for message in messages
        for text in [message.get("content")]
    ]


def _part_text(part: object, place: int) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) and kind == "text" else None
    if part == {"type": "image"}:
        return ""
    if not isinstance(text, str):
        type_name = repr(kind) if isinstance(part, Mapping) else f"a {type(part).__name__}"
        raise ValueError(
            f"messages[{place}] has a part of the type {type_name}; expected {{'type': 'text', 'text': ...}}, or "
            "'image_url' for an image; there is no other."
        )
    return text


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
