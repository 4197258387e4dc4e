"""Chat templates: prompts against those that transformers made, where templates lie, what messages are taken."""

from __future__ import annotations

import copy
import enum
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from embedllm.errors import PackageError, TemplateError
from embedllm.text import jinja_sandbox
from embedllm.text.chat_template import ChatTemplate
from embedllm.types import JSON

FOLDER = Path(__file__).parents[1] / "templates"
USER = [{"role": "user", "content": "Hi"}]


def load_make_expected() -> ModuleType:
    """The script beside the templates; it needs transformers only when it makes prompts."""
    spec = importlib.util.spec_from_file_location("make_expected", FOLDER / "make_expected.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXPECTED = load_make_expected()
NAMES = EXPECTED.names()

# a template in the manner of DeepSeek R1's and V3's own, which tell calls from replies by a content that is none
CALLS_BY_NONE = """
{%- for m in messages -%}
{%- if m['role'] == 'user' %}<U>{{ m['content'] }}{% endif -%}
{%- if m['role'] == 'assistant' and m['content'] is none %}<A>
{%- for call in m['tool_calls'] %}<call>{{ call['function']['name'] }}{% endfor %}<end>{% endif -%}
{%- if m['role'] == 'assistant' and m['content'] is not none %}<A>
{{- m['content'].split('</think>')[-1] }}<end>{% endif -%}
{%- if m['role'] == 'tool' %}<result>{{ m['content'] }}{% endif -%}
{%- endfor -%}"""
CALL: JSON = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {}}}
WITHOUT_TEXT: tuple[dict[str, JSON], ...] = ({"content": None}, {"content": ""}, {})


def test_importing_chat_loads_the_standard_library_only() -> None:
    code = "import sys, embedllm.text.chat_template; print(*{'jinja2', 'tokenizers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# --- against what transformers made


def test_there_are_templates_and_each_has_its_prompts() -> None:
    assert len(NAMES) >= 34
    assert sorted(path.stem for path in (FOLDER / "expected").glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_those_of_transformers(name: str) -> None:
    expected = EXPECTED.read(f"expected/{name}")
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, tokens=expected["tokens"], clock=lambda: EXPECTED.CLOCK)
    conversations = EXPECTED.conversations()
    assert expected["prompts"].keys() == conversations.keys()
    for title, outcome in expected["prompts"].items():
        before = copy.deepcopy(conversations[title])
        if isinstance(outcome, str):
            assert template.render(**conversations[title]) == outcome, title
        else:
            with pytest.raises(TemplateError) as caught:
                template.render(**conversations[title])
            assert outcome.get("refused", "") in str(caught.value), title
            assert outcome.get("failed") in (None, type(caught.value.__cause__).__name__), title
        assert conversations[title] == before


def calls_without_text(content: dict[str, JSON]) -> list[dict[str, JSON]]:
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", **content, "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]


@pytest.mark.parametrize("content", WITHOUT_TEXT, ids=["None", "empty", "absent"])
def test_calls_without_text_are_written_by_templates_that_test_for_none(content: dict[str, JSON]) -> None:
    messages = calls_without_text(content)
    right = "<U>q<A><call>weather<end><result>sunny<A>It is sunny.<end>"
    assert ChatTemplate(CALLS_BY_NONE, clock=lambda: EXPECTED.CLOCK).render(messages) == right
    others = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert ChatTemplate(others).render(messages) == "<user>q<assistant><tool>sunny<assistant>It is sunny."


# a template in the manner of Ministral 3's own, which takes the length of a content that it has tested for none
LENGTH_OF_NONE = """
{%- for m in messages -%}<{{ m['role'] }}>
{%- if m['role'] == 'assistant' and m['content'] is none and not m['tool_calls'] %}{{ raise_exception('empty') }}
{%- elif m['content'] | length > 0 %}{{ m['content'] }}{% endif -%}
{%- for call in m['tool_calls'] or [] %}<call>{{ call['function']['name'] }}{% endfor -%}
{%- endfor -%}"""


