"""Who is let in: hosts, origins, keys, and how much one may send."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from embedllm.server.settings import ServerSettings, is_loopback
from tests.server.serving import WAIT_S, Served, client, serving

KEY = "a-key-of-the-test"
ORIGIN = "https://app.example"
BODY = {"messages": [{"role": "user", "content": "ls"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    settings = ServerSettings(port=0, api_keys=("other", KEY), allowed_origins=(ORIGIN,), max_tokens=3,
                              allowed_hosts=("llm.example",), max_body_bytes=2000, body_timeout_s=0.4)  # fmt: skip
    with serving(settings=settings) as found:
        yield found


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost.evil.example:80"])
def test_another_host_name_is_refused(http: httpx.Client, host: str) -> None:
    response = http.get("/health", headers={"host": host})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "[::1]"])
def test_names_of_this_machine_are_served(http: httpx.Client, host: str) -> None:
    assert http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://"])
def test_pages_from_elsewhere_are_refused(http: httpx.Client, origin: str) -> None:
    response = http.post("/v1/chat/completions", json=BODY, headers={"origin": origin})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in response.headers


def test_the_own_page_is_served(served: Served, http: httpx.Client) -> None:
    assert http.post("/v1/chat/completions", json=BODY, headers={"origin": served.url}).status_code == 200


def test_a_listed_page_is_served_and_asked_before(locked: Served) -> None:
    with client(locked) as http:
        asks = {"origin": ORIGIN, "access-control-request-method": "POST",
                "access-control-request-headers": "authorization", "host": "llm.example"}  # fmt: skip
        allowed = http.options("/v1/chat/completions", headers=asks)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, ORIGIN)
        assert allowed.headers["access-control-allow-headers"] == "authorization"
        given = {"origin": ORIGIN, "authorization": f"Bearer {KEY}"}
        answered = http.post("/v1/chat/completions", json=BODY, headers=given)
        assert (answered.status_code, answered.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert http.options("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer"}, {"authorization": "Bearer a"}, {"authorization": f"Basic {KEY}"},
     {"x-api-key": f"{KEY}x"}, {"x-api-key": ""}, {"authorization": b"Bearer \xff\xfe"}],
)  # fmt: skip
def test_without_a_key_only_the_health_is_told(locked: Served, headers: dict[str, str]) -> None:
    with client(locked) as http:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/nothing"):
            response = http.get(path, headers=headers)
            assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")
        assert http.post("/v1/messages", json={}, headers=headers).json()["type"] == "error"  # Anthropic's form
        assert http.get("/health", headers=headers).status_code == 200


def test_a_key_lets_in_by_either_header(locked: Served) -> None:
    with client(locked) as http:
        for headers in ({"authorization": f"bearer {KEY}"}, {"x-api-key": "other"}):
            assert http.get("/v1/models", headers=headers).status_code == 200


def test_a_body_is_limited_whether_it_says_its_length_or_not(locked: Served) -> None:
    with client(locked, headers={"x-api-key": KEY}) as http:
        large = b'{"messages": "' + b"x" * 3000 + b'"}'
        for content in (large, iter([large[:1500], large[1500:]])):
            response = http.post("/v1/chat/completions", content=content)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


def test_a_body_that_does_not_come_ends_with_408(locked: Served) -> None:
    with socket.create_connection(("127.0.0.1", locked.port), timeout=WAIT_S) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: other\r\n"
                           b"content-length: 100\r\n\r\n{")  # fmt: skip
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")


def test_the_servers_limit_of_tokens_ends_a_reply(locked: Served) -> None:
    with client(locked, headers={"x-api-key": KEY}) as http:
        body = {**BODY, "max_tokens": 50, "min_tokens": 0}
        found = http.post("/v1/chat/completions", json=body).json()
        assert (found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]) == (3, "length")


def test_an_address_that_others_reach_needs_a_key() -> None:
    with pytest.raises(ValueError, match="other machines reach"):
        ServerSettings(host="0.0.0.0")
    assert ServerSettings(host="0.0.0.0", no_auth=True).is_loopback is False
    assert KEY not in repr(ServerSettings(host="0.0.0.0", api_keys=(KEY,)))
    with pytest.raises(ValueError, match="no header can hold"):
        ServerSettings(api_keys=("two words",))
    assert [is_loopback(name) for name in ("127.1.2.3", "::1", "[::1]", "localhost", "10.0.0.1", "example.com")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip
