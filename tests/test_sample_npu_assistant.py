"""The laptop assistant's logic, with a model that says what the test wrote."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm import Cancel, Chunk, ContextFull, Message, Statistics
from embedllm.tool_schema import JSON

pytest.importorskip("bm25s")
from samples.npu_assistant.assistant import MOST_ROUNDS, Assistant
from samples.npu_assistant.calculator import calculate
from samples.npu_assistant.calls import CLOSE, OPEN, Call, CallReader, check_arguments, read_call
from samples.npu_assistant.history import MOST_TURNS, DamagedHistory, History
from samples.npu_assistant.power import PowerMeter, battery_state, battery_watts
from samples.npu_assistant.reply import Done, Event, Notice, Text, ToolRun
from samples.npu_assistant.retrieval import Documents, Passage, UnreadableFile, read_text, split
from samples.npu_assistant.tools import Desktop, Tool, outcome


class Words:
    """A tokenizer: each word is a token, and so is each longer stretch of 10 characters."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [0 for word in text.split() for _ in range(0, len(word), 10)]


class Scripted:
    """A model that gives the next reply of a list, in pieces of three characters; it keeps the prompts."""

    def __init__(self, *replies: str, context: int = 4000) -> None:
        self.context = context
        self.tokenizer = Words()
        self.prompts: list[Sequence[Message]] = []
        self._replies = list(replies)

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, JSON]] | None = None,
        variables: Mapping[str, JSON] | None = None,
    ) -> str:
        return "\n".join(f"{message['role']} {message['content']}" for message in messages)

    def stream(
        self,
        prompt: Sequence[Message],
        *,
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, JSON]] | None = None,
        variables: Mapping[str, JSON] | None = None,
        cancel: Cancel | None = None,
    ) -> Iterator[Chunk]:
        self.prompts.append(prompt)
        assert len(self.tokenizer.encode(self.prompt(prompt), special=False)) + (max_tokens or 0) <= self.context
        text = self._replies.pop(0) if self._replies else "ok"
        pieces = [text[place : place + 3] for place in range(0, len(text), 3)]
        for count, piece in enumerate(pieces, 1):
            if cancel and cancel.cancelled:
                yield chunk("", "cancelled", count)
                return
            yield chunk(piece, None, count)
        yield chunk("", "stop", len(pieces) + 1)


def chunk(text: str, finish_reason: str | None, count: int) -> Chunk:
    statistics = Statistics(prompt_tokens=5, cached_tokens=0, tokens=count, decode_s=count / 10)
    return Chunk(text=text, token=1, logprob=0.0, finish_reason=finish_reason, statistics=statistics)


def call_text(name: str, **arguments: JSON) -> str:
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments})}\n{CLOSE}"


def desktop(root: Path, **options: Callable[[Path], None]) -> Desktop:
    return Desktop(root, notify=lambda text: None, start=options.get("start"))


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def notices(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def content(message: Message) -> str:
    return str(message["content"])


# --- calculator

NUMBERS = st.integers(-(10**6), 10**6).map(str) | st.floats(-1e6, 1e6).map(repr)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        )
        | inner.map(lambda operand: f"-({operand})")
        | inner.map(lambda operand: f"abs({operand})")
    ),
    max_leaves=8,
)


@given(EXPRESSIONS.filter(lambda expression: len(expression) <= 300))
def test_the_calculator_agrees_with_python(expression: str) -> None:
    try:
        expected = eval(expression, {"abs": abs, "__builtins__": {}})
    except ArithmeticError:
        with pytest.raises(ValueError, match="cannot be computed"):
            calculate(expression)
        return
    found = calculate(expression)
    assert type(found) is type(expected)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@given(st.text() | st.text("0123456789+-*/%(). eabsqrtpi", max_size=40))
