"""A Messages request -> messages and options of this library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedllm.openai.reasoning_effort import LEVELS
from embedllm.server.anthropic.tools import read_choice, read_tools
from embedllm.server.image_parts import Piece, content_of, image_part

if TYPE_CHECKING:
    from embedllm.generation.options import PromptOptions
    from embedllm.text.chat_template import Message

_BILLING = "x-anthropic-billing-header:"  # Claude Code's first block, which changes with every request
_NO_IMAGE = "[an image, which this model cannot see]"
_NO_DOCUMENT = "[a document, which this model cannot read]"
_ERROR = "Error: "


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    """What a request stands for here."""

    messages: list[Message]
    options: PromptOptions
    one_call: bool
    stop_sequences: tuple[str, ...]
    warnings: list[str] = field(default_factory=list)
    """What has no effect here, for the reply to say."""


def messages_request(body: Mapping[str, Any]) -> MessagesRequest:
    """body: its types on the first level are checked. Raises ValueError for what cannot be followed."""
    tools, warnings = read_tools(_objects(body.get("tools", []), "tools"), [*_referenced_tools(body["messages"])])
    messages = [*_system(body.get("system")), *_messages(body["messages"], warnings)]
    if not messages:
        raise ValueError("messages is empty; expected at least one message.")
    choice = body.get("tool_choice")
    options: PromptOptions = {}
    for name in ("temperature", "top_p", "top_k", "max_tokens"):
        if name in body:
            options[name] = body[name]
    stop = tuple(text for text in body.get("stop_sequences", ()) if text)
    if stop:
        options["stop"] = stop
    if tools:
        options["tools"] = tools
        options["tool_choice"] = read_choice(choice, has_tools=True)
    if variables := _variables(body):
        options["variables"] = variables
    if (schema := _schema(body.get("output_config"))) is not None:
        options["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    last = messages[-1]
    if last["role"] == "assistant" and last.get("content") and not last.get("tool_calls"):
        options["continue_final_message"] = True  # Anthropic's prefill
    one_call = isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is True
    return MessagesRequest(
        messages=messages, options=options, one_call=one_call, stop_sequences=stop, warnings=warnings
    )


def _referenced_tools(value: object) -> Iterator[str]:
    """The names in tool_reference blocks of results, in their order."""
    if isinstance(value, Mapping):
        if value.get("type") == "tool_reference" and isinstance(name := value.get("tool_name"), str):
            yield name
        yield from _referenced_tools(value.get("content"))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _referenced_tools(one)


def _objects(value: object, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{where} is {value!r:.80}; expected a list.")
    for place, one in enumerate(value):
        if not isinstance(one, Mapping):
            raise ValueError(f"{where}.{place} is {one!r:.80}; expected an object.")
    return list(value)


def _text(block: Mapping[str, Any], name: str, where: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise ValueError(f"{where}.{name} is {text!r:.80}; expected text.")
    return text


def _system(system: object) -> Iterator[Message]:
    """Text, or text blocks; the one that is for Anthropic's books alone would empty the prefix cache at each turn."""
    if system is None or system == "":
        return
    if isinstance(system, str):
        yield {"role": "system", "content": system}
        return
    texts = [_text(block, "text", f"system.{place}") for place, block in enumerate(_objects(system, "system"))]
    if system_texts := [text for text in texts if text and not text.startswith(_BILLING)]:
        yield {"role": "system", "content": "\n\n".join(system_texts)}


def _messages(messages: object, warnings: list[str]) -> Iterator[Message]:
    names: dict[str, str] = {}  # of tools by the ids of their calls
    for place, message in enumerate(_objects(messages, "messages")):
        where, role, content = f"messages.{place}", message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise ValueError(f"{where}.role is {role!r:.80}; expected 'user', 'assistant' or 'system'.")
        if isinstance(content, str):
            yield {"role": role, "content": content}
            continue
        blocks = _objects(content, f"{where}.content")
        if role == "assistant":
            yield _reply(blocks, f"{where}.content", names, warnings)
        else:
            yield from _turn(role, blocks, f"{where}.content", names)


def _turn(role: str, blocks: Sequence[Mapping[str, Any]], where: str, names: Mapping[str, str]) -> Iterator[Message]:
    """Results of tools first, as the templates have them, then what the user says. Raises ValueError for nothing."""
    if not blocks:
        raise ValueError(f"{where} is []; expected text or at least one block.")
    pieces: list[Piece] = []
    for place, block in enumerate(blocks):
        at = f"{where}.{place}"
        if block.get("type") == "tool_result":
            called = _text(block, "tool_use_id", at)
            result = _result(block.get("content"), at)
            if block.get("is_error") is True and not result.lower().startswith(("error", "<tool_use_error>")):
                result = _ERROR + result
            yield {"role": "tool", "tool_call_id": called, "name": names.get(called, "unknown"), "content": result}
        else:
            is_image = block.get("type") == "image" and role == "user"
            pieces.append(_image(block, at) if is_image else _readable(block, at))
    if pieces:
        yield {"role": role, "content": content_of(pieces)}


