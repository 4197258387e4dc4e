"""The HTTP client of an MCP server's URL: its headers, time limits, and a bound for what is read of a reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > self._max_bytes:
                raise httpx2.ReadError(f"the server's reply is longer than {self._max_bytes} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def http_client(headers: Mapping[str, str], timeout_s: float, max_message_bytes: int) -> httpx2.AsyncClient:
    """A client whose replies are bounded, but for streams of events, whose single events the transport bounds.

    timeout_s: without a byte of a reply.
    """

    async def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":  # a small one may become a huge one
            raise httpx2.ReadError("the server's reply is compressed, which was not asked for")
        is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        if not is_events and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, max_message_bytes)

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **headers},
        timeout=httpx2.Timeout(min(timeout_s, 30.0), read=timeout_s),
        event_hooks={"response": [bound]},
    )