def test_the_calculator_gives_a_number_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(calculate(text), int | float)


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "().__class__", "open('x')", "a", "'a' * 9", "[1]", "True", "1 if 2 else 3", "lambda: 1",
     "9**9**9", "2**4096", "10**400 * 10**400 * 10**400 * 10**400", "(-8)**0.5", "1/0", "sqrt(-1)", "", "\0", "(" * 250,
     "1 + " * 200 + "1"],
)  # fmt: skip
def test_the_calculator_refuses(expression: str) -> None:
    with pytest.raises(ValueError, match=r"expression|understood|too large|real|domain|computed"):
        calculate(expression)


def test_powers_are_exact_up_to_the_limit() -> None:
    assert calculate("2**4095") == 2**4095
    assert calculate("(-3)**5 + 2**-1") == -242.5


# --- calls


@given(
    st.lists(st.text("ab <tool_cal/>\n", max_size=30) | st.just(call_text("f", x=1)), max_size=5).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_a_reply_in_pieces_is_read_like_the_whole(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces, whole = CallReader(), CallReader()
    shown = "".join(pieces.push(text[a:b]) for a, b in itertools.pairwise(places)) + pieces.finish()
    assert shown == whole.push(text) + whole.finish()
    assert pieces.calls == whole.calls


@given(st.text(max_size=50).filter(lambda text: OPEN not in text))
def test_text_without_a_call_is_shown_whole(text: str) -> None:
    reader = CallReader()
    assert "".join(map(reader.push, text)) + reader.finish() == text
    assert reader.calls == []


def test_text_around_calls_is_shown_and_an_open_call_counts() -> None:
    reader = CallReader()
    shown = reader.push(f"Well. {call_text('f', x=1)} And {OPEN}" + '{"name": "g"}') + reader.finish()
    assert shown == "Well.  And "
    assert reader.calls == [Call("f", {"x": 1}), Call("g")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "no JSON"),
        ("[]", "an object"),
        ('{"name": 1}', "an object"),
        ('{"name": "f", "arguments": "x"}', "a str, expected an object"),
        ('{"name": "f", "arguments": {"x": 1, "x": 2}}', "'x' is there twice"),
        ("[" * 100_000, "."),
    ],
)
def test_a_bad_call_says_what_is_wrong(text: str, problem: str) -> None:
    assert problem in read_call(text).problem


@given(st.text())
def test_no_text_of_a_call_raises(text: str) -> None:
    assert isinstance(read_call(text), Call)


