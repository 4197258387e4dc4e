"""What the clients of the worker do when a callback of the host, a parameter or the worker fails: the host goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from samples.directml_plugin.extension.pythonpath.embedllm_client import Client, WorkerError
from tests.integrations.worker.test_clients import CSC, DRIVERS, MONO, NODE
from tools.make_worker_clients import CLIENTS

FAKE = str(DRIVERS / "fake_worker.py")
DAMAGED = ["hello", "[]", "null", '{"method":"chunk"}', '{"method":"progress"}']
_PATIENCE_S = 60.0
Outcomes = Callable[[str, Sequence[str]], list[str]]  # a case, and the arguments of the worker: what two requests gave


def outcomes_of(command: Sequence[str]) -> list[str]:
    """What a driver prints. It ends with exit code 0, and by itself."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    return found["outcomes"] if isinstance(found, dict) else found


@pytest.fixture(scope="module")
def by_javascript() -> Outcomes:
    if NODE is None:
        pytest.skip("there is no Node.js")
    driver = [NODE, str(DRIVERS / "faults.mjs"), str(CLIENTS / "embedllm_worker.mjs")]
    return lambda case, arguments: outcomes_of([*driver, case, sys.executable, FAKE, *arguments])


@pytest.fixture(scope="module")
def by_csharp(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    if CSC is None or MONO is None:
        pytest.skip("there is no Mono: apt-get install mono-mcs mono-runtime libmono-system-core4.0-cil")
    mono, program = MONO, tmp_path_factory.mktemp("faults") / "faults.exe"
    sources = [CLIENTS / "EmbedllmWorker.cs", DRIVERS / "Faults.cs"]
    made = subprocess.run([CSC, "-langversion:7", "-warnaserror", f"-out:{program}", *map(str, sources)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr

    def run(case: str, arguments: Sequence[str]) -> list[str]:
        line = " ".join('"' + one.replace('"', '\\"') + '"' for one in [FAKE, *arguments])
        return outcomes_of([mono, str(program), case, sys.executable, line])

    return run


@pytest.fixture(params=["javascript", "csharp"])
def client(request: pytest.FixtureRequest) -> Outcomes:
    return request.getfixturevalue(f"by_{request.param}")


@pytest.mark.parametrize("callback", ["onProgress", "onLog", "onChunk"])
def test_what_a_callback_throws_fails_its_request_and_no_other(client: Outcomes, callback: str) -> None:
    assert client(callback, []) == ["mine", "abc"]


@pytest.mark.parametrize("callback", ["onProgress", "onLog", "onChunk"])
def test_what_an_async_callback_rejects_with_fails_its_request(by_javascript: Outcomes, callback: str) -> None:
    assert by_javascript(f"{callback}_async", []) == ["mine", "abc"]


def test_a_parameter_that_json_cannot_hold_fails_its_request(client: Outcomes) -> None:
    first, second = client("no_json", [])
    assert "BigInt" in first or "JSON has no number NaN" in first
    assert second == "abc"


def test_a_callback_may_close_the_client(client: Outcomes) -> None:
    first, second = client("close_in_onChunk", [])
    assert first == "abc"
    assert second.startswith("the worker ended: exit code 0")


def test_a_worker_that_hangs_is_killed_by_close(client: Outcomes) -> None:
    first, second = client("hang", ["hang"])
    assert first.startswith("the worker ended: it did not end within 0.2 s, and was killed")
    assert second == first


@pytest.mark.parametrize("line", DAMAGED)
def test_a_line_that_is_no_message_fails_requests_and_not_the_host(client: Outcomes, line: str) -> None:
    first, second = client("plain", [line])
    assert "it wrote" in first
    assert line in first
    assert second == first


# --- the client in Python


def fail(text: str) -> None:
    raise ZeroDivisionError("mine")


def test_what_on_note_raises_fails_its_request_and_no_other() -> None:
    with Client([sys.executable, FAKE], on_note=fail) as client:
        with pytest.raises(WorkerError, match="on_note raised ZeroDivisionError: mine"):
            client.request("load", {}).result(_PATIENCE_S)
        assert client.request("generate", {"prompt": "x"}).result(_PATIENCE_S)["text"] == "abc"


def test_a_parameter_that_json_cannot_hold_is_not_waited_for() -> None:
    with Client([sys.executable, FAKE]) as client:
        with pytest.raises(TypeError):
            client.request("generate", {"prompt": Path()})
        assert client.request("generate", {"prompt": "x"}).result(_PATIENCE_S)["text"] == "abc"


def test_on_chunk_may_close_the_client() -> None:
    with Client([sys.executable, FAKE]) as client:
        request = client.request("generate", {"prompt": "x"}, on_chunk=lambda text: client.close())
        assert request.result(_PATIENCE_S)["text"] == "abc"


def test_close_ends_a_worker_that_does_not_read_what_another_thread_writes() -> None:
    client = Client([sys.executable, FAKE, "hang"])
    writing = threading.Thread(target=client.request, args=("generate", {"prompt": "x" * 2**20}))
    writing.start()
    client.close(timeout_s=0.2)
    writing.join(_PATIENCE_S)
    assert not writing.is_alive()
