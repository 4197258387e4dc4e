"""Messages and tools -> prompt text, by the model's own chat template, in a sandbox.

What a template sees is what transformers 5.24 would show it; tests/templates holds the prompts that it made.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from embedllm.errors import PackageError, TemplateError
from embedllm.files.json_object import read_json_object
from embedllm.text.content_marks import ContentMarks, RenderedPrompt
from embedllm.text.function_schema import FunctionTool, tool_schema
from embedllm.text.tokenizer_config import read_tokenizer_config
from embedllm.types import JSON

if TYPE_CHECKING:
    from embedllm.text.jinja_sandbox import SandboxedTemplate

Message: TypeAlias = Mapping[str, JSON]
ContentForm: TypeAlias = Literal["text", "parts", "both"]
Tool: TypeAlias = "Mapping[str, JSON] | Callable[..., object] | FunctionTool"

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing under the names that templates read
_TESTS_NONE = re.compile(r"\bcontent['\"]?\]?\s*(?:is|==|!=)\s*(?:not\s+)?none\b", re.IGNORECASE)
_MARK = "<<the message goes on here>> "  # the last space shows whether the template trims
_NO_TEMPLATE = (
    "'{}' has no chat template (chat_template.jinja, or 'chat_template' in tokenizer_config.json), as is usual for "
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
        self._forms: dict[bool, ContentForm] = {}
        sources = "".join(self.templates.values())
        self.takes_documents = "documents" in sources
        self._tests_none = "tool_calls" in sources and _TESTS_NONE.search(sources) is not None
        self._takes_none: dict[bool, bool] = {}

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, clock: Callable[[], datetime] = datetime.now) -> ChatTemplate:
        """The template of a folder: chat_template.jinja and additional_chat_templates/, else tokenizer_config.json.

        Raises TemplateError when there is none, PackageError when a file is damaged.
        """
        path = Path(folder)
        config = read_tokenizer_config(path)
        templates = _template_files(path) or config.chat_template or _legacy_template(path)
        if not templates:
            raise TemplateError(_NO_TEMPLATE.format(path))
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
        return self.render_marked(messages, None, tools=tools, documents=documents, variables=variables,
                                  add_generation_prompt=add_generation_prompt,
                                  continue_final_message=continue_final_message).text  # fmt: skip

    def render_marked(
        self,
        messages: Sequence[Message],
        marks: ContentMarks | None,
        *,
        tools: Sequence[Tool] | None = None,
        documents: Sequence[Mapping[str, JSON]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, JSON] | None = None,
    ) -> RenderedPrompt:
        """As render(), with the places of special tokens' texts that came with messages, tools or documents.

        marks: finds them; None: the template is taken to have written all of the prompt.
        """
        chat = _messages(messages)
        if self._tests_none and self._takes_calls_by_none(with_tools=tools is not None):
            _without_text_as_none(chat)
        final_text = _mark_end(chat[-1]) if continue_final_message else None
        template = self._template(with_tools=tools is not None)
        context: dict[str, JSON] = {
            **self.tokens,
            **_variables(variables or {}),
            "messages": list(chat),
            "tools": None if tools is None else list(tool_schemas(tools)),
            "documents": None if documents is None else _documents(documents),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        prompt = RenderedPrompt(template.render(context)) if marks is None else marks.render(template.render, context)
        if final_text is None:
            return prompt
        text = _up_to_mark(prompt.text, final_text)
        return RenderedPrompt(text, frozenset(place for place in prompt.literal if place < len(text)))

    def content_form(self, *, with_tools: bool) -> ContentForm:
        """Which contents it writes: most templates know only text; those of some models that see, only lists of parts.

        Asked by rendering both, as OpenAI has them.
        """
        if with_tools not in self._forms:
            parts: JSON = [{"type": "text", "text": _MARK}]
            takes_parts, takes_text = (self._writes(content, with_tools) for content in (parts, _MARK))
            self._forms[with_tools] = "both" if takes_parts and takes_text else "parts" if takes_parts else "text"
        return self._forms[with_tools]

    def _writes(self, content: JSON, with_tools: bool) -> bool:
        """Whether it writes the text of a content, rather than nothing or its representation as a list."""
        try:
            shown = self.render([{"role": "user", "content": content}], tools=[] if with_tools else None)
        except TemplateError:
            return False
        return _MARK.rstrip() in shown and not re.search(r"[\"']type[\"']", shown)

    def _takes_calls_by_none(self, *, with_tools: bool) -> bool:
        """Whether it writes calls of a message whose content is none. Asked by rendering some, once.

        Some that test for none (Ministral 3's) then take the length of the content.
        """
        if with_tools not in self._takes_none:
            both: tuple[JSON, JSON] = ({}, "{}")  # arguments as templates want them
            self._takes_none[with_tools] = any(self._writes_call(arguments, with_tools) for arguments in both)
        return self._takes_none[with_tools]

    def _writes_call(self, arguments: JSON, with_tools: bool) -> bool:
        name = "none_or_text"
        call: JSON = {"id": "aaaaaaaaa", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages: list[JSON] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        given: dict[str, JSON] = {**self.tokens, "messages": messages, "tools": [] if with_tools else None,
                                  "documents": None, "add_generation_prompt": False}  # fmt: skip
        try:
            return name in self._template(with_tools=with_tools).render(given)
        except TemplateError:
            return False

    def _template(self, *, with_tools: bool) -> SandboxedTemplate:
        """The template to use, compiled."""
        from embedllm.text.jinja_sandbox import SandboxedTemplate

        name = "tool_use" if with_tools and "tool_use" in self.templates else "default"
        if name not in self.templates:
            names = ", ".join(repr(name) for name in sorted(self.templates))
            raise TemplateError(
                f"there is no chat template named 'default', only {names}. Pass one of them by its text."
            )
        if name not in self._compiled:
            self._compiled[name] = SandboxedTemplate(self.templates[name], clock=self._clock)
        return self._compiled[name]


def _template_files(folder: Path) -> dict[str, str]:
    """The templates that have files of their own; with any of these, transformers does not look elsewhere."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files = {"default": folder / "chat_template.jinja", **files}
    try:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    except UnicodeDecodeError as error:
        raise PackageError(f"a chat template of '{folder}' is not UTF-8 text ({error}). Fetch it again.") from error


def _legacy_template(folder: Path) -> str | None:
    """The template in chat_template.json, where the processors of image models once kept it."""
    template = read_json_object(folder / "chat_template.json").get("chat_template")
    return template if isinstance(template, str) else None


def _messages(messages: Sequence[Message]) -> list[dict[str, JSON]]:
    """A copy in plain JSON types, without entries that are None, and with reasoning under each of its names."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"messages must be a list with at least one message, found {messages!r}.")
    chat: list[dict[str, JSON]] = []
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(f"messages[{place}] is a {type(message).__name__}, expected a mapping with a 'role'.")
        if not isinstance(message.get("role"), str):
            raise ValueError(f"messages[{place}]['role'] is {message.get('role')!r}, expected text such as 'user'.")
        plain = _plain_mapping(
            {name: value for name, value in message.items() if value is not None}, f"messages[{place}]"
        )
        reasoning = next((plain[name] for name in _REASONING if name in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        chat.append(plain)
    return chat


def _without_text_as_none(chat: Sequence[dict[str, JSON]]) -> None:
    """Gives assistants' messages without text the content None, as OpenAI has them.

    Templates that tell calls by it (DeepSeek R1, V3) fail, or leave the calls out, where there is "" or nothing. Others
    would write the word "None", so transformers takes it out for all.
    """
    for message in chat:
        if message["role"] == "assistant" and ("content" not in message or _is_only_calls(message)):
            message["content"] = None


def _is_only_calls(message: Mapping[str, JSON]) -> bool:
    return message["content"] == "" and bool(message.get("tool_calls"))


def _mark_end(message: dict[str, JSON]) -> str:
    """Mark where the text of a message ends; the text without the mark."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _MARK
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            part["text"] = text + _MARK
            return text
    raise ValueError("continue_final_message: the last message has no text under 'content' to go on with.")


def _up_to_mark(prompt: str, final_text: str) -> str:
    """The prompt as far as the last message's own text."""
    end = prompt.rfind(_MARK.rstrip())
    if end < 0 or final_text.strip() not in prompt:
        raise TemplateError(
            "continue_final_message: the chat template does not write the last message as it is, so that there is no "
            f"place to go on from. The message: {final_text!r}"
        )
    head = prompt[:end]
    return head if prompt.startswith(_MARK, end) else head.rstrip()


def tool_schemas(tools: Sequence[Tool]) -> list[dict[str, JSON]]:
    """The JSON schemas of tools, in plain types. Raises ValueError for what is none."""
    _check_listed(tools, "tools")
    return [_tool(tool, place) for place, tool in enumerate(tools)]


def _tool(tool: Tool, place: int) -> dict[str, JSON]:
    if isinstance(tool, FunctionTool):
        tool = tool.schema
    if isinstance(tool, Mapping):
        return _plain_mapping(tool, f"tools[{place}]")
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        return tool_schema(tool)
    raise ValueError(
        f"tools[{place}] is a {type(tool).__name__}, expected a JSON schema, a function or a FunctionTool."
    )


def _check_listed(given: object, what: str) -> None:
    """Raises ValueError for what is no list: a generator would be empty the second time that it is read."""
    if not isinstance(given, Iterable) or isinstance(given, (str, Mapping, Iterator)):
        raise ValueError(f"{what} is a {type(given).__name__}; expected a list of them, if only of one.")


def _documents(documents: Sequence[Mapping[str, JSON]]) -> list[JSON]:
    _check_listed(documents, "documents")
    for place, document in enumerate(documents):
        if not isinstance(document, Mapping):
            raise ValueError(f"documents[{place}] is a {type(document).__name__}, expected a mapping with a 'text'.")
    return [_plain_mapping(document, f"documents[{place}]") for place, document in enumerate(documents)]


def _variables(variables: Mapping[str, JSON]) -> dict[str, JSON]:
    names = [name for name in _RESERVED if name in variables]
    if names:
        raise ValueError(f"variables cannot set {names[0]!r}; pass it as an argument.")
    return _plain_mapping(variables, "variables")


def _plain_mapping(mapping: Mapping[str, JSON], where: str) -> dict[str, JSON]:
    try:
        return {_key(name, where): _plain(value, f"{where}[{name!r}]") for name, value in mapping.items()}
    except RecursionError as error:
        raise ValueError(f"{where} is nested too deeply, or holds itself.") from error


def _plain(value: object, where: str) -> JSON:
    """The value in exact JSON types: a template may call the methods of what it is given, so it gets nothing else."""
    if value is None or type(value) in (str, int, float, bool):
        return value  # pyright: ignore[reportReturnType] # narrowed by its exact type
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_key(name, where): _plain(item, f"{where}[{name!r}]") for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    raise ValueError(f"{where} is a {type(value).__name__}; a chat template takes what JSON can hold, nothing else.")


def _key(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{where} has the key {name!r}, expected text.")
    return str.__str__(name)