PARAMETERS: dict[str, JSON] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"},
                   "how": {"type": "string", "enum": ["a", "b"]}},
    "required": ["n"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "'n' is missing"),
        ({"n": 1, "y": 2}, "no argument 'y'"),
        ({"n": "1"}, 'is "1", expected a integer'),
        ({"n": True}, "is true"),
        ({"n": 1.5}, "is 1.5"),
        ({"n": 1, "x": None}, "is null"),
        ({"n": 1, "on": 0}, "is 0"),
        ({"n": 1, "how": "c"}, "expected one of"),
    ],
)
def test_arguments_are_held_against_the_schema(arguments: dict[str, JSON], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_arguments(arguments, PARAMETERS)


def test_right_arguments_pass() -> None:
    check_arguments({"n": 1, "x": 2, "on": False, "how": "a"}, PARAMETERS)


# --- tools


def test_the_schemas_hold_only_what_is_checked(tmp_path: Path) -> None:
    tools = desktop(tmp_path).tools()
    for tool in tools.values():
        function = cast("dict[str, JSON]", tool.schema["function"])
        parameters = cast("dict[str, dict[str, dict[str, str]]]", function["parameters"])
        assert parameters.keys() <= {"type", "properties", "required"}
        for schema in parameters["properties"].values():
            assert schema.keys() <= {"type", "description", "enum"}
            assert schema["type"] in ("string", "number", "integer", "boolean")
    assert [name for name, tool in tools.items() if tool.has_side_effects] == ["open_file", "start_timer"]


def test_files_are_found_by_name_and_text_but_not_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "Budget.xlsx").write_bytes(b"\0")
    (tmp_path / "sub" / "notes.txt").write_text("one\nthe budget of May\n", encoding="utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "budget.txt").write_text("budget", encoding="utf-8")
    assert desktop(tmp_path).search_files("budget") == "Budget.xlsx\nsub/notes.txt:2: the budget of May"
    assert "No file has" in desktop(tmp_path).search_files("nothing")


def test_a_long_search_says_that_there_is_more(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"a{number}").touch()
    lines = desktop(tmp_path).search_files("a").splitlines()
    assert len(lines) == 21
    assert "there are more" in lines[-1]


def test_a_document_is_opened_and_what_runs_or_lies_outside_is_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("root/a.pdf", "root/run.sh", "root/page.html", "secret.txt"):
        (tmp_path / name).touch()
    opened: list[Path] = []
    tools = desktop(root, start=opened.append).tools()
    results = [
        outcome(Call("open_file", {"path": path}), tools, lambda call, tool: True)
        for path in (
            "a.pdf",
            "run.sh",
            "page.html",
            "../secret.txt",
            str(tmp_path / "secret.txt"),
            "none.txt",
            "\0.txt",
        )
    ]
    assert [ran for ran, _ in results] == [True, False, False, False, False, False, False]
    assert opened == [(root / "a.pdf").resolve()]


@pytest.mark.parametrize("minutes", [0, -1, 1e9, math.nan, math.inf])
def test_a_timer_without_sense_is_refused(minutes: float, tmp_path: Path) -> None:
    tools = desktop(tmp_path)
    with pytest.raises(ValueError, match="minutes"):
        tools.start_timer(minutes)
    assert tools.timers == []


def test_a_timer_tells_when_it_is_over_and_ends_with_the_desktop(tmp_path: Path) -> None:
    told: list[str] = []
    tools = Desktop(tmp_path, notify=told.append)
    tools.start_timer(1e-6)
    tools.timers[0].join(10)
    assert told == ["The timer of 1e-06 minutes is over."]
    tools.start_timer(60)
    assert tools.close() == 1


def test_system_information_has_no_empty_lines(tmp_path: Path) -> None:
    facts = dict(line.split(": ", 1) for line in desktop(tmp_path).get_system_info().splitlines())
    assert {"date and time", "system", "processor", "disk"} <= facts.keys()
    assert all(facts.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call("fly"), "there is no tool 'fly'; there are calculator"),
        (Call("?", problem="the call is no JSON"), "no JSON"),
        (Call("calculator", {"expression": 3}), "expected a string"),
        (Call("calculator", {"expression": "1/0"}), "division by zero"),
        (Call("start_timer", {"minutes": 5}), "declined"),
    ],
)
def test_what_goes_wrong_with_a_call_is_its_result(call: Call, message: str, tmp_path: Path) -> None:
    ran, result = outcome(call, desktop(tmp_path).tools(), lambda call, tool: not tool.has_side_effects)
    assert not ran
    assert message in result


def test_a_long_result_is_cut_and_says_so(tmp_path: Path) -> None:
    tool = Tool(lambda: "x" * 3000, False, {"function": {"parameters": {"properties": {}}}})
    assert tool.run(Call("f")).endswith("x\n(1000 more characters)")


# --- documents


@given(st.text(st.sampled_from("ab \n\t.é漢"), max_size=300), st.integers(1, 40))
def test_passages_are_together_the_text(text: str, size: int) -> None:
    passages = split(text, "a.txt", size)
    assert "".join(passage.text for passage in passages) == text
    assert all(0 < len(passage.text) <= size for passage in passages)
    lines = text.split("\n")
    for passage in passages:
        first = passage.text.lstrip("\n").split("\n")[0]
        assert first in lines[passage.line - 1]


def test_a_passage_knows_its_line() -> None:
    passages = split("# Head\n\nfirst\n\n\nsecond\nmore\n", "a.md", 12)
    assert [(passage.line, passage.text) for passage in passages] == [
        (1, "# Head\n\n"),
        (3, "first\n\n\n"),
        (6, "second\nmore\n"),
    ]


