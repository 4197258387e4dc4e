"""The extension for Writer, in a real LibreOffice without a display: what the worker writes is what the document has.

Skipped where LibreOffice or a Python with uno is missing; .ci/libreoffice.sh installs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker_host import ROOT, Host

SAMPLE = ROOT / "samples" / "directml_plugin"
sys.path.insert(0, str(SAMPLE / "extension" / "pythonpath"))  # as the office does
from samples.directml_plugin.build import build  # noqa: E402
from samples.directml_plugin.extension.pythonpath.embedllm_actions import ACTIONS, request  # noqa: E402
from samples.directml_plugin.extension.pythonpath.embedllm_settings import DEFAULT, Settings  # noqa: E402

PYTHON = "/usr/bin/python3"  # the one that Debian's python3-uno is for
TEXT = "One line.\nThe cat sat on the mat. It was big.\nThe last line."
CAT = "The cat sat on the mat."
LONG = "1 2 3 4 5 6 7 8 9 10 11 12"  # the demo goes on with this for ever
START = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
sys.argv = ["embedllm", "worker"]
from embedllm.cli.main import main
{{}}
main()
"""
WORKER = [sys.executable, "-c", START.format("")]  # of this checkout, wherever the office starts it

# Waits before it goes on with a reply, or with loading, until a file is there.
GATED = """
import time
from pathlib import Path
from embedllm.model.model import Model
stream = Model.stream
def gated(*arguments, **options):
    for number, chunk in enumerate(stream(*arguments, **options)):
        yield chunk
        while number == 4 and not Path({gate!r}).exists():
            time.sleep(0.01)
Model.stream = gated
"""
ENDLESS = """
import time
from pathlib import Path
from embedllm.loading import load as opening
def open_model(*arguments, **options):
    Path({started!r}).touch()
    time.sleep(3600)
opening.open_model = open_model
"""


def missing() -> str:
    """Why this can't be run here; "" when it can."""
    if shutil.which("soffice") is None:
        return "there is no soffice; .ci/libreoffice.sh installs it"
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", "import uno"], capture_output=True).returncode:
        return f"{PYTHON} has no uno; .ci/libreoffice.sh installs it"
    return ""


class Writer:
    """A LibreOffice with the extension; its methods are the driver's (tests/support/libreoffice_driver.py)."""

    def __init__(self, process: subprocess.Popen[str], settings: Path, opened: Path) -> None:
        """opened: what the desktop was last told to open."""
        self._process = process
        self._settings = settings
        self.opened = opened
        assert self.answer() == "ready"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def do(**arguments: object) -> Any:  # noqa: ANN401  # JSON
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
            self._process.stdin.flush()
            return self.answer()

        return do

    def answer(self) -> Any:  # noqa: ANN401  # JSON
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver of LibreOffice ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def write(self, **given: object) -> dict[str, Any]:
        """Writes the settings file, right or wrong; its values."""
        values = {"worker": WORKER, "devices": ["cpu"], "max_tokens": 24, **given}
        self._settings.write_text(json.dumps(values), encoding="utf-8")
        return values

    def set(self, **given: object) -> Settings:
        return Settings(**{**vars(DEFAULT), **self.write(**given)})

    def run(self, command: str) -> tuple[bool, str]:
        """Chooses a command and waits for its end."""
        assert self.start(command=command)
        is_well, text = self.result(command=command)
        return is_well, text


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("office")
    profile, extension = folder / "profile", build(folder / "embedllm_writer.oxt")
    (profile / "user").mkdir(parents=True)
    command = [PYTHON, str(ROOT / "tests" / "support" / "libreoffice_driver.py"), str(profile), str(extension)]
    programs, part, opened = folder / "bin", folder / "part", folder / "opened"
    programs.mkdir()
    (programs / "xdg-open").write_text(f"#!/bin/sh\necho \"$1\" >'{part}' && mv '{part}' '{opened}'\n")
    (programs / "xdg-open").chmod(0o755)
    # as in an activated environment
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    # LibreOffice takes the system's xdg-open where there is one, which without a desktop hands what it gets to BROWSER
    environment = {**os.environ, "PATH": path, "BROWSER": str(programs / "xdg-open")}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Writer(process, profile / "user" / "embedllm_writer.json", opened)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A worker of our own, to say what the office's must have said."""
    with Host() as host:
        host.ask("load", "l", model="demo", device="cpu")
        yield host


def expected(host: Host, command: str, text: str, settings: Settings) -> str:
    method, params = request(ACTIONS[command], text, settings)
    return host.ask(method, f"{command} {len(host.seen)}", **params)["text"]


# --- the actions


