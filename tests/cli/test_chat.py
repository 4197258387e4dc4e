"""Chats: piped in, and typed at a terminal of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import embedllm
from embedllm.cli.commands.chat import Turn, read_turn
from embedllm.cli.main import cli
from embedllm.kv_cache.sequence_pool import CachedSequence
from embedllm.sampling.numpy_logits import NumpyLogits
from embedllm.types import Logits

MakePackage = Callable[..., Path]
LONG = 30000  # tokens: seconds of replying
DEADLINE = 120  # seconds


@pytest.fixture(scope="session")
def tiny(tiny_package: MakePackage) -> str:
    return str(tiny_package(max_position_embeddings=512))


def chat(model: str, *lines: str, options: tuple[str, ...] = ("--max-tokens", "6")) -> Result:
    return CliRunner().invoke(cli, ["chat", "--model", model, *options], input="\n".join(lines))


def replies(model: str, *said: str, system: str | None = None) -> list[str]:
    """What the library answers."""
    with embedllm.load(model) as llm, llm.conversation(system) as conversation:
        return [conversation.say(text, max_tokens=6).text for text in said]


def lines_of(texts: list[str]) -> str:
    return "".join(text + "\n" * (not text.endswith("\n")) for text in texts)


# --- what is typed


def turns(text: str) -> list[Turn]:
    source = io.StringIO(text)

    def read_line(prompt: str) -> str:
        line = source.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    found: list[Turn] = []
    with contextlib.suppress(EOFError):
        while True:
            found.append(read_turn(read_line))
    return found


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\\\nb\\\nc\nd\n", ["a\nb\nc", "d"]),
        ('"""\na\n\n b\\\n"""\nc\n', ["a\n\n b\\", "c"]),
        ('"""\n/reset\n"""\n', ["/reset"]),
        ('"""\nopen', ["open"]),  # the end of the input ends a block
        ("open\\\n", ["open\n"]),
        ('say """\n', ['say """']),
    ],
)
def test_lines_become_turns(typed: str, texts: list[str]) -> None:
    assert turns(typed) == [Turn(text, is_command=False) for text in texts]


def test_only_a_line_that_begins_with_a_slash_is_a_command() -> None:
    assert [turn.is_command for turn in turns('/help\n /usr\n"""\n/help\n"""\n')] == [True, False, False]


# --- piped in


@pytest.mark.slow
def test_two_turns_are_one_conversation(tiny: str) -> None:
    result = chat(tiny, "hello", "", "and you?")
    assert result.exit_code == 0
    assert result.stdout == lines_of(replies(tiny, "hello", "and you?"))
    assert result.stdout != lines_of(replies(tiny, "hello") + replies(tiny, "and you?"))
    assert result.stderr.splitlines() == ["(truncated after 6 tokens; increase --max-tokens)"] * 2


def test_a_program_of_its_own_does_the_same(tiny: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "embedllm", "chat", "--model", tiny, "--max-tokens", "6"],
        input=b"hello\nand you?\n",
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().replace("\r\n", "\n") == lines_of(replies(tiny, "hello", "and you?"))


@pytest.mark.slow
def test_reset_forgets_all_but_the_system_message(tiny: str) -> None:
    result = chat(tiny, "hello", "/reset", "hello", options=("--max-tokens", "6", "--system", "Be brief."))
    first, again = replies(tiny, "hello", system="Be brief."), replies(tiny, "hello", system="Be brief.")
    assert result.stdout == lines_of(first + again)
    assert first != replies(tiny, "hello")


