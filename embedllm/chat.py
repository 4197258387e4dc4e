"""Messages and tools -> prompt text, by the model's own chat template, in a sandbox.

What a template sees is what transformers 5.23 would show it; tests/templates holds the prompts that it made.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from embedllm.errors import TemplateError
from embedllm.tokenizer_config import JSON, read_json_object, read_tokenizer_config
from embedllm.tool_schema import tool_schema

if TYPE_CHECKING:
    from embedllm.sandbox import SandboxedTemplate

Message: TypeAlias = Mapping[str, JSON]
Tool: TypeAlias = "Mapping[str, JSON] | Callable[..., object]"

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing under the names that templates read
_NO_TEMPLATE = (
    "{0} has no chat template (chat_template.jinja, or 'chat_template' in tokenizer_config.json), as is usual for "
    "models that were not trained to chat. Generate from a plain prompt, or pass a template of your own."
)


class ChatTemplate:
    """A model's chat template, compiled at the first use.

    templates: one template, or several by name; "tool_use" is taken when tools are given, else "default".
    tokens: the special tokens by role, as the template writes them: {"bos_token": "<s>", ...}.
    clock: the time that a template may ask for.
    """

    def __init__(
        self,
        templates: str | Mapping[str, str],
        *,
        tokens: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        self.tokens = dict(tokens or {})
        self._clock = clock
        self._compiled: dict[str, SandboxedTemplate] = {}

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, clock: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """The template of a folder: chat_template.jinja and additional_chat_templates/, else tokenizer_config.json.

        Raises TemplateError when there is none, PackageError when a file is damaged.
        """
        path = Path(folder)
        config = read_tokenizer_config(path)
        templates = _template_files(path) or config.chat_template
        if not templates:
            raise TemplateError(_NO_TEMPLATE.format(f"'{path}'"))
        named = {name: token.content for name, token in config.named.items()}
        return cls(templates, tokens=named, clock=clock)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        documents: Sequence[Mapping[str, JSON]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, JSON] | None = None,
    ) -> str:
        """The prompt for a conversation.

        messages: each with a "role", and mostly a "content"; entries that are None count as not there.
        tools: JSON schemas as they are, or functions (see tool_schema).
        add_generation_prompt: end with what makes the model answer.
        continue_final_message: leave the last message open, so that the model goes on with its "content"; no
        generation prompt is added then.
        variables: more names for the template, such as {"enable_thinking": False}; they go before special tokens.
        Raises ValueError for messages that are not in this form, TemplateError when the template refuses or fails.
        """
        chat = _messages(messages)
        mark = _mark_final(chat) if continue_final_message else None
        extra = {name: _plain(value, f"variables[{name!r}]") for name, value in (variables or {}).items()}
        if taken := [name for name in _RESERVED if name in extra]:
            raise ValueError(f"variables cannot set {taken[0]!r}; pass it as an argument.")
        prompt = self._template(with_tools=tools is not None).render(
            {
                **self.tokens,
                **extra,
                "messages": chat,
                "tools": None if tools is None else [_tool(tool, place) for place, tool in enumerate(tools)],
                "documents": None if documents is None else _documents(documents),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        )
        return prompt if mark is None else _cut(prompt, mark, messages)

    def _template(self, *, with_tools: bool) -> SandboxedTemplate:
        """The template to use, compiled."""
        from embedllm.sandbox import SandboxedTemplate

        name = "tool_use" if with_tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            known = ", ".join(repr(known) for known in sorted(self.templates))
            raise TemplateError(f"there is no chat template named 'default', only {known}. Pass one of them by its text.")
        if name not in self._compiled:
            self._compiled[name] = SandboxedTemplate(self.templates[name], clock=self._clock)
        return self._compiled[name]
