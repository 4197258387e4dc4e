"""The worker: a process that runs models for a host application, by JSON-RPC messages (docs/worker.md)."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from embedllm.cancel import Cancel
from embedllm.generation.chunk import Chunk
from embedllm.generation.completion import collect
from embedllm.integrations.worker.methods import METHODS, LoadParams, load_params, reply_params
from embedllm.integrations.worker.protocol import (
    CANCELLED,
    EXPECTED_ERRORS,
    INVALID_PARAMS,
    MESSAGE_LIMIT,
    METHOD_NOT_FOUND,
    NO_MODEL,
    Call,
    Id,
    RpcError,
    SkippedLine,
    error_message,
    lines,
    parse,
    piece,
    whole,
)
from embedllm.integrations.worker.threads import Job, Lane, Output
from embedllm.loading import load as opening
from embedllm.loading import resolve
from embedllm.openai.schema import InvalidRequest
from embedllm.package.package import Package, open_package
from embedllm.profiling.inspection.device_report import machine

if TYPE_CHECKING:
    from embedllm.model.model import Model

PROTOCOL = 1
DONE, CRASHED, CLOSED_PIPE = 0, 1, 141  # exit codes, those of the command line
_QUEUED = 16  # requests that may wait for their turn
_MOST_UNREAD = 8 * MESSAGE_LIMIT  # bytes of requests that wait for the host to read answers
_GRACE_S = 5.0  # for what runs when the end comes; a model that loads can't be interrupted
_TICK_S = 1.0  # between two notes that a model still loads
_WAIT = "Wait for each answer before you send 'shutdown' or close stdin."


class Worker:
    """Answers the messages of one host until it says `shutdown` or goes away.

    read: gives at most that many bytes of what the host sends, and none at the end. write: takes a whole message.
    """

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], None]) -> None:
        self._read = read
        self._endings: queue.SimpleQueue[tuple[int, Id | None]] = queue.SimpleQueue()  # code, who asked to shut down
        self._lines: queue.SimpleQueue[bytes | SkippedLine | None] = queue.SimpleQueue()  # None: the end
        self._unread_bytes = 0  # of them, about
        self._output = Output(write, on_closed=lambda: self._endings.put((CLOSED_PIPE, None)))
        self._send = self._output.send
        self._models = Lane("models", self._send, limit=_QUEUED)
        self._questions = Lane("questions", self._send, limit=_QUEUED)  # probing devices may take seconds
        self.is_idle = False  # after the end: whether every thread has stopped
        self._model: Model | None = None  # only the lane of the models touches it
        self._long: dict[str, tuple[Lane, Callable[[Call, Cancel], object]]] = {
            "devices": (self._questions, self._list_devices),
            "load": (self._models, self._load),
            "unload": (self._models, self._unload),
            "generate": (self._models, self._reply),
            "chat": (self._models, self._reply),
        }

    def serve(self) -> int:
        """Runs until the end; the exit code."""
        with self._telling_log():
            threading.Thread(target=self._listen, name="input", daemon=True).start()
            code, request_id = self._endings.get()
            lanes = (self._models, self._questions)
            cancelled = sum([lane.end() for lane in lanes])
            if cancelled and code == DONE:
                _say(f"requests without an answer that are now cancelled: {cancelled}. {_WAIT}")
            deadline = time.monotonic() + _GRACE_S
            self.is_idle = all(lane.join(max(0.0, deadline - time.monotonic())) for lane in lanes)
        if self.is_idle and self._model is not None:
            self._model.close()
        if request_id is not None:
            self._send({"id": request_id, "result": {}})
        self.is_idle = self._output.close(_GRACE_S) and self.is_idle
        return code

    # --- what comes in

    def _listen(self) -> None:
        """Reads on whatever becomes of the answers: a host that reads no more is known by the end of its stdin."""
        thread = threading.Thread(target=self._take_all, name="requests", daemon=True)
        thread.start()
        try:
            for line in lines(self._read):
                self._unread_bytes += len(line) if isinstance(line, bytes) else 0
                self._lines.put(line)
                if self._unread_bytes > _MOST_UNREAD:
                    _say(f"the host sent over {_MOST_UNREAD} bytes of requests and reads no answers; the worker ends")
                    self._endings.put((CRASHED, None))
                    return
        except OSError as error:  # a broken pipe, under the names that systems have for it
            _say(f"the host can't be read from any more ({error})")
        self._lines.put(None)
        thread.join(_GRACE_S)  # longer only when nobody reads the answers
        self._endings.put((DONE, None))

    def _take_all(self) -> None:
        """Answers what was read, or passes it on."""
        try:
            while (line := self._lines.get()) is not None:
                if isinstance(line, SkippedLine):
                    self._send(error_message(line.error))
                    continue
                self._unread_bytes -= len(line)
                if line.strip() and self._take(line):
                    return
        except Exception:  # noqa: BLE001  # ends the process, which would else wait for ever
            traceback.print_exc()
            self._endings.put((CRASHED, None))

    def _take(self, line: bytes) -> bool:
        """Answers a message or passes it on; whether it was the last one."""
        call: Call | None = None
        try:
            call = parse(line)
            if call.method not in METHODS:
                raise RpcError(METHOD_NOT_FOUND, f"there is no method '{call.method:.80}'; expected one of: "
                               f"{', '.join(METHODS)}.")  # fmt: skip
            return self._begin(replace(call, params=METHODS[call.method].params.check(call.params)))
        except (RpcError, InvalidRequest) as error:
            if call is None or call.id is not None:
                self._send(error_message(error, call and call.id))
            else:
                _say(f"a notification is left out: {error}")  # nobody may be answered
        return False

    def _begin(self, call: Call) -> bool:
        if call.method == "shutdown":
            self._endings.put((DONE, call.id))
            return True
        if call.method in self._long:
            self._queue(call)
            return False
        short = {"initialize": self._initialize, "cancel": self._cancel}
        result = short[call.method](call)
        if call.id is not None:
            self._send({"id": call.id, "result": result})
        return False

    def _queue(self, call: Call) -> None:
        if call.id is None:
            _say(f"'{call.method}' came without an id, so nobody would get its answer; it is left out")
            return
        for lane in (self._models, self._questions):
            lane.check_new(call.id)
        lane, do = self._long[call.method]
        lane.add(Job(id=call.id, run=partial(self._perform, call, do)))

    def _perform(self, call: Call, do: Callable[[Call, Cancel], object], job: Job) -> Mapping[str, object]:
        """The answer to a request."""
        try:
            return {"id": call.id, "result": do(call, job.cancel)}
        except (RpcError, *EXPECTED_ERRORS) as error:
            return error_message(error, call.id)
        except Exception as error:  # noqa: BLE001  # answered, and then the process ends: what state it is in is unknown
            traceback.print_exc()
            self._endings.put((CRASHED, None))
            return error_message(error, call.id)

    # --- the methods

    def _initialize(self, call: Call) -> Mapping[str, object]:
        version = call.params.get("protocol")
        if version not in (None, PROTOCOL):
            raise RpcError(INVALID_PARAMS, f"'protocol' is {version}; this worker speaks {PROTOCOL}. Take a worker and "
                           "a client of the same version.")  # fmt: skip
        limits = {"message_bytes": MESSAGE_LIMIT, "queued_requests": _QUEUED}
        return {"protocol": PROTOCOL, "methods": list(METHODS), "limits": limits, "versions": machine()}

    def _cancel(self, call: Call) -> Mapping[str, object]:
        id = call.params["id"]
        assert isinstance(id, int | str), "the table of parameters says so"
        return {"found": self._models.cancel(id) or self._questions.cancel(id)}

    def _list_devices(self, call: Call, cancel: Cancel) -> Mapping[str, object]:
        _check_not_cancelled(cancel)
        return {"devices": [asdict(device) for device in opening.devices()]}

    def _load(self, call: Call, cancel: Cancel) -> Mapping[str, object]:
        _check_not_cancelled(cancel)
        params = load_params(call.params)
        with self._telling_progress(call.id, f"loading '{params.model}'"):
            _check_files(params, cancel)
            self._close_model()  # two might not fit
            self._model = opening.open_model(params.model, params.options)
        if cancel.cancelled:
            self._close_model()
            _check_not_cancelled(cancel)
        llm = self._model
        return {"model": llm.name, "device": asdict(llm.device), "context": llm.context, "can_chat": llm.can_chat}

    def _unload(self, call: Call, cancel: Cancel) -> Mapping[str, object]:
        _check_not_cancelled(cancel)
        self._close_model()
        return {}

    def _reply(self, call: Call, cancel: Cancel) -> Mapping[str, object]:
        if cancel.cancelled:
            return whole(None, None)
        params, llm = reply_params(call.method, call.params), self._model
        if llm is None:
            raise RpcError(NO_MODEL, f"'{call.method}' needs a model and none is loaded. Send 'load' first.")
        chunks: list[Chunk] = []
        for chunk in llm.stream(params.prompt, cancel=cancel, **params.options):
            chunks.append(chunk)
            if (fields := piece(chunk)) is not None:
                self._send({"method": "chunk", "params": {"id": call.id, **fields}})
        return whole(collect(chunks), llm.device.name)

    def _close_model(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None

    # --- what is told meanwhile

    @contextmanager
    def _telling_progress(self, id: Id | None, text: str) -> Iterator[None]:
        """Within the block, a note at once and one every second."""
        done, started = threading.Event(), time.monotonic()

        def tell() -> None:
            while True:
                elapsed_s = round(time.monotonic() - started, 1)
                self._send({"method": "progress", "params": {"id": id, "text": text, "elapsed_s": elapsed_s}})
                if done.wait(_TICK_S):
                    return

        thread = threading.Thread(target=tell, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @contextmanager
    def _telling_log(self) -> Iterator[None]:
        """Within the block, the host hears what the library logs: which device was chosen and why not the others."""
        logger, handler = logging.getLogger("embedllm"), _LogMessages(self._send)
        before = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)


class _LogMessages(logging.Handler):
    """Sends log lines as notifications."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = send

    def emit(self, record: logging.LogRecord) -> None:
        params = {"level": record.levelname.lower(), "text": record.getMessage()}
        self._tell({"method": "log", "params": params})


def _check_files(params: LoadParams, cancel: Cancel) -> None:
    """Raises what `load` would stumble over: a slip of the host's costs it no model.

    What has to be downloaded or exported first is, until it is cancelled.
    """

    def opened(path: str) -> Package:
        folder = resolve.find_package(path, on_progress=lambda _: _check_not_cancelled(cancel))
        return open_package(folder, whole=False)

    package = opened(params.model)
    draft, adapters = params.options.draft, params.options.adapters
    if isinstance(draft, str):
        opened(draft)
    if adapters:
        from embedllm.package.lora.peft import check_adaptable, read_adapters  # numpy

        check_adaptable(package)
        read_adapters(adapters, package.decoder, is_rotated=package.is_rotated)


def _check_not_cancelled(cancel: Cancel) -> None:
    if cancel.cancelled:
        raise RpcError(CANCELLED, "cancelled by the host.")


def _say(text: str) -> None:
    """A line for whoever reads the process's stderr."""
    with suppress(OSError):  # a host that went away
        sys.stderr.write(f"worker: {text}\n")