def test_the_system_message_can_be_set_changed_and_removed(tiny: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.json" for n in range(4)]
    saves = [f"/save {path}" for path in files]
    result = chat(tiny, saves[0], "/system One", saves[1], "/system  Two words ", saves[2], "/system", saves[3])
    assert result.exit_code == 0
    contents = [[message["content"] for message in json.loads(path.read_text())] for path in files]
    assert contents == [[], ["One"], ["Two words"], []]


@pytest.mark.slow
def test_a_saved_conversation_goes_on(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "my chat.json"
    first = chat(tiny, "hello", f"/save {path}")
    assert first.exit_code == 0
    assert [message["role"] for message in json.loads(path.read_text(encoding="utf-8"))] == ["user", "assistant"]
    second = chat(tiny, f"/open {path}", "and you?")
    assert first.stdout + second.stdout == lines_of(replies(tiny, "hello", "and you?"))


@pytest.mark.slow
def test_what_is_no_conversation_is_not_loaded(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "other").write_text("something else")
    named = [tmp_path / name for name in ("other.json", "other", "none.json", "none")]
    result = chat(tiny, *(f"/open {path}" for path in named), "/open", "/save", f"/save {tmp_path / 'other'}", "hello")
    assert result.exit_code == 1
    assert result.stdout == lines_of(replies(tiny, "hello"))
    assert [line[:6] for line in result.stderr.splitlines()] == ["error:"] * 7 + ["(trunc"]
    assert (tmp_path / "other").read_text() == "something else"


@pytest.mark.slow
def test_a_conversation_saved_with_its_kv_goes_on_from_it(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "talk"
    first = chat(tiny, "hello", f"/save {path}", f"/save {path}")
    assert first.exit_code == 0
    second = chat(tiny, f"/open {path}", "and you?", options=("--max-tokens", "6", "--stats"))
    assert first.stdout + second.stdout == lines_of(replies(tiny, "hello", "and you?"))
    assert "of them cached" in second.stderr


@pytest.mark.slow
def test_a_chat_that_is_full_goes_on_when_it_is_told_how(tiny_package: MakePackage, tmp_path: Path) -> None:
    model, lines = str(tiny_package()), ["list all files"] * 5  # 128 tokens
    options = ("--max-tokens", "20")
    full = chat(model, *lines, options=options)
    assert "Or start a new conversation: /reset, or use --when-full drop-oldest." in full.stderr
    for policy in ("drop-oldest", "shift"):
        path = tmp_path / policy
        result = chat(model, *lines, f"/save {path}", "/stats", options=(*options, "--when-full", policy))
        assert result.exit_code == 0
        assert "(the context is full: " in result.stderr
        assert "; dropped: " in result.stderr
        again = chat(model, f"/open {path}", *lines[:1], options=options)  # it keeps its policy
        assert again.exit_code == 0, again.stderr


def test_an_unknown_command_is_not_sent_to_the_model(tiny: str) -> None:
    result = chat(tiny, "/restart now")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "unknown command '/restart'" in result.stderr


def test_exit_leaves_at_once(tiny: str) -> None:
    result = chat(tiny, "/exit", "hello")
    assert (result.exit_code, result.stdout) == (0, "")


def test_statistics_say_what_was_held_from_earlier(tiny: str) -> None:
    result = chat(tiny, "/stats", "hello", "/stats", "and you?", "/stats")
    said = [line for line in result.stderr.splitlines() if not line.startswith("(trunc")]
    assert said[0] == "(no reply yet)"
    assert "of 512 tokens after that reply" in said[2]
    assert "of them cached" in said[3]


def test_help_lists_every_command(tiny: str) -> None:
    listed = [line.split()[0] for line in chat(tiny, "/help").stderr.splitlines()]
    assert listed == ["/reset", "/system", "/save", "/open", "/image", "/stats", "/help", "/exit"]


@pytest.mark.slow
def test_a_full_context_is_said_and_the_conversation_goes_on(tiny_package: MakePackage) -> None:
    model = str(tiny_package())  # 128 tokens
    result = chat(model, "word " * 200, "hello", "/reset", "hello")
    assert result.exit_code == 1  # a script shall know that a turn failed
    assert "error: the prompt has" in result.stderr
    assert "Or start a new conversation: /reset" in result.stderr
    assert result.stdout == lines_of(replies(model, "hello") * 2)


def test_what_is_no_text_is_said_and_the_conversation_goes_on(tiny: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "embedllm", "chat", "--model", tiny, "--max-tokens", "6"],
        input=b"a \x80 byte\nhello\n/save ~nobody-of-this-name/x/y\n",
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "1"},
        check=False,
    )
    assert done.returncode == 1
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error:")]
    assert len(errors) == 2
    assert "lone surrogate U+DC80" in errors[0]
    assert "cannot write" in errors[1]
    assert done.stdout.decode().replace("\r\n", "\n") == lines_of(replies(tiny, "hello"))


@pytest.mark.slow
def test_a_device_that_gives_no_numbers_is_said_and_the_conversation_goes_on(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, calls = CachedSequence.feed, iter(range(100))

    def broken(sequence: CachedSequence, tokens: Sequence[int]) -> Logits:
        logits = feed(sequence, tokens)
        return logits if next(calls) else NumpyLogits(np.full(logits.size, np.nan, np.float32))

    monkeypatch.setattr(CachedSequence, "feed", broken)
    result = chat(tiny, "hello", "hello")
    assert result.exit_code == 1
    assert "error: on 'cpu', logits of the model are not finite numbers" in result.stderr
    monkeypatch.undo()
    assert result.stdout == lines_of(replies(tiny, "hello"))


def test_a_reply_that_fills_the_context_is_said(tiny_package: MakePackage) -> None:
    result = chat(str(tiny_package()), "hello", options=("--max-tokens", "500"))
    assert "the context of 128 tokens is full; /reset starts a new conversation" in result.stderr


def test_a_model_without_a_template_cannot_chat(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.model.model.Model.can_chat", False)
    result = chat(tiny, "hello")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has no chat template" in result.stderr


# --- typed


class Terminal:
    """`embedllm chat` at a terminal of its own."""

    def __init__(self, state: Path, *arguments: str, term: str = "dumb") -> None:
        """state: a folder in place of the user's, where the history is. term: its kind."""
        import pty

        # the child makes the terminal its own, so that its Ctrl-C key sends SIGINT to it
        code = (
            "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "runpy.run_module('embedllm', run_name='__main__')"
        )
        self.screen, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "chat", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": term, "XDG_STATE_HOME": str(state)},
        )
        os.close(theirs)
        self._unread = b""

    def type(self, keys: str) -> None:
        os.write(self.screen, keys.encode())

    def read_until(self, text: str) -> str:
        """What appears, up to this text; what has come after it is kept for the next call."""
        while (end := self._unread.find(text.encode())) < 0:
            ready, _, _ = select.select([self.screen], [], [], DEADLINE)
            assert ready, f"{text!r} did not appear, only {self._unread[-300:]!r}"
            self._unread += os.read(self.screen, 4096)
        end += len(text.encode())
        shown, self._unread = self._unread[:end], self._unread[end:]
        return shown.decode(errors="replace")

    def wait_for_more(self) -> None:
        """Until something appears after what was read."""
        if not self._unread:
            self._unread = os.read(self.screen, 4096)

    def clear_line(self) -> None:
        """Presses Ctrl-C until there is a new prompt.

        CPython's readline forgets a signal that comes after it has shown a character and before it waits for the next
        one, which nobody's fingers can do, but this test can.
        """
        until = time.monotonic() + DEADLINE
        self.type("\x03")
        while not select.select([self.screen], [], [], 0.3)[0]:
            assert time.monotonic() < until, "no prompt after Ctrl-C"
            self.type("\x03")
        self.read_until("\r\n> ")

    def press_ctrl_c(self) -> str:
        """What appears within a moment; nothing, when the press was forgotten (see clear_line)."""
        self.type("\x03")
        time.sleep(0.3)
        return os.read(self.screen, 4096).decode() if select.select([self.screen], [], [], 0.7)[0] else ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)


@pytest.fixture
def terminal(tiny_package: MakePackage, tmp_path: Path) -> Iterator[Terminal]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored here is ignored in there
    opened = Terminal(tmp_path, "--model", str(tiny_package(max_position_embeddings=LONG)), "--max-tokens", str(LONG))
    yield opened
    opened.close()
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="terminals of Unix")
class TestTyped:
    def test_ctrl_c_stops_the_reply_and_the_chat_goes_on(self, terminal: Terminal) -> None:
        terminal.read_until("/help lists the commands.\r\n> ")
        for _ in range(2):
            terminal.type("hello\r")
            terminal.read_until("hello\r\n")
            terminal.wait_for_more()  # the reply has begun
            terminal.type("\x03")
            terminal.read_until("(stopped after ")
            terminal.read_until("> ")
        terminal.type("/exit\r")
        assert terminal.process.wait(DEADLINE) == 0

    def test_ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_leaves(self, terminal: Terminal) -> None:
        terminal.read_until("> ")
        terminal.type("half a li")
        terminal.read_until("half a li")
        terminal.clear_line()
        terminal.type('"""\r')
        terminal.read_until(". ")
        terminal.type("half a block")
        terminal.read_until("half a block")
        terminal.clear_line()
        terminal.type("/stats\r")
        terminal.read_until("(no reply yet)")
        terminal.read_until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(DEADLINE) == 0

    def test_ctrl_c_is_not_written_into_the_reply(self, terminal: Terminal) -> None:
        terminal.read_until("> ")
        terminal.type("hello\r")
        terminal.read_until("hello\r\n")
        terminal.wait_for_more()
        terminal.type("typed\x03")
        shown = terminal.read_until("(stopped after ")
        assert "^C" not in shown
        assert "typed" not in shown

    def test_the_second_ctrl_c_at_the_prompt_names_the_way_out(self, terminal: Terminal) -> None:
        terminal.read_until("> ")
        shown, hint, until = "", "(Ctrl-D or /exit leaves)", time.monotonic() + DEADLINE
        while hint not in shown:
            assert time.monotonic() < until, f"{hint!r} did not appear, only {shown!r}"
            shown += terminal.press_ctrl_c()
        assert "\r\n> " in shown.partition(hint)[0]  # the first one clears the line

    def test_pasted_lines_are_one_message_and_one_entry_of_the_history(self, tiny: str, tmp_path: Path) -> None:
        import readline

        if "libedit" in (readline.__doc__ or ""):
            pytest.skip("libedit knows no bracketed paste")
        saved = tmp_path / "saved.json"
        arguments = ("--model", tiny, "--max-tokens", "4")
        for pasted in ("explain this:\rls -la\ndu -sh *", "/usr\rC:\\new"):
            opened = Terminal(tmp_path, *arguments, term="xterm-256color")
            opened.read_until("> ")
            opened.type(f"\x1b[200~{pasted}\x1b[201~\r")
            opened.read_until("increase --max-tokens)")
            opened.type(f"/save {saved}\r/exit\r")
            assert opened.process.wait(DEADLINE) == 0
            opened.close()
            said, _ = json.loads(saved.read_text(encoding="utf-8"))
            assert said == {"role": "user", "content": pasted.replace("\r", "\n")}
        again = Terminal(tmp_path, *arguments, term="xterm-256color")
        again.read_until("> ")
        again.type("\x10" * 3 + "\r")  # before "/exit" and "/save ..."
        again.read_until("increase --max-tokens)")
        again.type(f"/save {saved}\r/exit\r")
        assert again.process.wait(DEADLINE) == 0
        again.close()
        assert json.loads(saved.read_text(encoding="utf-8"))[0]["content"] == "/usr\nC:\\new"

    def test_tab_completes_commands_and_the_next_chat_has_what_was_typed(self, tiny: str, tmp_path: Path) -> None:
        first = Terminal(tmp_path, "--model", tiny)
        first.read_until("> ")
        first.type("/stats\r")
        first.read_until("(no reply yet)")
        first.type("/qu\t\r")
        assert first.process.wait(DEADLINE) == 0
        first.close()
        history = tmp_path / "embedllm" / "chat_history"
        assert history.read_text().splitlines() == ["/stats", "/quit"]
        assert history.stat().st_mode & 0o777 == 0o600
        second = Terminal(tmp_path, "--model", tiny)
        second.read_until("> ")
        second.type("\x10\x10\r")  # Ctrl-P twice: the line before the last one
        second.read_until("(no reply yet)")
        second.close()
