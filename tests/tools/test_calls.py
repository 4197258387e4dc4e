"""Tool calls in replies: each family's form by hand, in any pieces, and what its own template writes read back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.text.chat_template import ChatTemplate
from embedllm.tools.calls import Parts, ReplyReader, assistant_message, for_template, new_id, tool_parameters
from embedllm.tools.channels import ChannelReader
from embedllm.tools.families import FORMATS
from embedllm.tools.selection import reply_format
from embedllm.tools.stream_parser import CallReader
from tests.support.tool_formats import format_named
from tests.support.tool_templates import TOKENS

TEMPLATES = Path(__file__).parents[1] / "templates"
BAR, GAP = "\uff5c", "\u2581"
DSML, NS = f"{BAR}DSML{BAR}", "]<]minimax[>["

# format, what the model writes, its text, the calls
WRITTEN: list[tuple[str, str, str, list[tuple[str, dict[str, Any]]]]] = [
    ("hermes", 'I look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "I look.",
     [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g"}</tool_call>', "",
     [("f", {}), ("g", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call> ok', " ok",
     [("f", {"a": "</tool_call>"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", {"a": 1})]),
    ("hermes", "a < b and <tool", "a < b and <tool", []),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nx\n\ny\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
     "</function>\n</tool_call>", "", [("f", {"a": "x\n\ny", "n": 3})]),
    ("llama3", '{"name": "f", "parameters": {"a": [1]}}', "", [("f", {"a": [1]})]),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "",
     [("f", {}), ("g", {})]),
    ("llama3", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ("llama3", "{x | x > 0}", "{x | x > 0}", []),
    ("mistral_list", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', "",
     [("f", {"a": 1}), ("g", {})]),
    ("mistral_list", '[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}', "", [("f", {"a": "[TOOL_CALLS]"})]),
    ("mistral_id", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "",
     [("f", {"a": 1}), ("g", {})]),
    ("mistral", 'Yes.[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}', "Yes.",
     [("f", {"a": "[TOOL_CALLS]"}), ("g", {})]),
    ("deepseek", f"<{BAR}tool{GAP}calls{GAP}begin{BAR}><{BAR}tool{GAP}call{GAP}begin{BAR}>"
     f'function<{BAR}tool{GAP}sep{BAR}>f\n```json\n{{"a": 1}}\n```<{BAR}tool{GAP}call{GAP}end{BAR}>'
     f'<{BAR}tool{GAP}calls{GAP}end{BAR}>', "",
     [("f", {"a": 1})]),
    ("deepseek_v3_1", f"<{BAR}tool{GAP}calls{GAP}begin{BAR}><{BAR}tool{GAP}call{GAP}begin{BAR}>"
     f'f<{BAR}tool{GAP}sep{BAR}>{{"a": 1}}<{BAR}tool{GAP}call{GAP}end{BAR}><{BAR}tool{GAP}calls{GAP}end{BAR}>', "",
     [("f", {"a": 1})]),
    ("deepseek_v3_2", f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">1'
     f'</{DSML}parameter>\n<{DSML}parameter name="b" string="false">[1]</{DSML}parameter>\n</{DSML}invoke>\n'
     f"</{DSML}function_calls>", "", [("f", {"a": "1", "b": [1]})]),
    ("deepseek_v4", f'Yes.\n\n<{DSML}tool_calls>\n<{DSML}invoke name="f">\n\n</{DSML}invoke>\n<{DSML}invoke name="g">\n'
     f"</{DSML}invoke>\n</{DSML}tool_calls>", "Yes.", [("f", {}), ("g", {})]),
    ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}'
     "<|tool_call_end|><|tool_call_begin|>g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>", "", [("f", {"a": 1}), ("g", {})]),
    ("kimi_k3",
     '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>x'
     '<|close|>argument<|sep|><|open|>argument key="b" type="boolean"<|sep|>true<|close|>argument<|sep|>'
     "<|close|>call<|sep|><|close|>tools<|sep|>", "", [("f", {"a": "x", "b": True})]),
    ("solar",
     '<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|><|calls|>',
     "", [("f", {"a": 1})]),
    ("glm4_5",
     "<think></think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x\ny</arg_value>\n<arg_key>b</arg_key>\n"
     "<arg_value>3</arg_value>\n</tool_call>", "<think></think>", [("f", {"a": "x\ny", "b": 3})]),
    ("glm4_5",
     "<tool_call>f<arg_key>a</arg_key><arg_value></tool_call></arg_value></tool_call><tool_call>g</tool_call>", "",
     [("f", {"a": "</tool_call>"}), ("g", {})]),
    ("glm4_5", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "", [("f", {})]),
    ("minimax_m2",
     '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>\n<invoke name="g">'
     "\n</invoke>\n</minimax:tool_call>", "", [("f", {"a": "x"}), ("g", {})]),
    ("minimax_m2", '<invoke name="f"><parameter name="a">{"b": "</parameter>"}</parameter></invoke>', "",
     [("f", {"a": {"b": "</parameter>"}})]),
    ("minimax_m2", "an <invoke of a method", "an <invoke of a method", []),
    ("minimax_m3",
     f'{NS}<tool_call>\n{NS}<invoke name="f">{NS}<a>x{NS}</a>{NS}<b>{NS}<item>1{NS}</item>{NS}<item>2{NS}</item>'
     f"{NS}</b>{NS}<c>{NS}<d>true{NS}</d>{NS}</c>{NS}</invoke>\n{NS}</tool_call>", "",
     [("f", {"a": "x", "b": [1, 2], "c": {"d": True}})]),
    ("minicpm5", '<function name="f"><param name="a">x</param></function>\n<function name="g"></function>', "",
     [("f", {"a": "x"}), ("g", {})]),
    ("minicpm5",
     '<function name="f"><param name="a"><![CDATA[</param> 1\n]]></param><param name="b"><![CDATA[2]]></param>'
     "</function>", "", [("f", {"a": "</param> 1\n", "b": "2"})]),
    ("seed_oss", "<seed:tool_call>\n<function=f>\n<parameter=a>x</parameter>\n</function>\n</seed:tool_call>", "",
     [("f", {"a": "x"})]),
    ("qwen3_coder", "Yes.\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>", "Yes.",
     [("f", {"a": "x"})]),
    ("qwen3_coder",
     "<tool_call>\n<function=f>\n<parameter=a>\n</tool_call>\n</parameter>\n</function>\n</tool_call>", "",
     [("f", {"a": "</tool_call>"})]),
    ("k2_horizon",
     "<ifm|tool_calls>\n<ifm|tool_call>f\n<ifm|arg_key>a</ifm|arg_key>\n<ifm|arg_value>x</ifm|arg_value>\n"
     "</ifm|tool_call>\n</ifm|tool_calls>", "", [("f", {"a": "x"})]),
    ("functionary_v3_2", '>>>all\nHello.\n>>>f\n{"a": 1}>>>g\n{}', "Hello.", [("f", {"a": 1}), ("g", {})]),
    ("gigachat3", '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {}}<|message_sep|>', "",
     [("f", {})]),
    ("gigachat3_1", '<|function_call|>{"name": "f", "arguments": {}}', "", [("f", {})]),
    ("apertus", '<|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>', "", [("f", {"a": 1}), ("g", {})]),
    ("command_r7b",
     '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}\n]<|END_ACTION|>',
     "", [("f", {"a": 1})]),
    ("command_r", 'Action:\n```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {}\n    }\n]```', "",
     [("f", {})]),
    ("command_r", 'Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}]\n```', "", []),
    ("internlm2", '<|action_start|><|plugin|>\n{"name": "f", "arguments": {}}<|action_end|>', "", [("f", {})]),
    ("granite_20b",
     '<function_call> {"name": "f", "arguments": {}}\n<function_call> {"name": "g", "arguments": {}}', "",
     [("f", {}), ("g", {})]),
    ("firefunction", ' functools[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]', "",
     [("f", {"a": 1}), ("g", {})]),
    ("firefunction", "the module functools[1]", "the module functools[1]", []),
    ("nemotron_nano_v2", '<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>', "", [("f", {"a": 1})]),
    ("pythonic", '[f(a="x", b={"c": true}), g(d=None, e=True)]', "",
     [("f", {"a": "x", "b": {"c": True}}), ("g", {"d": None, "e": True})]),
    ("pythonic", "[1, 2] is a list", "[1, 2] is a list", []),
    ("lfm2", '<|tool_call_start|>[f(a="a, b) \\ud83d\\ude00", b=\'it\\\'s\')]<|tool_call_end|>', "",
     [("f", {"a": "a, b) \U0001f600", "b": "it's"})]),
    ("lfm2", "<|tool_call_start|>[f(a='x\n y', b=[\n1])]<|tool_call_end|>", "", [("f", {"a": "x\n y", "b": [1]})]),
    ("llama3", '<|python_start|><|python_end|>{"name": "f", "parameters": {}}{"name": "g", "parameters": {}}', "",
     [("f", {}), ("g", {})]),
    ("muse",
     ' to=self<|message|>Hm.<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
     '<atem:parameter name="a">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>', "", [("f", {"a": "x"})]),
    ("functiongemma", "<start_function_call>call:f{a:<escape>x, {y}<escape>,b:[1,{c:true}],d:null}<end_function_call>",
     "", [("f", {"a": "x, {y}", "b": [1, {"c": True}], "d": None})]),
    ("gemma4", '<|tool_call>call:f{a:<|"|>x<|"|>,n:-2.5}<tool_call|>', "", [("f", {"a": "x", "n": -2.5})]),
    ("phi4", '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>', "", [("f", {"a": 1})]),
    ("lfm2", '<|tool_call_start|>[f(a="x", b=[1, None]), g()]<|tool_call_end|>Done.', "Done.",
     [("f", {"a": "x", "b": [1, None]}), ("g", {})]),
    ("command_r", 'Action: ```json\n[{"tool_name": "f", "parameters": {"a": 1}}]\n```', "", [("f", {"a": 1})]),
    ("functionary", '<function=f>{"a": 1}</function>', "", [("f", {"a": 1})]),
    ("jamba", '<tool_calls>[\n{"name": "f", "arguments": {}}\n]</tool_calls>', "", [("f", {})]),
    ("nemotron", '<toolcall> {"arguments": {"a": 1}, "name": "f"} </toolcall>', "", [("f", {"a": 1})]),
    ("json", 'So:\n```json\n{"name": "f", "arguments": {"a": 1}}\n```', "So:", [("f", {"a": 1})]),
    ("json", 'So:\n\n```json\n{"a": 1}\n```\nDone.', 'So:\n\n```json\n{"a": 1}\n```\nDone.', []),
    ("json", '[{"name": "f", "arguments": {}}]', "", [("f", {})]),
    ("json", '{"function": {"name": "f", "arguments": "{\\"a\\": 1}"}}', "", [("f", {"a": 1})]),
    ("harmony", '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f '
     '<|constrain|>json<|message|>{"a": "<|end|>"}<|call|>', "", [("f", {"a": "<|end|>"})]),
    ("harmony", " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "", [("f", {})]),
    ("harmony", "<|channel|>final to=assistant<|message|>Hello.", "Hello.", []),
    ("harmony", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>42",
     "I look.\n42", []),
]  # fmt: skip


def reader(name: str) -> ReplyReader:
    written = format_named(name)
    return ChannelReader(written, {}) if written.has_channels else CallReader(written, {})


def parted(reading: ReplyReader, pieces: Sequence[str], reason: str = "stop") -> Parts:
    """The whole of a reply; the end comes with an empty piece."""
    parts = [*(reading.push(piece) for piece in pieces), reading.push("", reason)]
    return Parts(
        "".join(part.text for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.tool_calls),
    )


def found(parts: Parts) -> list[tuple[str, Any]]:
    assert [call.problem for call in parts.tool_calls] == [""] * len(parts.tool_calls)
    return [(call.name, call.arguments) for call in parts.tool_calls]


@pytest.mark.parametrize(("name", "reply", "text", "calls"), WRITTEN)
def test_each_form_is_read(name: str, reply: str, text: str, calls: list[tuple[str, Any]]) -> None:
    for size in (1, 2, 3, 7, len(reply)):
        parts = parted(reader(name), [reply[at : at + size] for at in range(0, len(reply), size)])
        assert (parts.text, found(parts)) == (text, calls), size


def test_each_format_has_an_example() -> None:
    assert {name for name, *_ in WRITTEN} == {row.name for row in FORMATS}


# --- what is wrong is said


@pytest.mark.parametrize(
    ("name", "reply", "problem"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "'a' is there twice"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', "no JSON"),
        ("hermes", '<tool_call>{"name": "f, "arguments": {}}</tool_call>', "no JSON"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', 'has no "name"'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "expected an object"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>', "both"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "1e999 is no value of JSON"),
        ("lfm2", "<|tool_call_start|>[f(a=[-1e999])]<|tool_call_end|>", "nothing that JSON can hold: -1e309"),
        ("gemma4", "<|tool_call>call:f{a:1e999}<tool_call|>", "1e999 is no value of JSON"),
        ("hermes", "<tool_call></tool_call>", "nothing between"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
        ("llama3", '<|python_tag|>print("x")', "no JSON"),
        ("llama3", '{"name": "f", "parameters": {"a": 1}', "no JSON"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{} and more", "after the arguments comes 'and more'"),
        ("functiongemma", "<start_function_call>call:f{a:<escape>x}<end_function_call>", "has no '<escape>'"),
        ("gemma4", "<|tool_call>call:f{a:1,a:2}<tool_call|>", "'a' is there twice"),
        ("gemma4", "<|tool_call>call:f{a:" + "[" * 200 + "<tool_call|>", "nested too deeply"),
        ("lfm2", '<|tool_call_start|>[f(a=__import__("os"))]<|tool_call_end|>', "'a' is no literal"),
        ("lfm2", "<|tool_call_start|>[f(a={1, 2})]<|tool_call_end|>", "nothing that JSON can hold"),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>1</tool_call>", "expected <parameter="),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>{<|call|>", "no JSON"),
    ],
)
def test_a_call_that_cannot_be_read_says_why_and_keeps_what_was_written(name: str, reply: str, problem: str) -> None:
    for size in (1, len(reply)) if len(reply) < 1000 else (len(reply),):
        parts = parted(reader(name), [reply[at : at + size] for at in range(0, len(reply), size)])
        assert len(parts.tool_calls) == 1
        call = parts.tool_calls[0]
        assert problem in call.problem
        assert call.text or reply == "<tool_call></tool_call>"
        assert call.text in reply
        assert not call.arguments


@pytest.mark.parametrize("reason", ["length", "context", "cancelled"])
@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}'),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}"),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>{}"),
    ],
)
def test_a_call_in_a_reply_that_was_cut_off_is_none_to_run(name: str, reply: str, reason: str) -> None:
    (call,) = parted(reader(name), [reply], reason).tool_calls
    assert reason in call.problem


def test_a_call_is_given_with_the_piece_that_ends_it() -> None:
    reading = CallReader(format_named("hermes"), {})
    assert reading.push('Hello <tool_call>{"name": "f"}</tool_call').tool_calls == ()
    assert [call.name for call in reading.push("> and").tool_calls] == ["f"]


@given(st.text(alphabet='<tool_cal>/{}"nme:[] \n', max_size=60), st.data())
def test_pieces_do_not_matter(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for name in ("hermes", "llama3", "json", "mistral", "harmony"):
        whole, cut = parted(reader(name), [text]), parted(reader(name), pieces)
        assert whole.text == cut.text, name
        assert [(c.name, c.arguments, c.problem) for c in whole.tool_calls] == [
            (c.name, c.arguments, c.problem) for c in cut.tool_calls
        ]


_WITHOUT_CHANNELS = [row for row in FORMATS if not row.has_channels]
SECTION_ENDS = [(row.name, mark) for row in _WITHOUT_CHANNELS for mark in row.closings if mark in row.ignorable]


@pytest.mark.parametrize(("name", "closing"), SECTION_ENDS)
def test_a_mark_that_ends_calls_says_nothing_behind_text(name: str, closing: str) -> None:
    reply = f"Hello {closing} you"
    for pieces in ([reply], list(reply)):
        assert parted(reader(name), pieces).text.split() == ["Hello", "you"]


def test_calls_whose_marks_begin_alike_are_read_in_any_pieces() -> None:
    call = '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "NAME", "arguments": {}}'
    reply = call.replace("NAME", "f") + call.replace("NAME", "g") + "<|message_sep|>"
    for pieces in ([reply], list(reply), [reply[at : at + 3] for at in range(0, len(reply), 3)]):
        parts = parted(reader("gigachat3"), pieces)
        assert [(call.name, call.problem) for call in parts.tool_calls] == [("f", ""), ("g", "")]
        assert not parts.text


@given(st.text(max_size=60))
def test_text_without_a_mark_comes_out_as_it_went_in(text: str) -> None:
    for row in FORMATS:
        if not any(mark in text for mark in (*row.openings, *row.ignorable, "<|", '":')):
            assert parted(reader(row.name), list(text)).text == text, row.name


# --- what a template writes is read back


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_a_template_tells_its_format(path: Path) -> None:
    expected = FAMILIES.get(path.stem, "json")
    assert reply_format(ChatTemplate(path.read_text(encoding="utf-8"), tokens=TOKENS)).calls.name == expected


FAMILIES = {
    "demo": "hermes", "hermes": "hermes", "qwen2_5": "hermes", "qwen3": "hermes", "falcon3": "hermes",
    "qwen3_coder": "qwen3_coder", "llama3_1": "llama3", "mistral_v3": "mistral_list", "mistral_v7": "mistral_id",
    "phi4_mini": "phi4", "granite3": "phi4", "gpt_oss": "harmony", "nemotron": "nemotron", "jamba": "jamba",
    "command_r": "command_r", "functionary": "functionary", "lfm2": "lfm2",
    "deepseek_v3": "learnt", "deepseek_v3_1": "learnt", "glm4": "learnt",  # these spell the marks in their own way
}  # fmt: skip
QUESTION = {"role": "user", "content": "?"}


# --- messages


def test_the_message_is_openais_with_arguments_as_objects() -> None:
    parts = parted(reader("hermes"), ['Hm.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'])
    message = assistant_message(parts.text, "Why?", parts.tool_calls)
    call = {"id": parts.tool_calls[0].id, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert message == {"role": "assistant", "content": "Hm.", "reasoning_content": "Why?", "tool_calls": [call]}
    assert assistant_message("x", "", ()) == {"role": "assistant", "content": "x"}


def test_arguments_go_to_a_template_as_it_wants_them() -> None:
    def message(arguments: object) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}

    given = [message({"a": 1}), message('{"a": 1}'), message("no JSON")]
    before = copy.deepcopy(given)
    assert for_template(given, arguments_as_text=False, one_call=False) == [message({"a": 1})] * 2 + [given[2]]
    assert for_template(given, arguments_as_text=True, one_call=False) == [message('{"a": 1}')] * 2 + [given[2]]
    assert given == before


def test_several_calls_become_messages_of_one_call_each_with_its_result() -> None:
    calls: list[Any] = [{"id": name, "function": {"name": name, "arguments": {}}} for name in "ab"]
    results: list[Any] = [{"role": "tool", "tool_call_id": name, "content": name} for name in "ab"]
    message: dict[str, Any] = {"role": "assistant", "content": "Hm", "reasoning_content": "Why", "tool_calls": calls}
    shown = for_template([QUESTION, message, *results, QUESTION], arguments_as_text=False, one_call=True)
    assert [entry["role"] for entry in shown] == ["user", "assistant", "tool", "assistant", "tool", "user"]
    assert [entry["tool_calls"] for entry in shown if entry["role"] == "assistant"] == [calls[:1], calls[1:]]
    assert (shown[1]["reasoning_content"], shown[1]["content"]) == ("Why\nHm", "")


def test_ids_have_nine_characters_and_differ() -> None:
    made = {new_id() for _ in range(100)}
    assert len(made) == 100
    assert all(len(made_id) == 9 and made_id.isalnum() for made_id in made)


def test_tools_need_names_of_their_own() -> None:
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert tool_parameters([tool, {"name": "g"}]) == {"f": {"type": "object"}, "g": {}}
    with pytest.raises(ValueError, match="as another one is"):
        tool_parameters([tool, tool])
    with pytest.raises(ValueError, match=r"tools\[0\] has no name"):
        tool_parameters([{"type": "function"}])