def test_the_best_passage_comes_first_and_the_rest_says_why_it_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Office\n\nThe Oslo office opens at nine.\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Backups run at night. The office is not part of them.\n", encoding="utf-8")
    (tmp_path / "c.pdf").write_bytes(b"%PDF")
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe\x00")
    documents = Documents.open(tmp_path)
    assert [passage.source for passage in documents.search("When does the Oslo office open?")] == ["a.md", "b.txt"]
    assert documents.search("zebra") == []
    assert [line.split(",")[0].split(";")[0] for line in documents.skipped] == [
        "c.pdf: no text file by its name",
        "d.txt: not UTF-8 text",
    ]


@pytest.mark.parametrize("texts", [[], [""], ["..."], ["the of and"]])
def test_documents_without_words_find_nothing(texts: list[str]) -> None:
    documents = Documents([Passage("a", 1, text) for text in texts])
    assert documents.search("the word") == []
    assert documents.search("") == []


def test_only_text_is_read(tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(5 << 20)
    for path, reason in ((large, "larger"), (tmp_path / "none.txt", "no such file"), (tmp_path, "no text file")):
        with pytest.raises(UnreadableFile, match=reason):
            read_text(path)


# --- history

MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text()})


@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_history_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[dict[str, JSON]]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "round" / "trip.json"
    file.unlink(missing_ok=True)
    history = History.open(file)
    for turn in turns:
        history.add(list(turn))
    assert History.open(file).turns == turns
    assert list(file.parent.iterdir()) == [file]  # no half-written file is left


def test_a_history_keeps_the_newest_turns(tmp_path: Path) -> None:
    history = History(tmp_path / "h.json", [[{"role": "user", "content": str(n)}] for n in range(MOST_TURNS)])
    assert history.add([{"role": "user", "content": "new"}]) == 1
    kept = History.open(tmp_path / "h.json").turns
    assert (len(kept), kept[0][0]["content"], kept[-1][0]["content"]) == (MOST_TURNS, "1", "new")
    history.clear()
    assert History.open(tmp_path / "h.json").turns == []


def test_a_failed_write_leaves_the_old_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(tmp_path / "h.json")
    history.add([{"role": "user", "content": "old"}])

    def fail(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        history.add([{"role": "user", "content": "new"}])
    assert History.open(tmp_path / "h.json").turns == [[{"role": "user", "content": "old"}]]
    assert list(tmp_path.iterdir()) == [tmp_path / "h.json"]


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b'{"version": 2, "turns": []}', b'{"version": 1, "turns": [[]]}',
     b'{"version": 1, "turns": [[{"role": "system", "content": "obey"}]]}',
     b'{"version": 1, "turns": [[{"role": "user"}]]}'],
)  # fmt: skip
def test_a_damaged_history_is_told_from_an_empty_one(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "h.json").write_bytes(data)
    with pytest.raises(DamagedHistory):
        History.open(tmp_path / "h.json")


# --- power


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n", encoding="utf-8")
    return folder


def test_power_is_energy_by_time_also_when_the_counter_turns_over(tmp_path: Path) -> None:
    package = write(tmp_path / "powercap/intel-rapl:0", name="package-0", energy_uj=900, max_energy_range_uj=1000)
    write(tmp_path / "powercap/intel-rapl:0:0", name="core", energy_uj=1, max_energy_range_uj=1000)
    clock = iter([0.0, 2.0, 10.0, 12.0])
    meter = PowerMeter(tmp_path, clock=lambda: next(clock))
    for after in (1000 - 400, 0):  # 700 and 400 microjoules
        meter.start()
        write(package, energy_uj=after)
        meter.stop()
    assert meter.take() == f"{1100e-6 / 4:.1f} W (processor)"
    assert meter.take() == ""


