"""The parts of the laptop assistant: calculator, calls, tools, documents, history, power."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm import ToolCall
from embedllm.text.function_schema import JSON

pytest.importorskip("bm25s")
from samples.npu_assistant.calculator import calculate
from samples.npu_assistant.history import MOST_TURNS, DamagedHistory, History
from samples.npu_assistant.power import PowerMeter, battery_state, battery_watts
from samples.npu_assistant.retrieval import Documents, Passage, UnreadableFile, read_text, split
from samples.npu_assistant.tools import Desktop, Tool, outcome


def call(name: str, problem: str = "", **arguments: JSON) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=arguments, problem=problem)


def desktop(root: Path, **options: Callable[[Path], None]) -> Desktop:
    return Desktop(root, notify=lambda text: None, start=options.get("start"))


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
        outcome(call("open_file", path=path), tools, lambda call, tool: True)
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
    tools.timers[0].join(120)
    assert told == ["The timer of 1e-06 minutes is over."]
    tools.start_timer(60)
    assert tools.close() == 1


def test_system_information_has_no_empty_lines(tmp_path: Path) -> None:
    facts = dict(line.split(": ", 1) for line in desktop(tmp_path).get_system_info().splitlines())
    assert {"date and time", "system", "processor", "disk"} <= facts.keys()
    assert all(facts.values())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (call("fly"), "there is no tool 'fly'; there are calculator"),
        (call("", problem="the call is no JSON"), "no JSON"),
        (call("calculator", expression=3), "expected string"),
        (call("calculator", expression="1/0"), "division by zero"),
        (call("start_timer", minutes=5), "declined"),
    ],
)
def test_what_goes_wrong_with_a_call_is_its_result(asked: ToolCall, message: str, tmp_path: Path) -> None:
    ran, result = outcome(asked, desktop(tmp_path).tools(), lambda call, tool: not tool.has_side_effects)
    assert not ran
    assert message in result


def test_a_long_result_is_cut_and_says_so(tmp_path: Path) -> None:
    tool = Tool(lambda: "x" * 3000, False, {"function": {"parameters": {"properties": {}}}})
    assert tool.run(call("f")).endswith("x\n(1000 more characters)")


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

MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text()},
    optional={"tool_calls": st.just([{"id": "c1", "function": {"name": "f", "arguments": {"x": 1}}}])},
)


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
     b'{"version": 1, "turns": [[{"role": "user"}]]}',
     b'{"version": 1, "turns": [[{"role": "assistant", "content": "", "tool_calls": [1]}]]}'],
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