def test_calls_without_text_stay_text_where_a_template_fails_on_none() -> None:
    right = "<user>q<assistant><call>weather<tool>sunny<assistant>It is sunny."
    assert ChatTemplate(LENGTH_OF_NONE).render(calls_without_text({"content": ""})) == right


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_stored_prompts_are_what_the_installed_transformers_makes(name: str) -> None:
    pytest.importorskip("transformers")
    assert EXPECTED.expected(name) == EXPECTED.read(f"expected/{name}")


# --- where the template comes from


def write(folder: Path, files: dict[str, str | dict[str, Any]]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


LIST = {"chat_template": [{"name": "default", "template": "list"}, {"name": "tool_use", "template": "list tools"}]}


@pytest.mark.parametrize(
    ("files", "plain", "with_tools"),
    [
        ({"tokenizer_config.json": {"chat_template": "config"}}, "config", "config"),
        ({"tokenizer_config.json": LIST}, "list", "list tools"),
        ({"tokenizer_config.json": LIST, "chat_template.jinja": "file\n"}, "file", "file"),
        ({"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "more"}, "file", "more"),
        ({"chat_template.json": {"chat_template": "processor"}}, "processor", "processor"),
    ],
)
def test_the_template_is_found_where_transformers_finds_it(
    tmp_path: Path, files: dict[str, str | dict[str, Any]], plain: str, with_tools: str
) -> None:
    template = ChatTemplate.open(write(tmp_path, files))
    assert template.render(USER) == plain
    assert template.render(USER, tools=[]) == with_tools


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": LIST},
        {"tokenizer_config.json": LIST, "chat_template.jinja": "file\n"},
        {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "more{{ eos_token }}"},
        {"tokenizer_config.json": {"chat_template": "{{ eos_token }}|{{ image_token }}", "image_token": "<i>"}},
    ],
)
def test_a_folder_gives_the_prompt_that_it_gives_transformers(
    tmp_path: Path, files: dict[str, str | dict[str, Any]], tools: list[Any] | None
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, {"special_tokens_map.json": {"eos_token": "<e>"}, **files})
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(USER, tools=tools, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate.open(tmp_path).render(USER, tools=tools) == expected


def test_special_tokens_of_the_folder_are_variables(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}", "eos_token": {"content": "</s>"}}
    write(tmp_path, {"tokenizer_config.json": config, "special_tokens_map.json": {"bos_token": "<s>"}})
    assert ChatTemplate.open(tmp_path).render(USER) == "<s>|</s>|"


def test_a_missing_template_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"has no chat template.*Generate from a plain prompt, or pass a template"):
        ChatTemplate.open(tmp_path)


def test_a_template_without_default_names_those_there_are() -> None:
    with pytest.raises(TemplateError, match="no chat template named 'default', only 'rag'"):
        ChatTemplate({"rag": ""}).render(USER)


def test_a_damaged_template_file_is_a_package_error(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(PackageError, match="not UTF-8"):
        ChatTemplate.open(tmp_path)


def test_a_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    class Counting(jinja_sandbox.SandboxedTemplate):
        """Notes what is compiled."""

        def __init__(self, source: str, *, clock: Callable[[], datetime]) -> None:
            compiled.append(source)
            super().__init__(source, clock=clock)

    monkeypatch.setattr(jinja_sandbox, "SandboxedTemplate", Counting)
    template = ChatTemplate({"default": "a", "tool_use": "b"})
    assert [template.render(USER, tools=tools) for tools in (None, [], None, [])] == ["a", "b", "a", "b"]
    assert compiled == ["a", "b"]


# --- messages


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        ("Hi", "at least one message"),
        ({"role": "user"}, "at least one message"),
        ([*USER, "Hi"], r"messages\[1\] is a str"),
        ([*USER, {"content": "Hi"}], r"messages\[1\]\['role'\] is None"),
        ([{"role": 3}], r"messages\[0\]\['role'\] is 3"),
        (
            [*USER, {"role": "user", "content": [{"image": object()}]}],
            r"messages\[1\]\['content'\]\[0\]\['image'\] is a object",
        ),
        ([{"role": "user", "content": {1: "x"}}], "has the key 1"),
    ],
)
def test_messages_that_cannot_be_meant_are_refused_by_their_place(messages: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ChatTemplate("{{ messages }}").render(messages)  # pyright: ignore[reportArgumentType] # wrong on purpose


def test_a_message_that_holds_itself_is_refused() -> None:
    message: dict[str, Any] = {"role": "user"}
    message["content"] = [message]
    with pytest.raises(ValueError, match=r"messages\[0\] is nested too deeply"):
        ChatTemplate("").render([message])


def test_what_a_template_sees_has_plain_types_only() -> None:
    class Text(str):
        """Text with a method that a template must not reach."""

        def leak(self) -> str:
            return "leaked"

    template = ChatTemplate("{{ messages[0].content.leak() }}{{ messages[0].leak() }}")
    with pytest.raises(TemplateError, match="leak"):
        template.render([{"role": "user", "content": Text("x")}])

    class Role(str, enum.Enum):  # noqa: UP042 - an application's own, of either kind
        USER = "user"

    assert ChatTemplate("{{ messages[0].role }}").render([{"role": Role.USER}]) == "user"


@given(st.text())
@example("{{ 7 * 7 }}{% set x = 1 %}{# no #}\r\n")
def test_text_in_messages_is_never_read_as_a_template(text: str) -> None:
    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": text}]) == text


def test_variables_go_before_special_tokens_and_not_before_arguments() -> None:
    assert ChatTemplate("{{ eos_token }}", tokens={"eos_token": "a"}).render(USER, variables={"eos_token": "b"}) == "b"
    with pytest.raises(ValueError, match="variables cannot set 'tools'"):
        ChatTemplate("").render(USER, variables={"tools": []})


def test_tools_and_documents_of_another_type_are_refused() -> None:
    wrong: list[Any] = [{}, "x"]
    with pytest.raises(ValueError, match=r"tools\[1\] is a str"):
        ChatTemplate("").render(USER, tools=wrong)
    with pytest.raises(ValueError, match=r"documents\[1\] is a str"):
        ChatTemplate("").render(USER, documents=wrong)


# --- continuing the last message


def test_a_continued_message_ends_where_its_text_ends() -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}{{ '<next>' if add_generation_prompt }}"
    )
    chat = [*USER, {"role": "assistant", "content": "La la "}]
    assert ChatTemplate(source).render(chat, continue_final_message=True) == "<user>Hi</end><assistant>La la "
    trimming = source.replace("m.content", "m.content | trim")
    assert ChatTemplate(trimming).render(chat, continue_final_message=True) == "<user>Hi</end><assistant>La la"


def test_a_list_of_parts_is_continued_at_its_last_text() -> None:
    source = "{% for part in messages[-1].content %}[{{ part.text }}]{% endfor %}"
    parts: list[Any] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
    assert (
        ChatTemplate(source).render([{"role": "assistant", "content": parts}], continue_final_message=True) == "[a][b"
    )


def test_a_message_that_the_template_does_not_write_cannot_be_continued() -> None:
    chat = [*USER, {"role": "assistant", "content": "La"}]
    with pytest.raises(TemplateError, match="does not write the last message as it is"):
        ChatTemplate("{{ messages[0].content }}").render(chat, continue_final_message=True)
    with pytest.raises(ValueError, match="no text under 'content'"):
        ChatTemplate("").render([{"role": "assistant"}], continue_final_message=True)


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_what_can_be_read_only_once_is_refused(name: str) -> None:
    """A prompt may be rendered more than once: a generator would leave them out the second time."""
    generated: Any = (one for one in [{"type": "function", "function": {"name": "list"}}])
    with pytest.raises(ValueError, match=f"{name} is a generator; expected a list of them"):
        ChatTemplate("").render([{"role": "user", "content": "Hi"}], **{name: generated})