def test_a_counter_that_may_not_be_read_leaves_the_battery(tmp_path: Path) -> None:
    write(tmp_path / "powercap/intel-rapl:0", name="package-0")
    battery = write(tmp_path / "power_supply/BAT0", status="Discharging", power_now=9_500_000, capacity=81)
    meter = PowerMeter(tmp_path)
    meter.start()
    meter.stop()
    assert meter.take() == "9.5 W (battery)"
    assert battery_state(tmp_path) == "81 %, discharging"
    write(battery, status="Charging")  # then the number is what goes in
    assert battery_watts(tmp_path) is None
    assert meter.take() == ""


def test_a_battery_may_tell_current_and_voltage(tmp_path: Path) -> None:
    write(tmp_path / "power_supply/BAT1", status="Discharging", current_now=1_000_000, voltage_now=12_000_000)
    assert battery_watts(tmp_path) == pytest.approx(12.0)


def test_a_machine_that_tells_nothing_gives_nothing(tmp_path: Path) -> None:
    assert (PowerMeter(tmp_path).take(), battery_state(tmp_path)) == ("", "")


# --- the assistant


def test_a_call_runs_and_the_model_goes_on_with_its_result(tmp_path: Path) -> None:
    model = Scripted("Let me see. " + call_text("calculator", expression="6 * 7"), "It is 42.")
    assistant = Assistant(model, desktop(tmp_path).tools())
    events = list(assistant.answer("What is 6 * 7?"))
    assert ToolRun(Call("calculator", {"expression": "6 * 7"}), True, "42") in events
    assert text_of(events) == "Let me see. It is 42."
    assert model.prompts[1][-1] == {"role": "tool", "name": "calculator", "content": "42"}
    assert [message["role"] for message in assistant.history.turns[0]] == ["user", "assistant", "tool", "assistant"]
    done = events[-1]
    assert isinstance(done, Done)
    assert done.statistics.prompt_tokens == 10


def test_a_declined_call_is_told_to_the_model(tmp_path: Path) -> None:
    tools = desktop(tmp_path)
    model = Scripted(call_text("start_timer", minutes=5), "Fine.")
    events = list(Assistant(model, tools.tools(), allow=lambda call, tool: False).answer("timer"))
    assert content(model.prompts[1][-1]) == "error: the user declined the call."
    assert text_of(events) == "Fine."
    assert tools.timers == []


def test_rounds_of_calls_are_limited(tmp_path: Path) -> None:
    again = call_text("calculator", expression="1")
    model = Scripted(*[again] * 20)
    events = list(Assistant(model, desktop(tmp_path).tools()).answer("loop"))
    assert sum(isinstance(event, ToolRun) for event in events) == MOST_ROUNDS
    assert notices(events) == [f"stopped after {MOST_ROUNDS} rounds of tool calls, the model wants another"]
    assert isinstance(events[-1], Done)


def test_passages_go_to_the_model_and_not_into_the_history() -> None:
    model = Scripted("At nine.")
    assistant = Assistant(model, {})
    assistant.documents = Documents([Passage("a.md", 3, "The office opens at nine.\n")])
    events = list(assistant.answer("When does the office open?"))
    assert "[a.md:3]\nThe office opens at nine." in content(model.prompts[0][-1])
    assert assistant.history.turns[0][0] == {"role": "user", "content": "When does the office open?"}
    assert cast("Done", events[-1]).passages == (Passage("a.md", 3, "The office opens at nine.\n"),)


@given(st.lists(st.integers(1, 150), min_size=1, max_size=6), st.integers(80, 600))
def test_passages_never_fill_the_context_and_what_is_left_out_is_told(sizes: list[int], context: int) -> None:
    model = Scripted(context=context)  # it asserts that prompt and reply fit
    assistant = Assistant(model, {})
    passages = [Passage("a", n, f"office{n} office " + "x " * size) for n, size in enumerate(sizes, 1)]
    assistant.documents = Documents(passages)
    events = list(assistant.answer("office"))
    left_out = len(sizes) - len(cast("Done", events[-1]).passages)
    assert bool(left_out) == any("left out" in notice for notice in notices(events))


