"""A transport to an MCP server in a process of its own: bounded messages, and no process that is left behind.

The transport of the package mcp (2.3) buffers a line without bound and leaves a server that ignores the end of its
stdin running when this process is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeAlias

import anyio
import psutil
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from embedllm.integrations.mcp.configuration import ServerConfiguration
from embedllm.text.lone_surrogates import replace_surrogates

_Received: TypeAlias = "SessionMessage | Exception"

_GRACE_S = 2.0  # between the end of stdin, SIGTERM and SIGKILL, as the specification orders
_POLL_S = 0.01
_STDERR_BYTES = 4096
# run beside a server: its stdin ends when this process does, however that came about; $1 is the server's group
_GUARD = 'read -r _; sleep 1; kill -TERM -"$1" 2>/dev/null && sleep 2 && kill -KILL -"$1" 2>/dev/null'


class StderrTail:
    """The last bytes that a server wrote to stderr."""

    def __init__(self) -> None:
        self._bytes: deque[int] = deque(maxlen=_STDERR_BYTES)

    def push(self, piece: bytes) -> None:
        self._bytes.extend(piece)

    @property
    def last_line(self) -> str:
        lines = bytes(self._bytes).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


@asynccontextmanager
async def stdio_transport(
    server: ServerConfiguration, stderr: StderrTail, max_message_bytes: int
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[_Received], MemoryObjectSendStream[SessionMessage]]]:
    """Starts the server; the streams of a session with it. It and its descendants end with the block.

    Raises OSError where it cannot be started.
    """
    environment = {**get_default_environment(), **server.env}
    command = shutil.which(server.command, path=environment.get("PATH")) or server.command
    process = await _started(command, server, environment, max_message_bytes)
    with _guarded(process.pid):
        received, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writes, sent = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, process, received)
            tasks.start_soon(_write, process, sent, received)
            tasks.start_soon(_drain, process, stderr)
            try:
                yield reads, writes
            finally:
                with anyio.CancelScope(shield=True):
                    await _stop(process)
                tasks.cancel_scope.cancel()
                for stream in (received, reads, writes, sent):
                    stream.close()


async def _started(
    command: str, server: ServerConfiguration, environment: Mapping[str, str], max_message_bytes: int
) -> asyncio.subprocess.Process:
    """The process of a server. A cancel in here would leave one that nobody knows."""
    with anyio.CancelScope(shield=True):
        return await asyncio.create_subprocess_exec(
            command, *server.args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=server.cwd, env=environment, limit=max_message_bytes, start_new_session=sys.platform != "win32",
        )  # fmt: skip
    raise AssertionError("nothing cancels a shielded scope")


async def _read(process: asyncio.subprocess.Process, received: MemoryObjectSendStream[_Received]) -> None:
    """Passes messages on until stdout ends or a line is too long, which ends the session."""
    assert process.stdout is not None
    with received, suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
        while True:
            try:
                line = await process.stdout.readuntil(b"\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                return
            if line.strip():
                await received.send(_message(line))


def _message(line: bytes) -> _Received:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    try:  # half a surrogate pair, which pydantic refuses, is no reason to leave a call without an answer
        values = json.loads(line.decode("utf-8", "replace"))
        text = replace_surrogates(json.dumps(values, ensure_ascii=False))
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except (ValueError, RecursionError) as error:
        return error if isinstance(error, ValueError) else ValueError("a message is nested too deeply")


async def _write(
    process: asyncio.subprocess.Process,
    sent: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[_Received],
) -> None:
    assert process.stdin is not None
    with sent:
        try:
            async for message in sent:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()
        except (OSError, anyio.ClosedResourceError):
            received.close()  # else a call would wait for its answer


async def _drain(process: asyncio.subprocess.Process, stderr: StderrTail) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(_STDERR_BYTES):
        stderr.push(piece)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ends stdin, then the process and what it has started, and closes the pipes."""
    await _end(process)
    transport = getattr(process, "_transport", None)  # of Python 3.11 to 3.14; a paused pipe stays open otherwise
    if isinstance(transport, asyncio.SubprocessTransport):
        with suppress(PermissionError):  # up to 3.12 of a process that changed its user
            transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    descendants = _descendants(process.pid)
    with suppress(OSError):
        process.stdin.close()
    if not await _ends(process):
        _signal(process.pid, descendants, force=False)
        await _ends(process)
    elif not _signal(process.pid, descendants, force=False):
        return
    deadline = anyio.current_time() + _GRACE_S
    while _signal(process.pid, [], force=False) and anyio.current_time() < deadline:
        await anyio.sleep(_POLL_S)
    _signal(process.pid, descendants, force=True)
    await _ends(process)


async def _ends(process: asyncio.subprocess.Process) -> bool:
    """Whether it ends in time. Not process.wait(), which waits for its descendants' ends of the pipes, too."""
    with anyio.move_on_after(_GRACE_S):
        while process.returncode is None:
            await anyio.sleep(_POLL_S)
    return process.returncode is not None


def _descendants(pid: int) -> list[psutil.Process]:
    """On Windows, which has no process groups."""
    if sys.platform != "win32":
        return []
    with suppress(psutil.Error):
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    return []


def _signal(group: int, descendants: list[psutil.Process], *, force: bool) -> bool:
    """Ends the processes; whether there was any."""
    if sys.platform == "win32":
        for one in descendants:
            with suppress(psutil.Error):
                one.kill()
        return False
    try:
        os.killpg(group, signal.SIGKILL if force else signal.SIGTERM)
    except (ProcessLookupError, PermissionError):  # macOS raises the second for zombies
        return False
    return True


@contextmanager
def _guarded(group: int) -> Iterator[None]:
    """Within the block a process waits for the end of this one, be it a kill, to end the server's group."""
    if sys.platform == "win32":  # a server there has to end with its stdin
        yield
        return
    guard = subprocess.Popen(["/bin/sh", "-c", _GUARD, "embedllm-mcp-guard", str(group)], stdin=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    try:
        yield
    finally:
        guard.kill()
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()
