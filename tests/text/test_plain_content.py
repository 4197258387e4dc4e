"""Messages in OpenAI's forms: content in parts, and none."""

from __future__ import annotations

import pytest

from embedllm import load
from embedllm.text.chat_template import ChatTemplate, Message
from embedllm.text.prompt import plain_content, texts_as_parts

TEXT_ONLY = "{% for m in messages %}<{{ m.role }}>{{ m['content'] + '' }}{% endfor %}"
PRINTS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"  # a list as Python writes it
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)


def parts(*texts: str) -> list[Message]:
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


# of SmolVLM: of a text it writes nothing
ONLY_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part['text'] }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "form"), [(TEXT_ONLY, "text"), (PRINTS, "text"), (PARTS, "both"), (ONLY_PARTS, "parts")]
)
@pytest.mark.parametrize("with_tools", [False, True])
def test_a_template_shows_whether_it_takes_parts(template: str, form: str, with_tools: bool) -> None:
    assert ChatTemplate(template).content_form(with_tools=with_tools) == form


def test_texts_become_parts_for_templates_that_know_only_these() -> None:
    call: Message = {"role": "assistant", "content": None}
    assert texts_as_parts([{"role": "user", "content": "a"}, call, *parts("b")]) == [*parts("a"), call, *parts("b")]


def test_parts_are_joined_for_templates_that_know_only_text() -> None:
    assert plain_content(parts("a ", "b"), joins_parts=True) == [{"role": "user", "content": "a b"}]
    assert plain_content(parts("a ", "b"), joins_parts=False) == parts("a ", "b")


def test_a_content_that_is_none_is_empty_but_beside_tool_calls() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    messages: list[Message] = [{"role": "user", "content": None}, call, {"role": "assistant"}]
    shown = plain_content(messages, joins_parts=True)
    assert shown == [{"role": "user", "content": ""}, call, {"role": "assistant"}]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "'image_url'"),
        ({"type": "text"}, "'text'"),
        ({"text": "a"}, "None"),
        ("a", "a str"),
    ],
)
def test_other_parts_are_refused_by_their_type(part: object, kind: str) -> None:
    messages: list[Message] = [{"role": "user", "content": "a"}, {"role": "user", "content": [part]}]  # type: ignore[list-item]
    with pytest.raises(ValueError, match=rf"messages\[1\] has a part of the type {kind}; expected"):
        plain_content(messages, joins_parts=True)


def test_a_model_takes_them() -> None:
    with load("demo", device="reference") as llm:
        assert llm.prompt(parts("list ", "files")) == llm.prompt([{"role": "user", "content": "list files"}])
        assert llm.chat(parts("list files"), temperature=0, max_tokens=2).text


def test_images_beside_the_content_are_not_left_out_in_silence() -> None:
    """As Ollama's clients send them; no template reads the key."""
    message: Message = {"role": "user", "content": "What is on it?", "images": ["photo.png"]}
    with pytest.raises(ValueError, match=r"messages\[0\] has 'images'.* expected parts in 'content'"):
        plain_content([message], joins_parts=True)
    assert plain_content([{**message, "images": []}], joins_parts=True)[0]["content"] == "What is on it?"