def _image(block: Mapping[str, Any], where: str) -> Piece:
    """Of an image block. Raises ValueError for a source that is not in the request."""
    value = block.get("source")
    source: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    kind = source.get("type")
    if kind == "url":
        return image_part(_text(source, "url", f"{where}.source"))  # which says that nothing is downloaded
    if kind != "base64":
        raise ValueError(f"{where}.source is of the type {kind!r:.80}; expected 'base64' with 'media_type' and 'data'.")
    media_type, data = (_text(source, name, f"{where}.source") for name in ("media_type", "data"))
    return image_part(f"data:{media_type};base64,{data}")


def _result(content: object, where: str) -> str:
    """Of a tool: an image or a PDF in it is one of many things that came by themselves, so it is no error."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for place, block in enumerate(_objects(content, f"{where}.content")):
        match block.get("type"):
            case "image":
                texts.append(_NO_IMAGE)
            case "document" if _source_type(block) not in ("text", "content"):
                texts.append(_NO_DOCUMENT)
            case "tool_reference":
                texts.append(_text(block, "tool_name", f"{where}.content.{place}"))
            case _:
                texts.append(_readable(block, f"{where}.content.{place}"))
    return "\n".join(texts)


def _readable(block: Mapping[str, Any], where: str) -> str:
    """The text of a block. Raises ValueError for what has none."""
    kind = block.get("type")
    match kind:
        case "text":
            return _text(block, "text", where)
        case "search_result":
            title, source = _text(block, "title", where), _text(block, "source", where)
            return "\n".join([f"{title} ({source})", _result(block.get("content"), where)])
        case "document":
            source = block.get("source")
            if isinstance(source, Mapping) and source.get("type") == "text":
                return "\n".join([*_title(block), _text(source, "data", f"{where}.source")])
            if isinstance(source, Mapping) and source.get("type") == "content":
                return "\n".join([*_title(block), _result(source.get("content"), f"{where}.source")])
            raise ValueError(f"{where} is a document that is no text; this model reads text only.")
    raise ValueError(f"{where} is of the type {kind!r:.80}; this model reads text only.")


def _source_type(block: Mapping[str, Any]) -> object:
    source = block.get("source")
    return source.get("type") if isinstance(source, Mapping) else None


def _title(block: Mapping[str, Any]) -> list[str]:
    title = block.get("title")
    return [title] if isinstance(title, str) and title else []


def _reply(
    blocks: Sequence[Mapping[str, Any]], where: str, names: dict[str, str], warnings: list[str]
) -> dict[str, Any]:
    """A message of the model's, as this library makes them of its own replies."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, block in enumerate(blocks):
        at, kind = f"{where}.{place}", block.get("type")
        if kind == "text":
            texts.append(_text(block, "text", at))
        elif kind == "thinking":
            thoughts.append(_text(block, "thinking", at))
        elif kind == "tool_use":
            identifier, name, arguments = _text(block, "id", at), _text(block, "name", at), block.get("input")
            if not isinstance(arguments, Mapping):
                raise ValueError(f"{at}.input is {arguments!r:.80}; expected an object.")
            names[identifier] = name
            calls.append(
                {"id": identifier, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
            )
        elif kind == "redacted_thinking" or (isinstance(kind, str) and kind.startswith("server_tool")):
            warnings.append(f"the block '{kind}' of an earlier reply was left out: only Anthropic's servers read it")
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            texts.append(json.dumps(block.get("content"), ensure_ascii=False))
        else:
            raise ValueError(f"{at} is of the type {kind!r:.80}; expected text, thinking or tool_use.")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """For chat templates that can think or not: the names that Qwen's, DeepSeek's and Granite's, and gpt-oss's have."""
    variables: dict[str, Any] = {}
    thinking, output = body.get("thinking"), body.get("output_config")
    if isinstance(thinking, Mapping):
        kind = thinking.get("type")
        if kind not in ("enabled", "adaptive", "between_tools", "disabled"):
            raise ValueError(f"thinking.type is {kind!r:.80}; expected 'enabled', 'adaptive' or 'disabled'.")
        variables["enable_thinking"] = variables["thinking"] = kind != "disabled"
    effort = output.get("effort") if isinstance(output, Mapping) else None
    if isinstance(effort, str) and effort in LEVELS:
        variables["reasoning_effort"] = LEVELS[effort]
    return variables


def _schema(output: object) -> Mapping[str, Any] | None:
    """Of a reply that is JSON."""
    form = output.get("format") if isinstance(output, Mapping) else None
    if form is None:
        return None
    if (
        not isinstance(form, Mapping)
        or form.get("type") != "json_schema"
        or not isinstance(form.get("schema"), Mapping)
    ):
        raise ValueError(f"output_config.format is {form!r:.80}; expected a type 'json_schema' with a 'schema'.")
    return form["schema"]