def test_rewrite_takes_the_place_of_the_selection_in_one_undo_step(writer: Writer, host: Host) -> None:
    settings = writer.set()
    writer.open(text=TEXT)
    writer.select(text=CAT)
    reply = expected(host, "rewrite", CAT, settings)
    assert writer.run("rewrite") == (True, reply)
    assert writer.text() == TEXT.replace(CAT, reply)
    assert writer.undo_titles() == ["Rewrite"]
    writer.undo()
    assert writer.text() == TEXT
    assert writer.undo_titles() == []
    writer.redo()
    assert writer.text() == TEXT.replace(CAT, reply)


def test_a_summary_is_a_paragraph_behind_the_selection(writer: Writer, host: Host) -> None:
    settings = writer.set()
    writer.open(text=TEXT)
    writer.select(text=TEXT)
    reply = expected(host, "summarise", TEXT, settings)
    assert writer.run("summarise") == (True, reply)
    assert writer.text() == f"{TEXT}\n{reply}"
    assert writer.paragraphs() == len(writer.text().split("\n"))  # paragraphs, not line breaks
    writer.undo()
    assert writer.text() == TEXT


def test_continue_goes_on_behind_the_selection(writer: Writer, host: Host) -> None:
    settings = writer.set()
    writer.open(text=TEXT)
    writer.select(text=CAT)
    reply = expected(host, "continue", CAT, settings)
    assert writer.run("continue") == (True, reply)
    assert writer.text() == TEXT.replace(CAT, CAT + reply)
    writer.undo()
    assert writer.text() == TEXT


def test_continue_without_a_selection_takes_the_paragraph_before_the_cursor(writer: Writer, host: Host) -> None:
    settings = writer.set()
    writer.open(text=TEXT)
    writer.select(text="")
    reply = expected(host, "continue", "The last line.", settings)
    assert writer.run("continue") == (True, reply)
    assert writer.text() == TEXT + reply


def test_a_reply_that_is_cut_off_is_said(writer: Writer, host: Host) -> None:
    settings = writer.set(max_tokens=3)
    writer.open(text=TEXT)
    writer.select(text=CAT)
    reply = expected(host, "rewrite", CAT, settings)
    assert writer.run("rewrite") == (True, reply)
    assert writer.complains()


# --- while it runs


def test_text_comes_as_it_is_made_and_cancel_takes_it_back(writer: Writer) -> None:
    writer.set(max_tokens=1500)
    writer.open(text=LONG)
    writer.select(text=LONG)
    assert not writer.watch(command="cancel")
    assert writer.watch(command="rewrite")
    writer.start(command="continue")
    partial = writer.longer(size=len(LONG) + 40)
    assert partial.startswith(LONG)
    assert len(writer.longer(size=len(partial))) > len(partial)  # and more of it
    assert writer.selected() == ""  # what is typed now replaces nothing
    assert writer.enabled(command="cancel")
    assert not writer.enabled(command="rewrite")
    assert writer.run("cancel") == (True, "cancel")
    assert writer.result(command="continue") == [True, "cancelled"]
    assert writer.text() == LONG
    assert not writer.enabled(command="cancel")
    assert not writer.complains()


def test_the_original_stays_until_the_reply_is_whole(writer: Writer, host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    settings = writer.set(worker=[sys.executable, "-c", START.format(GATED.format(gate=str(gate)))])
    writer.open(text=TEXT)
    writer.select(text=CAT)
    reply = expected(host, "rewrite", CAT, settings)
    writer.start(command="rewrite")
    partial = writer.longer(size=len(TEXT))
    assert partial.startswith(f"One line.\n{CAT}{reply[:3]}")
    assert not partial.startswith(TEXT.replace(CAT, CAT + reply))
    writer.press_undo()  # of no effect while the step is open
    gate.touch()
    assert writer.result(command="rewrite") == [True, reply]
    assert writer.text() == TEXT.replace(CAT, reply)
    writer.press_undo()
    assert writer.text() == TEXT


def test_one_reply_at_a_time(writer: Writer) -> None:
    writer.set(max_tokens=1500)
    writer.open(text=LONG)
    writer.select(text=LONG)
    writer.start(command="continue")
    writer.longer(size=len(LONG))
    is_well, text = writer.run("rewrite")
    assert not is_well
    assert "being written" in text
    writer.run("cancel")
    assert writer.result(command="continue") == [True, "cancelled"]


def test_a_document_that_is_closed_ends_its_reply(writer: Writer, host: Host) -> None:
    writer.set(max_tokens=1500)
    writer.open(text=LONG)
    writer.select(text=LONG)
    writer.start(command="continue")
    writer.longer(size=len(LONG))
    writer.close()
    is_well, text = writer.result(command="continue")
    assert not is_well
    assert "could not be changed" in text
    settings = writer.set()
    writer.open(text=TEXT)
    writer.select(text=CAT)
    assert writer.run("rewrite") == (True, expected(host, "rewrite", CAT, settings))


def test_cancel_does_not_wait_for_a_model_that_loads(writer: Writer, tmp_path: Path) -> None:
    started = str(tmp_path / "started")
    writer.set(worker=[sys.executable, "-c", START.format(ENDLESS.format(started=started))])
    writer.open(text=TEXT)
    writer.select(text=CAT)
    writer.start(command="rewrite")
    writer.exists(path=started)
    writer.run("cancel")
    assert writer.result(command="rewrite") == [True, "cancelled"]
    assert writer.text() == TEXT
    assert writer.undo_titles() == []


# --- errors: each leaves the document alone, and says what to do


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "no/such/model"}, "no/such/model"),
        ({"devices": ["quantum"]}, "quantum"),
        ({"worker": ["/no/such/embedllm", "worker"]}, 'pip install ".[webgpu]"'),
        ({"worker": [sys.executable, "-c", "raise SystemExit('too old')"]}, "too old"),
        ({"max_tokens": "many"}, "'max_tokens'"),
        ({"modle": "demo"}, "'modle'"),
    ],
)
def test_an_error_is_shown_and_the_text_stays(writer: Writer, given: dict[str, object], words: str) -> None:
    writer.write(**given)
    writer.open(text=TEXT)
    writer.select(text=CAT)
    is_well, text = writer.run("rewrite")
    assert not is_well
    assert words in text
    assert writer.text() == TEXT
    assert writer.complains()


