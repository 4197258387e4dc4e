"""The laptop assistant with the demo model, and as a program."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import embedllm
from tests.samples.test_npu_assistant import notices, text_of
from tests.samples.test_npu_parts import call, desktop

pytest.importorskip("bm25s")
from samples.npu_assistant.assistant import Assistant
from samples.npu_assistant.history import History
from samples.npu_assistant.reply import Done, ToolRun
from samples.npu_assistant.retrieval import Documents
from samples.npu_assistant.screen import Screen
from samples.npu_assistant.terminal import main, stopped_by_ctrl_c

ROOT = Path(__file__).parents[2]
QUESTION = "What is 342 times 61?"  # the demo calls the calculator for it
ANSWER = "342 * 61 = 20862"


def skip_without(device: str) -> None:
    """Skips a test, with the reason, where this installation lacks the device."""
    found = next((found for found in embedllm.devices() if found.name == device), None)
    if found is None or not found.available:
        pytest.skip(f"{device}: {found.reason if found else 'this version does not have it'}")


@pytest.fixture(scope="module")
def demo() -> Iterator[embedllm.Model]:
    with embedllm.load("demo", device="cpu") as llm:
        yield llm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "sub").mkdir(parents=True)
    (folder / "offices.md").write_text("# Offices\n\nThe Oslo office opens at nine.\n", encoding="utf-8")
    (folder / "sub" / "backup.txt").write_text("Backups run every night at two.\n", encoding="utf-8")
    (folder / "scan.pdf").write_bytes(b"%PDF")
    return folder


def run(*arguments: str | Path, said: str = "") -> Result:
    return CliRunner().invoke(main, ["--device", "cpu", *map(str, arguments)], input=said, env={"COLUMNS": "200"})


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "npu-on-cpu"])
def test_the_demo_calls_the_calculator_and_says_its_result(device: str, tmp_path: Path) -> None:
    skip_without(device)
    with embedllm.load("demo", device=device) as llm:
        events = list(Assistant(llm, desktop(tmp_path).tools()).answer(QUESTION))
    (run,) = [event for event in events if isinstance(event, ToolRun)]
    assert (str(run.call), run.ran, run.result) == ("calculator(expression='342 * 61')", True, "20862")
    assert text_of(events).strip() == ANSWER
    done = events[-1]
    assert isinstance(done, Done)
    assert done.statistics.decode_tokens_s > 0


@pytest.mark.slow
def test_the_right_passage_is_read_first_and_named_below_the_reply(folder: Path) -> None:
    result = run("--docs", folder, "--ask", "When do the backups of the Oslo office run?")
    assert "read: offices.md:1, sub/backup.txt:1" in result.stderr
    assert [passage.source for passage in Documents.open(folder).search("When do backups run?")] == ["sub/backup.txt"]


@pytest.mark.slow
def test_a_long_talk_with_the_demo_never_overflows(demo: embedllm.Model) -> None:
    turns: list[list[embedllm.Message]] = [
        [{"role": "user", "content": f"{n} " + "show the disk usage " * 20}, {"role": "assistant", "content": "du -h"}]
        for n in range(40)
    ]
    events = list(Assistant(demo, {}, history=History(None, turns)).answer("hello"))
    assert [notice.split(":")[0] for notice in notices(events)] == ["the context is full"]


@pytest.mark.slow
def test_the_demo_summarises_a_text_that_is_longer_than_its_context(demo: embedllm.Model, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("The Oslo office opens at nine. It has a kitchen.\n\n" * 180, encoding="utf-8")
    assert len(demo.tokenizer.encode(file.read_text(), special=False)) > demo.context
    events = list(Assistant(demo, {}).summarise(file))
    assert notices(events)[0] == "reading part 1 of 2"
    assert text_of(events).strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "where"), [(["samples/npu_assistant"], ROOT), (["-m", "npu_assistant"], ROOT / "samples")]
)
def test_the_program_answers_on_stdout_and_says_the_rest_on_stderr(start: list[str], where: Path, folder: Path) -> None:
    command = [sys.executable, *start, "--device", "cpu", "--docs", folder, "--ask", QUESTION, "--run-read-only"]
    result = subprocess.run(
        list(map(str, command)), cwd=where, env={**os.environ}, capture_output=True, text=True, check=False, timeout=120
    )
    assert (result.returncode, result.stdout) == (0, ANSWER + "\n"), result.stderr
    for line in ("demo on cpu", "2 passages of 2 files", "skipped scan.pdf", "-> 20862", "tokens/s"):
        assert line in result.stderr


def test_a_device_that_is_passed_over_is_named_with_the_reason() -> None:
    result = CliRunner().invoke(main, ["--device", "none-such,cpu", "--ask", "hello"])
    assert result.exit_code == 0
    assert "not on none-such: not found" in result.stderr


def test_without_a_terminal_nothing_runs_that_was_not_allowed() -> None:
    result = run("--ask", QUESTION)
    assert result.exit_code == 0
    assert "declined, as nobody can be asked: calculator(expression='342 * 61')" in result.stderr


@pytest.mark.slow
def test_the_conversation_goes_on_after_a_restart_until_new(tmp_path: Path) -> None:
    file = tmp_path / "data" / "conversation.json"
    first = run("--history", file, said="hello\n/quit\nnot reached\n")
    assert (first.exit_code, first.stdout) == (0, "Hello! What would you like to do?\n")
    assert [message["role"] for message in json.loads(file.read_text())["turns"][0]] == ["user", "assistant"]
    second = run("--history", file, said="/new\n")
    assert "turns remembered: 1" in second.stderr
    assert "turns remembered" not in run("--history", file, said="").stderr


def test_a_damaged_conversation_is_put_aside_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "conversation.json"
    file.write_text("{half", encoding="utf-8")
    result = run("--history", file, said="hello\n")
    assert "is no JSON" in result.stderr
    assert (tmp_path / "conversation.json.damaged").read_text(encoding="utf-8") == "{half"
    assert len(History.open(file).turns) == 1


def test_commands_work_and_slips_are_lines(folder: Path, tmp_path: Path) -> None:
    said = f"/help\n/tools\n/docs {folder}\n/summarise sub/backup.txt\n/docs\n/summarise scan.pdf\n/foo\n"
    result = run("--history", tmp_path / "h.json", said=said)
    assert result.exit_code == 0
    for line in (
        "/summarise FILE",
        "open_file: Open a file in its application. (always asks)",
        "2 passages",
        "error: '' is no folder",
        "scan.pdf': no text file by its name",
        "error: there is no command '/foo'",
    ):
        assert line in result.stderr
    assert result.stdout.strip()


def test_an_error_at_the_start_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--model", str(tmp_path / "none"), "--ask", "hello"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr


def test_ctrl_c_cancels_and_a_second_one_interrupts() -> None:
    """By its handler, not by a signal to the process that runs the tests."""
    before = signal.getsignal(signal.SIGINT)
    with stopped_by_ctrl_c() as cancel:
        pressed = signal.getsignal(signal.SIGINT)
        assert callable(pressed)
        pressed(signal.SIGINT, None)
        assert cancel.cancelled
        with pytest.raises(KeyboardInterrupt):
            pressed(signal.SIGINT, None)
    assert signal.getsignal(signal.SIGINT) == before


class Terminal(io.StringIO):
    """Text that counts as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "allowed"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_the_user_is_asked_and_only_yes_is_yes(
    typed: str, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    tool = desktop(tmp_path).tools()["start_timer"]
    screen = Screen(runs_read_only=True)  # which does not hold for what has side effects
    assert screen.allow(call("start_timer", minutes=5), tool) is allowed
    assert "run start_timer(minutes=5)?" in shown.getvalue()


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    Screen().note("\x1b]0;title\x07 \x9b2J")
    assert not set(shown.getvalue()) & set("\x07\x9b")
    assert "␛]0;title␇" in shown.getvalue()
