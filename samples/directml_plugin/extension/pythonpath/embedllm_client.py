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

    code: of JSON-RPC, docs/worker.md lists them; 0 when the worker is gone, or a callback raised.
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

    @property
    def is_answered(self) -> bool:
        return self._done.is_set()

    def answer(self, message: Mapping[str, Any]) -> None:
        """Told by the client; the first one counts, as where a callback has raised."""
        if not self.is_answered:
            self._answer = message
            self._done.set()


class Client:
    """A worker process and the requests that it has. May be used from several threads.

    command: the program and its arguments. on_note: told of `progress` and `log` texts, in a thread of the client's;
    what it raises fails the request that runs. Raises WorkerMissing.
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

        Raises WorkerError when the worker is gone, TypeError or ValueError for what JSON cannot hold. When on_chunk
        raises, the request is cancelled and result() says so.
        """
        with self._lock:
            self._last_id += 1
            request = Request(self, self._last_id, on_chunk)
        line = _line({"id": request.id, "method": method, "params": dict(params)})  # may raise, and nobody waits then
        with self._lock:
            if not self._is_gone:
                self._requests[request.id] = request
        if self._is_gone:
            raise WorkerError(self._why_gone())
        self._write(line)
        return request

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Sends what needs no answer; to a worker that is gone, nothing."""
        self._write(_line({"method": method, "params": dict(params)}))

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends the worker: politely, and after the timeout by force.

        In a callback it returns at once, for the worker's last messages are still to be read.
        """
        if threading.current_thread() is self._reader:
            threading.Thread(target=self.close, args=(timeout_s,), daemon=True).start()
            return
        if not self._end_input(timeout_s):  # another thread writes to a worker that does not read
            self._process.kill()
            self._end_input(timeout_s)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _end_input(self, timeout_s: float) -> bool:
        """Closes the worker's stdin, with which it ends; whether that could be done in time."""
        if not self._writing.acquire(timeout=timeout_s):
            return False
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
        except OSError:
            pass  # it is gone already
        finally:
            self._writing.release()
        return True

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
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
        method = message.get("method")
        if method == "chunk":
            with self._lock:
                request = self._requests.get(params["id"])
            if request is not None:
                self._call_back(request, "on_chunk", request.on_chunk, params["text"])
        elif method is not None:
            with self._lock:  # a log names no request: it is of the oldest one
                request = self._requests.get(params.get("id", min(self._requests, default=0)))
            self._call_back(request, "on_note", self._on_note, params["text"])
        else:
            with self._lock:
                request = self._requests.pop(message["id"], None)
            if request is not None:
                request.answer(message)

    def _call_back(self, request: Request | None, name: str, callback: Callable[[str], None], text: str) -> None:
        """Tells the host a text; when that raises, the request fails, and no other.

        It keeps its place until the worker has answered, and the host is told no more of it.
        """
        if request is not None and request.is_answered:
            return
        try:
            callback(text)
        except Exception as error:  # noqa: BLE001  # result() raises it
            if request is None:  # nobody waits
                sys.excepthook(type(error), error, error.__traceback__)
                return
            request.answer(_failure(f"{name} raised {type(error).__name__}: {error}"))
            request.cancel()

    def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            for line in stderr:
                self._errors.append(line)

    def _why_gone(self) -> str:
        stderr_text = b"".join(self._errors).decode("utf-8", "replace").strip()
        what = self._trouble or f"ended with exit code {self._process.poll()}."
        return f"the worker '{' '.join(self.command)}' {what} {stderr_text}".strip()


def _line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode("ascii") + b"\n"


def _failure(text: str) -> dict[str, Any]:
    """An answer that the worker did not give."""
    return {"error": {"code": 0, "message": text}}


def _environment() -> dict[str, str]:
    """Ours without what is meant for the host's own Python, such as the PYTHONHOME that LibreOffice sets."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("PYTHON")}