@given(st.lists(st.integers(1, 120), max_size=12))
def test_the_newest_turns_stay_and_the_user_is_told_of_the_others(sizes: list[int]) -> None:
    model = Scripted(context=300)
    turns: list[list[Message]] = [[{"role": "user", "content": f"q{n} " + "x " * size}] for n, size in enumerate(sizes)]
    events = list(Assistant(model, {}, history=History(None, turns)).answer("now"))
    kept = [content(message).split()[0] for message in model.prompts[0][1:-1]]
    assert kept == [f"q{n}" for n in range(len(sizes))][len(sizes) - len(kept) :]
    assert bool(len(kept) < len(sizes)) == any("oldest turns left out" in notice for notice in notices(events))


def test_a_question_that_is_too_long_is_an_error_and_not_cut() -> None:
    assistant = Assistant(Scripted(context=200), {})
    with pytest.raises(ContextFull, match="Ask for less"):
        list(assistant.answer("x " * 200))
    assert assistant.history.turns == []


def test_a_stopped_reply_runs_no_call_and_keeps_its_text(tmp_path: Path) -> None:
    cancel = Cancel()
    assistant = Assistant(Scripted("Some text. " + call_text("calculator", expression="1")), desktop(tmp_path).tools())
    events: list[Event] = []
    for event in assistant.answer("q", cancel):
        events.append(event)
        cancel.cancel()
    assert not any(isinstance(event, ToolRun) for event in events)
    assert notices(events) == ["stopped"]
    assert assistant.history.turns[0][-1]["content"] == "Som"


def test_a_turn_stopped_before_any_text_is_not_remembered() -> None:
    cancel = Cancel()
    cancel.cancel()
    assistant = Assistant(Scripted("text"), {})
    assert isinstance(list(assistant.answer("q", cancel))[-1], Done)
    assert assistant.history.turns == []


@given(st.integers(1, 3000), st.integers(200, 800))
def test_a_long_document_is_summarised_part_by_part(words: int, context: int) -> None:
    model = Scripted(*["short"] * 1000, context=context)
    assistant = Assistant(model, {})
    file = Written("word " * words)
    events = list(assistant.summarise(cast("Path", file)))
    assert text_of(events) == "short"  # the parts' own summaries are not shown
    assert len(notices(events)) == len(model.prompts) - 1
    read = " ".join(content(prompt[0]) for prompt in model.prompts)
    assert read.count("word") == words  # every word was read once
    assert assistant.history.turns[0][-1]["content"] == "short"


def test_a_long_summary_of_every_part_still_comes_to_an_end() -> None:
    class Wordy(Scripted):
        """Writes as much as it may."""

        def stream(self, prompt: Sequence[Message], *, max_tokens: int | None = None, **_: object) -> Iterator[Chunk]:
            yield chunk("w " * (max_tokens or 0), "length", 1)

    events = list(Assistant(Wordy(context=400), {}).summarise(cast("Path", Written("word " * 5000))))
    assert isinstance(events[-1], Done)


def test_an_empty_document_has_no_summary() -> None:
    with pytest.raises(UnreadableFile, match="no text"):
        list(Assistant(Scripted(), {}).summarise(cast("Path", Written(" \n"))))


def test_a_context_too_small_to_summarise_is_said() -> None:
    with pytest.raises(ContextFull, match="left for the text"):
        list(Assistant(Scripted(context=100), {}).summarise(cast("Path", Written("word"))))


class Written:
    """A text file without a disk."""

    name, suffix = "a.txt", ".txt"

    def __init__(self, text: str) -> None:
        self._text = text
        self.st_size = len(text)

    def is_file(self) -> bool:
        return True

    def stat(self) -> Written:
        return self

    def read_text(self, encoding: str) -> str:
        return self._text
