"""A host of the worker, as tests need one: it sends whatever bytes it is told to, and keeps all that comes back."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "embedllm", "worker")
_PATIENCE_S = 120.0  # only ever waited for by a test that fails


class Host:
    """Starts a worker and talks to it."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}
        environment.pop("EMBEDLLM_DEVICE", None)
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        self.seen: list[dict[str, Any]] = []  # every message so far; JSON of any shape
        self.noise = b""  # stderr
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        for work in (self._listen, self._keep_noise):
            threading.Thread(target=work, daemon=True).start()

    def send(self, method: str, id: int | str | None = None, /, **params: object) -> None:
        message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
        self.send_bytes(json.dumps(message if id is None else {**message, "id": id}).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """The next message; AssertionError when there is none any more."""
        line = self._lines.get(timeout=_PATIENCE_S)
        assert line, f"stdout ended; stderr: {self.noise.decode(errors='replace')}"
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        self.seen.append(message)
        return message

    def answer(self, id: int | str | None) -> dict[str, Any]:
        """The answer to a request: the first of them that was not yet looked at."""
        found = next((message for message in self.seen if _answers(message, id)), None)
        while found is None:
            message = self.next()
            found = message if _answers(message, id) else None
        self.seen.remove(found)
        return found

    def ask(self, method: str, id: int | str, /, **params: object) -> dict[str, Any]:
        """The result of a request."""
        self.send(method, id, **params)
        return self.answer(id)["result"]

    def first_chunk(self, id: int | str) -> str:
        while True:
            message = self.next()
            assert not _answers(message, id), message
            if message.get("method") == "chunk" and message["params"]["id"] == id:
                return message["params"]["text"]

    def told(self, method: str, id: int | str | None = None) -> list[Mapping[str, Any]]:
        """The notifications so far."""
        found = [message["params"] for message in self.seen if message.get("method") == method]
        return found if id is None else [params for params in found if params["id"] == id]

    def rest(self) -> list[dict[str, Any]]:
        """All that still comes until the worker closes stdout."""
        while line := self._lines.get(timeout=_PATIENCE_S):
            self.seen.append(json.loads(line))
        return self.seen

    def end_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def exit_code(self) -> int:
        return self.process.wait(_PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was still to be sent
                    pipe.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._lines.put(line)
        except ValueError:  # closed by the test
            pass
        self._lines.put(b"")

    def _keep_noise(self) -> None:
        assert self.process.stderr is not None
        try:
            for line in self.process.stderr:
                self.noise += line
        except ValueError:
            pass


def patched(code: str) -> tuple[str, ...]:
    """The command of a worker that runs some code before it starts."""
    start = "import sys\nfrom embedllm.cli.main import main\nsys.argv = ['embedllm', 'worker']\nmain()"
    return (sys.executable, "-c", f"{code}\n{start}")


def _answers(message: Mapping[str, object], id: int | str | None) -> bool:
    return "method" not in message and message["id"] == id
