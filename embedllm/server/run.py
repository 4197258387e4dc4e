"""serve(): the application on uvicorn, with time limits for connections, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from embedllm.server.app import create_app
from embedllm.server.endpoint import ToolServers
from embedllm.server.model_pool import ModelPool
from embedllm.server.request_record import Tracing
from embedllm.server.settings import ServerSettings

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

_IDLE_S = 20  # of a connection between two requests
_BACKLOG = 512
_MOST_HEADER = 64 << 10  # bytes


def make_server(
    pool: ModelPool,
    settings: ServerSettings,
    *,
    tracing: Tracing | None = None,
    tool_servers: ToolServers | None = None,
) -> uvicorn.Server:
    """The server, not yet started; its `should_exit` ends it as a signal does. The rest: see create_app."""

    class Protocol(_TimedProtocol):
        header_timeout_s = settings.header_timeout_s
        write_timeout_s = settings.write_timeout_s

    config = uvicorn.Config(
        create_app(pool, settings, tracing=tracing, tool_servers=tool_servers),
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing here depends on who asks
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=max(1, round(settings.end_timeout_s)),
        h11_max_incomplete_event_size=_MOST_HEADER,
    )
    return uvicorn.Server(config)


def serve(
    pool: ModelPool,
    settings: ServerSettings,
    *,
    tracing: Tracing | None = None,
    tool_servers: ToolServers | None = None,
    on_ready: Callable[[str], object] = lambda address: None,
) -> None:
    """Serves until SIGINT or SIGTERM: then it takes no more requests, and replies under way get time to end.

    on_ready: called with the address once requests are taken. Raises OSError for an address that is taken, and what
    the load of a pinned model raises.
    """
    server = make_server(pool, settings, tracing=tracing, tool_servers=tool_servers)
    with closing(_listening(settings)) as listening:
        asyncio.run(_serve(server, pool, listening, on_ready))


async def _serve(
    server: uvicorn.Server, pool: ModelPool, listening: socket.socket, on_ready: Callable[[str], object]
) -> None:
    async with pool:  # before uvicorn starts, which would only log an error; a second start does nothing
        with _signals_end_quietly():
            serving = asyncio.create_task(server.serve([listening]))
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            if server.started:
                host, port = listening.getsockname()[:2]
                on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await serving


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn raises a signal that has ended it once more, for the handlers from before: these do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(settings: ServerSettings) -> socket.socket:
    """The socket of the address. Raises OSError."""
    addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # where it would let two programs take the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen at {settings.host}:{settings.port}: {error.strerror}. Choose another --port, or "
                      "stop the program that has it.") from error  # fmt: skip
    return listener


class _TimedProtocol(H11Protocol):
    """uvicorn's, which by itself waits for ever for the headers of a request (slow loris), and for a client to read."""

    header_timeout_s = 10.0
    write_timeout_s = 60.0

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, object],
                 _loop: asyncio.AbstractEventLoop | None = None) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        self.access_log = False  # the configuration's is not looked at; the guard writes it, without the query
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._limit_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._limit_closing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # which resumes writing
        if self._header_timer is not None:
            self._header_timer.cancel()

    def _limit_closing(self) -> None:
        """A connection that closes would else wait until the client has read all."""
        if self.transport.is_closing():
            self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def _limit_headers(self) -> None:
        """Ends the connection when no request has begun in time, counted from its first byte."""
        is_waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if not is_waiting and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        elif is_waiting and self._header_timer is None and self.timeout_keep_alive_task is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self.transport.abort)
