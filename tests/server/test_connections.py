"""Clients that go away, are slow or too many, and the end of the server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from embedllm.loading.options import LoadOptions
from embedllm.server.model_pool import ServedModel
from embedllm.server.settings import ServerSettings
from tests.server.serving import WAIT_S, Served, client, serving, wait_until

LONG_TOKENS = 1500
LONG = {"messages": [{"role": "user", "content": "tell me all"}], "max_tokens": LONG_TOKENS, "min_tokens": LONG_TOKENS}


def send(served: Served, body: object) -> socket.socket:
    """A connection with a request on it."""
    content = json.dumps(body).encode()
    connection = socket.socket()
    connection.settimeout(WAIT_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read is seen early
    connection.connect(("127.0.0.1", served.port))
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s"
                       % (len(content), content))  # fmt: skip
    return connection


def tokens_generated(served: Served) -> float:
    with client(served) as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("embedllm_generation_tokens_total{"))


@contextmanager
def ends_early(served: Served) -> Iterator[None]:
    """The reply of the block ends after it, and before all that LONG asks for."""
    before = tokens_generated(served)
    yield
    wait_until(lambda: served.running == 0 and not served.server.server_state.tasks)
    assert tokens_generated(served) - before < LONG_TOKENS


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_reply(served: Served, *, stream: bool) -> None:
    with ends_early(served), send(served, {**LONG, "stream": stream}) as connection:
        wait_until(lambda: served.running == 1)
        if stream:
            connection.recv(10)


def test_a_client_that_closes_its_half_ends_its_reply(served: Served) -> None:
    with send(served, {**LONG, "stream": True}) as connection, ends_early(served):
        wait_until(lambda: served.running == 1)
        connection.shutdown(socket.SHUT_WR)


def test_headers_that_come_drop_by_drop_end_the_connection() -> None:
    settings = ServerSettings(port=0, header_timeout_s=0.3)
    with serving(settings=settings) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nhost: local")
            began = time.monotonic()
            assert slow.recv(100) == b""
            assert time.monotonic() - began < ServerSettings().header_timeout_s  # the default
        with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as silent:
            assert silent.recv(100) == b""
        with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as second:
            second.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert second.recv(1000).startswith(b"HTTP/1.1 200")
            second.sendall(b"GET /hea")
            while second.recv(1000):  # the first answer, and then the end
                pass


@pytest.mark.slow
def test_a_client_that_does_not_read_is_dropped() -> None:
    with serving(settings=ServerSettings(port=0, write_timeout_s=0.3), send_buffer=8192) as served:
        body = {**LONG, "stream": True, "n": 16, "logprobs": True, "top_logprobs": 20}
        with send(served, body):  # and nothing is read
            wait_until(lambda: served.running > 0)
            wait_until(lambda: served.running == 0)
            wait_until(lambda: not served.server.server_state.connections)


def test_one_too_many_gets_429_and_when_to_come_again() -> None:
    settings = ServerSettings(port=0, max_requests=1)
    with serving(settings=settings) as served, send(served, LONG), client(served) as http:
        wait_until(lambda: served.running == 1)
        response = http.post("/v1/chat/completions", json=LONG)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert http.get("/health").status_code == 200


def test_a_full_queue_of_the_model_is_429_for_streams_too() -> None:
    one = ServedModel(name="demo", path="demo", pinned=True, options=LoadOptions(max_sequences=1, max_waiting=0))
    with serving([one]) as served, client(served) as http, send(served, LONG):
        wait_until(lambda: served.running == 1)
        for stream in (False, True):
            response = http.post("/v1/chat/completions", json={**LONG, "stream": stream})
            assert (response.status_code, response.headers["retry-after"]) == (429, "1")


def test_a_time_limit_is_told_and_not_tried_again() -> None:
    with serving(settings=ServerSettings(port=0, request_timeout_s=0.2)) as served, client(served) as http:
        response = http.post("/v1/chat/completions", json=LONG)
        assert (response.status_code, response.headers["x-should-retry"]) == (408, "false")
        with http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as streamed:
            lines = [line for line in streamed.iter_lines() if line.startswith("data: ")]
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["type"] == "timeout_error"
        assert lines[-1] == "data: [DONE]"


def test_a_stream_that_waits_gets_comments() -> None:
    one = ServedModel(name="demo", path="demo", pinned=True, options=LoadOptions(max_sequences=1))
    with serving([one], ServerSettings(port=0, keep_alive_s=0.1)) as served, send(served, LONG) as first:
        wait_until(lambda: served.running == 1)
        with send(served, {**LONG, "stream": True}) as second:
            found = b""
            while b": keep-alive" not in found:
                found += second.recv(4096)
            assert b"data:" not in found
        first.close()
        wait_until(lambda: served.running == 0)


def test_the_end_of_the_server_finishes_streams_and_takes_no_more() -> None:
    body = {**LONG, "max_tokens": 150, "min_tokens": 150, "stream": True}
    found: list[str] = []
    with serving() as served:
        with client(served) as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            found.append(next(lines))
            served.server.should_exit = True
            found += lines
        served.thread.join(WAIT_S)
        assert not served.thread.is_alive()
        assert not served.pool.loaded
        try:
            httpx.get(f"{served.url}/health", trust_env=False)
        except httpx.ConnectError:
            pass
        else:
            raise AssertionError("a server that has ended answers")
    pieces = [line for line in found if line.startswith("data: ")]
    assert pieces[-1] == "data: [DONE]"
    assert len(pieces) > 100


def test_what_is_not_done_when_the_server_has_to_end_is_told() -> None:
    found: list[str] = []
    body = {**LONG, "stream": True}
    with (
        serving(settings=ServerSettings(port=0, end_timeout_s=1)) as served,
        client(served) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        found.append(next(lines))
        served.server.should_exit = True
        found += lines
    pieces = [line.removeprefix("data: ") for line in found if line.startswith("data: ")]
    assert json.loads(pieces[-2])["error"]["code"] == "server_ends"


@pytest.mark.slow
def test_many_clients_at_once_are_all_answered(served: Served) -> None:
    statuses: list[int] = []

    def ask() -> None:
        with client(served) as http:
            body = {"messages": LONG["messages"], "max_tokens": 4}
            statuses.append(http.post("/v1/chat/completions", json=body).status_code)

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 24
    wait_until(lambda: served.running == 0)
