"""The format of a model, from what its template shows: from the table, learnt, or plain JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from embedllm.text.chat_template import ChatTemplate
from embedllm.tools.selection import reply_format
from embedllm.tools.template_probe import MadeCall, TemplateProbe
from tests.support.tool_templates import CALLS, TOKENS, check_round_trip, open_template

TEMPLATES = Path(__file__).parents[1] / "templates"
SHOWING = (
    "command_r", "deepseek_v3", "deepseek_v3_1", "demo", "falcon3", "functionary", "glm4", "gpt_oss", "granite3",
    "hermes", "jamba", "llama3_1", "mistral_v3", "mistral_v7", "nemotron", "phi4_mini", "qwen2_5", "qwen3",
    "qwen3_coder",
)  # fmt: skip
TURNS = (
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content or '' }}{% if m.tool_calls %}CALLS{% endif %}</turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
MADE_UP = {  # how a template that nobody has seen may show calls
    "a name and JSON": "{% for c in m.tool_calls %}[RUN]{{ c.function.name }}[WITH]{{ c.function.arguments | tojson }}"
    "[DONE]\n{% endfor %}",
    "JSON with an id": "<acts>[{% for c in m.tool_calls %}{\"tool\": 1, \"id\": \"{{ c.id }}\", \"name\": "
    "\"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}"
    "{% endfor %}]</acts>",
    "pairs": "<acts>{% for c in m.tool_calls %}<act>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
    "<k>{{ k }}</k><v>{{ v if v is string else v | tojson }}</v>{% endfor %}</act>{% endfor %}</acts>",
    "pairs with types": "{% for c in m.tool_calls %}<act name=\"{{ c.function.name }}\">"
    "{% for k, v in c.function.arguments.items() %}"
    "<arg name=\"{{ k }}\" is_text=\"{{ 'yes' if v is string else 'no' }}\">"
    "{{ v if v is string else v | tojson }}</arg>{% endfor %}</act>{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWING)
@pytest.mark.slow
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    deadline=None,
    phases=[Phase.generate],
)
@given(drawn=CALLS, reasoning=st.sampled_from(["", "I think\nso."]), size=st.integers(1, 40))
def test_what_a_template_shows_is_read_back(
    name: str, drawn: list[tuple[str, dict[str, Any]]], reasoning: str, size: int
) -> None:
    check_round_trip((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), drawn, reasoning, size)


@pytest.mark.parametrize("name", MADE_UP)
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    deadline=None,
    phases=[Phase.generate],
)
@given(drawn=CALLS, size=st.integers(1, 40))
def test_a_format_in_no_table_is_learnt(name: str, drawn: list[tuple[str, dict[str, Any]]], size: int) -> None:
    source = TURNS.replace("CALLS", MADE_UP[name])
    assert open_template(source)[1].calls.name == "learnt"
    assert check_round_trip(source, drawn, "", size)


def test_the_pieces_of_a_learnt_format() -> None:
    source = TURNS.replace("CALLS", MADE_UP["pairs with types"])
    learnt = open_template(source)[1].calls
    assert learnt.calls == ('<act name="$name">$pairs</act>',)
    assert learnt.pair == '<arg name="$key" is_text="$type">$value</arg>'
    assert (learnt.types["string"], learnt.types["number"], learnt.types["object"]) == ("yes", "no", "no")


def test_reasoning_marks_are_learnt_too() -> None:
    shows = "{% if m.reasoning_content %}<ponder>{{ m.reasoning_content }}</ponder>{% endif %}{{ m.content or '' }}"
    source = TURNS.replace("{{ m.content or '' }}", shows).replace("CALLS", MADE_UP["a name and JSON"])
    found = open_template(source)[1].reasoning
    assert found is not None
    assert (found.opening, found.closing) == ("<ponder>", "</ponder>")
    assert open_template(TURNS)[1].reasoning is None


def test_a_template_without_calls_means_plain_json() -> None:
    assert open_template(TURNS.replace("CALLS", ""))[1].calls.name == "json"


def test_arguments_are_not_encoded_twice() -> None:
    """DeepSeek's later template encodes what it is given, its earlier one takes text."""
    call = MadeCall("find", {"a": "b"})
    for name, as_text in (("deepseek_v3_1", False), ("deepseek_v3", True)):
        template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), tokens=TOKENS)
        written = reply_format(template)
        assert written.arguments_as_text is as_text
        shown = TemplateProbe(template).calls([call], as_text=written.arguments_as_text)
        assert shown is not None
        assert json.dumps(dict(call.arguments)) in shown.reply


def test_a_template_with_room_for_one_call_gets_one() -> None:
    found = {name: open_template((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))[1] for name in SHOWING}
    assert {name for name, written in found.items() if written.one_call} == {"gpt_oss", "llama3_1"}