def test_it_works_again_after_an_error(writer: Writer, host: Host) -> None:
    writer.set(model="no/such/model")
    writer.open(text=TEXT)
    writer.select(text=CAT)
    assert not writer.run("rewrite")[0]
    settings = writer.set()
    assert writer.run("rewrite") == (True, expected(host, "rewrite", CAT, settings))
    assert not writer.complains()


def test_nothing_selected_is_said(writer: Writer) -> None:
    writer.set()
    writer.open(text=TEXT)
    writer.select(text="")
    is_well, text = writer.run("summarise")
    assert not is_well
    assert "No text is selected" in text


def test_a_window_that_was_closed_is_said(writer: Writer) -> None:
    writer.set()
    writer.open(text=TEXT)
    writer.select(text=CAT)
    writer.close_then_start(command="rewrite")
    is_well, text = writer.result(command="rewrite")
    assert not is_well
    assert "The window was closed" in text


# Runs the extension's component with the real uno, where the office's shell opens nothing; says what a listener hears.
NOTHING_OPENS = """
import sys, types
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/pythonpath"]
import uno
from com.sun.star.system import SystemShellExecuteException
import embedllm_writer as writer

class Controller:
    def hasInfobar(self, name):
        return False
    def appendInfobar(self, name, title, text, *others):
        print("shown:", text)
        if sys.argv[3] == "gone":
            raise SystemShellExecuteException("the window is gone", None, 0)

def service(name, context):
    folder = uno.systemPathToFileUrl(sys.argv[2])
    return types.SimpleNamespace(execute=execute, getSubstituteVariableValue=lambda name: folder)

def execute(*arguments):
    raise SystemShellExecuteException("no association", None, 31)

listener = types.SimpleNamespace(dispatchFinished=lambda event: print("told:", event.State, event.Result))
context = types.SimpleNamespace(ServiceManager=types.SimpleNamespace(createInstanceWithContext=service))
frame = types.SimpleNamespace(getController=Controller)
dispatch = writer.Dispatch(context, frame)
writer.Office.ring = lambda: writer.Office.look()
dispatch.dispatchWithNotification(types.SimpleNamespace(Path="settings"), (), listener)
"""


@pytest.mark.parametrize("window", ["there", "gone"])
def test_settings_that_no_program_opens_are_said(window: str, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    command = [PYTHON, "-B", "-c", NOTHING_OPENS, str(SAMPLE / "extension"), str(tmp_path), window]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    text = f"No program opens '{tmp_path}/embedllm_writer.json': no association. Open it in a text editor."
    assert done.stdout == f"shown: {text}\ntold: 0 {text}\n"


def test_settings_go_to_the_program_that_opens_them(writer: Writer) -> None:
    writer.set()
    writer.open(text=TEXT)
    is_well, path = writer.run("settings")
    assert is_well
    writer.exists(path=str(writer.opened))
    assert writer.opened.read_text() == f"{Path(path).as_uri()}\n"


def test_each_entry_of_the_menu_has_a_command(writer: Writer) -> None:
    writer.open(text=TEXT)
    menu = writer.menu()
    commands = [url.partition(":")[2] for url in menu.values()]
    assert commands == [*ACTIONS, "cancel", "settings"]
    assert all(writer.has(command=command) for command in commands)
    assert not writer.has(command="explode")
