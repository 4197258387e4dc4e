"""The parts of the Writer extension that need no office: its client of the worker, its settings, the built file."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.worker_host import COMMAND, ROOT

SOURCE = ROOT / "samples" / "directml_plugin" / "extension"
sys.path.insert(0, str(SOURCE / "pythonpath"))  # as the office does
from samples.directml_plugin.build import build  # noqa: E402
from samples.directml_plugin.extension.pythonpath.embedllm_actions import ACTIONS, load_params, request  # noqa: E402
from samples.directml_plugin.extension.pythonpath.embedllm_client import Client, WorkerError, WorkerMissing  # noqa: E402
from samples.directml_plugin.extension.pythonpath.embedllm_settings import DEFAULT, SettingsError, read_settings  # noqa: E402

LONG = "1 2 3 4 5 6 7 8 9 10 11 12"  # the demo goes on with this for ever
MANY = 1900  # tokens, seconds of work
OLDEST = (3, 8)  # the Python of LibreOffice 7.4 for Windows


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(COMMAND) as client:
        client.request("load", {"device": "cpu"}).result(60)
        yield client


# --- the client


def test_a_reply_comes_in_pieces_and_whole(client: Client) -> None:
    pieces: list[str] = []
    params = {"prompt": LONG, "max_tokens": 8, "temperature": 0}
    result = client.request("generate", params, on_chunk=pieces.append).result(60)
    assert result["tokens"] == 8
    assert "".join(pieces) == result["text"]


def test_a_request_is_cancelled(client: Client) -> None:
    has_begun = threading.Event()
    running = client.request("generate", {"prompt": LONG, "max_tokens": MANY}, on_chunk=lambda text: has_begun.set())
    assert has_begun.wait(60)
    running.cancel()
    assert running.result(60)["finish_reason"] == "cancelled"


def test_an_error_has_its_code_and_data(client: Client) -> None:
    with pytest.raises(WorkerError, match="no/such") as caught:
        Client.request(client, "load", {"model": "./no/such"}).result(60)
    assert (caught.value.code, caught.value.data["kind"]) == (-32001, "PackageError")
    client.request("load", {"device": "cpu"}).result(60)


def test_notes_are_told() -> None:
    notes: list[str] = []
    with Client(COMMAND, on_note=notes.append) as client:
        client.request("load", {"device": "cpu"}).result(60)
    assert notes[0] == "loading 'demo'"


def test_a_worker_that_dies_is_told_to_whoever_waits_and_asks() -> None:
    client = Client([sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('the disk is full')"])
    with pytest.raises(WorkerError, match=r"exit code 1\. the disk is full"):
        client.request("initialize", {}).result(60)
    with pytest.raises(WorkerError, match="the disk is full"):
        client.request("initialize", {})
    assert not client.is_alive
    client.close()


@pytest.mark.parametrize("line", ["hello", "[]", "{}", '{"method": "chunk"}', '{"method": "log", "params": 5}'])
def test_a_line_that_is_no_message_ends_the_worker_and_is_told_to_all_that_wait(line: str) -> None:
    code = (
        f"import sys, time; sys.stdin.readline(); sys.stdin.readline(); print({line!r}, flush=True); time.sleep(3600)"
    )
    with Client([sys.executable, "-c", code]) as client:
        waiting = [client.request("initialize", {}) for _ in range(2)]
        for request in waiting:
            with pytest.raises(WorkerError, match=rf"was ended, because of its line '{re.escape(line)}'"):
                request.result(60)
        with pytest.raises(WorkerError, match="was ended"):
            client.request("initialize", {})
        assert not client.is_alive


def test_what_on_chunk_raises_fails_its_request_and_no_other(client: Client) -> None:
    def fail(text: str) -> None:
        raise ZeroDivisionError("the window is gone")

    failing = client.request("generate", {"prompt": LONG, "max_tokens": MANY}, on_chunk=fail)
    other = client.request("generate", {"prompt": LONG, "max_tokens": 8})
    with pytest.raises(WorkerError, match="on_chunk raised ZeroDivisionError: the window is gone"):
        failing.result(60)
    assert other.result(60)["tokens"] == 8
    assert client.is_alive


def test_what_on_note_raises_is_told_to_whoever_waits() -> None:
    def fail(text: str) -> None:
        raise ZeroDivisionError("the window is gone")

    with Client(COMMAND, on_note=fail) as client, pytest.raises(WorkerError, match="ZeroDivisionError: the window is"):
        client.request("load", {"device": "cpu"}).result(60)


def test_closing_ends_the_worker_and_what_runs() -> None:
    client = Client(COMMAND)
    client.request("load", {"device": "cpu"}).result(60)
    running = client.request("generate", {"prompt": LONG, "max_tokens": MANY})
    client.close()
    assert running.result(60)["finish_reason"] == "cancelled"
    assert not client.is_alive


def test_a_worker_that_does_not_end_is_killed() -> None:
    client = Client([sys.executable, "-c", "import time; time.sleep(3600)"])
    running = client.request("initialize", {})
    client.close(timeout_s=0.1)
    with pytest.raises(WorkerError):
        running.result(60)


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(WorkerMissing, match="/no/such/embedllm"):
        Client(["/no/such/embedllm", "worker"])


def test_what_is_meant_for_the_hosts_python_stays_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # as LibreOffice sets it for its own Python
    with Client(COMMAND) as client:
        assert client.request("initialize", {}).result(60)["protocol"] == 1


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.name)
def test_an_old_python_understands_the_extension(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)


def test_the_client_runs_in_the_oldest_python_and_imports_no_library(tmp_path: Path) -> None:
    python = shutil.which("python3.8")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip("there is no python3.8")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from embedllm_client import Client
import embedllm_actions, embedllm_asking, embedllm_settings, embedllm_worker
with Client(sys.argv[2:]) as client:
    print(client.request("initialize", {}).result(60)["protocol"], "embedllm" in sys.modules)
"""
    command = [python, "-B", "-c", code, str(SOURCE / "pythonpath"), *COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("1 False\n", "")


# --- settings and requests


def test_the_settings_are_written_when_there_are_none(tmp_path: Path) -> None:
    file = tmp_path / "user" / "settings.json"
    assert read_settings(file) == DEFAULT
    assert read_settings(file) == DEFAULT
    assert json.loads(file.read_text())["devices"] == ["directml", "webgpu", "cpu"]
    assert list(file.parent.iterdir()) == [file]


def test_what_the_settings_lack_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(b'\xef\xbb\xbf{"model": "C:\\\\models\\\\mine", "temperature": 1}')  # as Notepad may write it
    settings = read_settings(file)
    assert (settings.model, settings.temperature) == ("C:\\models\\mine", 1)
    assert settings.devices == DEFAULT.devices


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "can't be read"),
        ("[]", "no JSON object"),
        ('{"devices": "cpu"}', "expected something like"),
        ('{"devices": []}', "expected something like"),
        ('{"max_tokens": true}', "'max_tokens'"),
        ('{"max_tokens": 1.5}', "'max_tokens'"),
        ('{"device": ["cpu"]}', "none of: worker, model, devices"),
    ],
)
def test_wrong_settings_are_named_with_their_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words) as caught:
        read_settings(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_worker_takes_each_request(client: Client, name: str) -> None:
    method, params = request(ACTIONS[name], "The cat sat on the mat.", DEFAULT)
    assert client.request(method, {**params, "max_tokens": 2}).result(60)["tokens"] <= 2


def test_the_worker_takes_the_settings() -> None:
    with Client(COMMAND) as client:
        result = client.request("load", load_params(DEFAULT)).result(120)
    assert result["device"]["name"] in DEFAULT.devices or result["device"]["name"].startswith("webgpu")


# --- the built file


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = (build(tmp_path / name) for name in ("a.oxt", "b.oxt"))
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.oxt", "b.oxt"]


def test_all_that_the_manifest_names_is_packed(tmp_path: Path) -> None:
    with zipfile.ZipFile(build(tmp_path / "a.oxt")) as packed:
        names = packed.namelist()
        manifest = packed.read("META-INF/manifest.xml").decode()
    for name in ("embedllm_writer.py", "Addons.xcu", "ProtocolHandler.xcu", "WriterWindowState.xcu"):
        assert f'"{name}"' in manifest
        assert name in names
    assert "description.xml" in names
    assert {f"pythonpath/{path.name}" for path in (SOURCE / "pythonpath").glob("*.py")} <= set(names)
