"""The guard in front of all endpoints: Host, Origin (CORS), API key, concurrent requests, headers of responses."""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from embedllm.server.endpoint import EndpointApp
from embedllm.server.errors import ApiError, Dialect, encode
from embedllm.server.metrics import Metrics
from embedllm.server.settings import ServerSettings, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("embedllm.server")
OPEN_PATHS = frozenset({"/", "/health", "/ready"})  # without a key: they tell nothing
_MOST_LOGGED = 120  # characters of a path


class Guard:
    """ASGI middleware. What it refuses never reaches an endpoint."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._keys = [key.encode() for key in settings.api_keys]
        self._hosts = {host.lower() for host in settings.allowed_hosts}
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        # by itself Starlette redirects to the path without it, and to http:// behind a proxy that ends TLS
        scope["path"] = scope["path"].rstrip("/") or "/"
        headers = Headers(scope=scope)
        scope["embedllm.request_id"] = request_id = f"req_{os.urandom(12).hex()}"
        origin, status = headers.get("origin"), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                reply_headers = MutableHeaders(scope=message)
                reply_headers["x-request-id"] = reply_headers["request-id"] = (
                    request_id  # OpenAI's and Anthropic's names
                )
                reply_headers["x-content-type-options"] = "nosniff"
                if origin is not None and self._is_listed(origin):
                    reply_headers["access-control-allow-origin"] = origin
                    reply_headers["access-control-expose-headers"] = "x-request-id, retry-after"
                    reply_headers["vary"] = "Origin"
            await send(message)

        is_counted = scope["method"] == "POST"
        self._running += is_counted
        try:
            self._check(scope, headers)
            if scope["method"] == "OPTIONS" and origin is not None:
                await _answer(send_guarded, 204, b"", _preflight(headers))
            else:
                await self._app(scope, receive, send_guarded)
        except ApiError as error:
            body = encode(error.body(dialect(scope["path"]), request_id))
            await _answer(send_guarded, error.status, body, {"content-type": "application/json", **error.headers})
        finally:
            self._running -= is_counted
            took_s = time.perf_counter() - began_s
            endpoint = scope.get("endpoint")
            path = endpoint.endpoint.path if isinstance(endpoint, EndpointApp) else "other"  # never what was sent
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_s.labels(path).observe(took_s)
            _log.info("%s %s %s %.3f s %s", scope["method"], ascii(scope["path"][:_MOST_LOGGED]), status, took_s,
                      request_id)  # fmt: skip

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises ApiError."""
        host = headers.get("host", "")
        self._check_host(host)
        self._check_origin(headers.getlist("origin"), host)
        if scope["method"] == "OPTIONS":
            return  # browsers send no key with it
        if self._keys and scope["path"] not in OPEN_PATHS and not self._has_key(headers):
            raise ApiError(401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or x-api-key.",
                           code="invalid_api_key")  # fmt: skip
        if scope["method"] == "POST" and self._running > self._settings.max_requests:
            raise ApiError(429, f"too many concurrent requests (limit {self._settings.max_requests}); retry later.",
                           code="rate_limit_exceeded", retry_after_s=1)  # fmt: skip

    def _check_host(self, host: str) -> None:
        """A page may point a name of its own at this machine (DNS rebinding); then that name is here."""
        if not (self._settings.is_loopback or self._hosts):
            return
        name = _name_of(host)
        if not (is_loopback(name) or name in self._hosts or host.lower() in self._hosts):
            raise ApiError(403, f"the host {host[:80]!a} is not served here. Use localhost, or start the server "
                           "with --allowed-host.", code="host_not_allowed")  # fmt: skip

    def _check_origin(self, origins: list[str], host: str) -> None:
        """Browsers send where a page is from with all that could change or reveal something."""
        for origin in origins:
            if not (self._is_listed(origin) or origin.partition("://")[2].lower() == host.lower() != ""):
                raise ApiError(403, f"pages from {origin[:80]!a} may not use this server. Start it with "
                               "--allowed-origin to allow that.", code="origin_not_allowed")  # fmt: skip

    def _is_listed(self, origin: str) -> bool:
        listed = self._settings.allowed_origins
        return "*" in listed or origin in listed

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        client_key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # all of them: constant time
        matches = [hmac.compare_digest(client_key.encode("latin-1"), key) for key in self._keys]
        return any(matches)


def dialect(path: str) -> Dialect:
    """Whose form an error of a path has."""
    return "anthropic" if path.startswith("/v1/messages") else "openai"


def _name_of(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() and (host.startswith("[") or ":" not in name) else host).lower()


def _preflight(headers: Headers) -> dict[str, str]:
    """What a browser asks before a page may send a request."""
    reply_headers = {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": headers.get("access-control-request-headers", "content-type, authorization"),
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        reply_headers["access-control-allow-private-network"] = "true"
    return reply_headers


async def _answer(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    if status != 204:
        raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
