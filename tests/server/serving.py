"""A server on a loopback port, in a thread, for tests that ask it as clients do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvicorn

import embedllm
from embedllm.generation.scheduler_statistics import scheduler_statistics
from embedllm.server.endpoint import ToolServers
from embedllm.server.memory_need import MemoryNeed
from embedllm.server.model_pool import ModelPool, ServedModel
from embedllm.server.request_record import Tracing
from embedllm.server.run import make_server
from embedllm.server.settings import ServerSettings

DEMO = ServedModel(name="demo", path="demo", aliases=("gpt-4o",), pinned=True)
WAIT_S = 120.0  # only ever waited for by a test that fails


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server."""

    url: str
    port: int
    pool: ModelPool
    server: uvicorn.Server
    thread: threading.Thread

    @property
    def running(self) -> int:
        """Requests that models compute or have in their queues."""
        runners = [model.runner for model in self.pool.loaded.values()]
        found = [scheduler_statistics(runner.scheduler, runner.sequences) for runner in runners]
        return sum(one.running + one.waiting for one in found)

    @property
    def model(self) -> embedllm.Model:
        (found,) = self.pool.loaded.values()
        return found


@contextmanager
def serving(
    models: Sequence[ServedModel] = (DEMO,),
    settings: ServerSettings | None = None,
    *,
    model: embedllm.Model | None = None,
    send_buffer: int | None = None,
    tracing: Tracing | None = None,
    tool_servers: ToolServers | None = None,
) -> Iterator[Served]:
    """A server of models, which is ended at the end of the block.

    model: loaded already, in place of the first one. send_buffer: bytes of the system's, for what nobody reads.
    """
    pool = ModelPool(models)
    if model is not None:
        pool = ModelPool(models, load=lambda path, options: model, need=lambda served: MemoryNeed(1))
    server = make_server(pool, settings or ServerSettings(port=0), tracing=tracing, tool_servers=tool_servers)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # connections inherit it
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), name="test-server")
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            yield Served(url=f"http://127.0.0.1:{port}", port=port, pool=pool, server=server, thread=thread)
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive(), "the server did not end"


def wait_until(is_true: object, seconds: float = WAIT_S) -> None:
    """Waits for a condition. Raises AssertionError when it does not come."""
    assert callable(is_true)
    done = threading.Event()
    for _ in range(int(seconds * 200)):
        if is_true():
            return
        done.wait(0.005)
    raise AssertionError("what was waited for did not happen")


def client(served: Served, **options: object) -> httpx.Client:
    """An HTTP client; a new connection to the server."""
    return httpx.Client(base_url=served.url, timeout=WAIT_S, trust_env=False, **options)  # type: ignore[arg-type]  # httpx's
