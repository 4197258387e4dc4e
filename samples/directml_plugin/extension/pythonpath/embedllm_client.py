"""A client of `embedllm worker`: one file, standard library only, Python 3.8 or later; it never imports embedllm.

    with Client(["embedllm", "worker"]) as client:
        client.request("load", {"model": "demo"}).result()
        reply = client.request("chat", {"messages": [{"role": "user", "content": "list files"}]}, on_chunk=show)
        print(reply.result()["text"])

The protocol: docs/worker.md.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_KEPT_LINES = 20  # of the worker's stderr, to tell why it ended
_SHOWN_BYTES = 200  # of a line that is no message


class WorkerError(Exception):
    """The worker answered with an error, or is gone.

    code: of JSON-RPC, docs/worker.md lists them; 0 when the worker is gone, or on_chunk raised.
    data: what else it told.
    """

    def __init__(self, message: str, code: int = 0, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data or {}


class WorkerMissing(WorkerError):
    """The worker's command could not be started."""


class Request:
    """A request that was sent."""

    def __init__(self, client: Client, id: int, on_chunk: Callable[[str], None]) -> None:
        self.id = id
        self.on_chunk = on_chunk
        self._client = client
        self._done = threading.Event()
        self._answer: Mapping[str, Any] = {}

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits for the answer. Raises WorkerError when it is one, TimeoutError when it does not come in time."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"no answer of the worker within {timeout_s} s")
        error = self._answer.get("error")
        if error is not None:
            raise WorkerError(error["message"], error["code"], error.get("data"))
        return dict(self._answer["result"])

    def cancel(self) -> None:
        """Ends it; a reply then has the finish_reason "cancelled"."""
        self._client.notify("cancel", {"id": self.id})

    def answer(self, message: Mapping[str, Any]) -> None:
        """Told by the client."""
        self._answer = message
        self._done.set()


class Client:
    """A worker process and the requests that it has. May be used from several threads.

    command: the program and its arguments. on_note: told of `progress` and `log` texts, in a thread of the client's.
    Raises WorkerMissing.
    """

    def __init__(self, command: Sequence[str], on_note: Callable[[str], None] = lambda text: None) -> None:
        self.command = list(command)
        self._on_note = on_note
        self._lock = threading.Lock()  # of the table of requests
        self._writing = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._last_id = 0
        self._is_gone = False
        self._trouble = ""  # why the worker was ended here
        self._errors: collections.deque[bytes] = collections.deque(maxlen=_KEPT_LINES)
        no_window = {"creationflags": 0x08000000} if sys.platform == "win32" else {}  # CREATE_NO_WINDOW
        try:
            self._process = subprocess.Popen(self.command, env=_environment(), stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, **no_window)  # fmt: skip
        except (OSError, ValueError, IndexError) as error:
            raise WorkerMissing(f"'{' '.join(self.command)}' could not be started: {error}") from error
        self._stderr_reader = threading.Thread(target=self._keep_errors, daemon=True)
        self._stderr_reader.start()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        return not self._is_gone and self._process.poll() is None

    def request(
        self, method: str, params: Mapping[str, Any], on_chunk: Callable[[str], None] = lambda text: None
    ) -> Request:
        """Sends a request. on_chunk: told of each piece of a reply's text, in a thread of the client's.

        Raises WorkerError when the worker is gone. When on_chunk raises, the request is cancelled and result() says so.
        """
        with self._lock:
            self._last_id += 1
            request = Request(self, self._last_id, on_chunk)
            if not self._is_gone:
                self._requests[request.id] = request
        if self._is_gone:
            raise WorkerError(self._why_gone())
        self._write({"id": request.id, "method": method, "params": dict(params)})
        return request

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Sends what needs no answer; to a worker that is gone, nothing."""
        self._write({"method": method, "params": dict(params)})

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends the worker: politely, and after the timeout by force."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()  # it ends when its stdin does
        except OSError:
            pass  # gone already
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode("ascii") + b"\n"
        try:
            with self._writing:
                assert self._process.stdin is not None
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError):  # it ended, or was closed here; whoever waits is told by the reader
            pass

    def _listen(self) -> None:
        assert self._process.stdout is not None
        line = b""
        try:
            with self._process.stdout as stdout:
                for line in stdout:
                    self._take(json.loads(line))
        except Exception as error:  # noqa: BLE001  # whoever waits is told, in their own threads
            shown = line[:_SHOWN_BYTES].decode("utf-8", "replace").strip()
            self._trouble = f"was ended, because of its line '{shown}': {type(error).__name__}: {error}"
            self._process.kill()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Tells whoever waits that the worker is gone."""
        self._process.wait()
        self._stderr_reader.join(1.0)
        with self._lock:
            self._is_gone = True
            waiting = list(self._requests.values())
            self._requests.clear()
        for request in waiting:
            request.answer(_failure(self._why_gone()))

    def _take(self, message: Mapping[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "chunk":
            with self._lock:
                request = self._requests.get(params["id"])
            if request is not None:
                self._pass_on(request, params["text"])
        elif "method" in message:
            self._on_note(params["text"])
        else:
            with self._lock:
                request = self._requests.pop(message["id"], None)
            if request is not None:
                request.answer(message)

    def _pass_on(self, request: Request, text: str) -> None:
        """Gives a piece of a reply to whoever asked; when they raise, that request fails, and no other."""
        try:
            request.on_chunk(text)
        except Exception as error:  # noqa: BLE001  # result() raises it
            with self._lock:
                self._requests.pop(request.id, None)
            request.answer(_failure(f"on_chunk raised {type(error).__name__}: {error}"))
            request.cancel()

    def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            for line in stderr:
                self._errors.append(line)

    def _why_gone(self) -> str:
        said = b"".join(self._errors).decode("utf-8", "replace").strip()
        what = self._trouble or f"ended with exit code {self._process.poll()}."
        return f"the worker '{' '.join(self.command)}' {what} {said}".strip()


def _failure(text: str) -> dict[str, Any]:
    """An answer that the worker did not give."""
    return {"error": {"code": 0, "message": text}}


def _environment() -> dict[str, str]:
    """Ours without what is meant for the host's own Python, such as the PYTHONHOME that LibreOffice sets."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("PYTHON")}
