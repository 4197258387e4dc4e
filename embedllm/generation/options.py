"""The options of a reply, by name, as every call that generates takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from embedllm.text.chat_template import Tool

if TYPE_CHECKING:
    from embedllm.sampling.structured.response_format import ResponseFormat
    from embedllm.text.chat_template import JSON


Speculate: TypeAlias = Literal["auto", "lookup", "draft", "off"]
WhenFull: TypeAlias = Literal["error", "drop-oldest", "shift"]


class ReplyOptions(TypedDict, total=False):
    """Options of a reply; documented at Model.generate()."""

    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_tokens: Sequence[int] | None
    logprobs: int
    response_format: ResponseFormat | None
    speculate: Speculate | None
    tool_choice: str
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
