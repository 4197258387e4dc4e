"""Responses that are kept in memory, for previous_response_id and GET /v1/responses/{id}."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20  # of their JSON


@dataclass(frozen=True, slots=True)
class Stored:
    """A response and what led to it."""

    response: Mapping[str, Any]
    input: Sequence[Mapping[str, Any]]  # the items of its own request
    previous: str | None  # the response before it
    bytes: int


class ResponseStore:
    """The latest responses; older ones go when there are too many. Lost when the process ends."""

    def __init__(self, *, most: int = MAX_RESPONSES, most_bytes: int = MAX_BYTES) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._items: dict[str, Mapping[str, Any]] = {}
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0

    def put(
        self, response: Mapping[str, Any], request_items: Sequence[Mapping[str, Any]], previous: str | None
    ) -> None:
        """Keeps a response. request_items: the items of its request."""
        size = len(json.dumps([response, request_items]))
        self._stored[response["id"]] = Stored(response, request_items, previous, size)
        self._items.update({str(item.get("id")): item for item in response["output"]})
        self._bytes += size
        while len(self._stored) > self._most or (self._bytes > self._most_bytes and len(self._stored) > 1):
            self.delete(next(iter(self._stored)))

    def get(self, name: str) -> Stored | None:
        """None where there is none, or no longer."""
        return self._stored.get(name)

    def item(self, name: str) -> Mapping[str, Any] | None:
        """An item of a stored response."""
        return self._items.get(name)

    def conversation(self, name: str) -> list[Mapping[str, Any]] | None:
        """All items up to and with a response's; None where one of the responses is no longer there."""
        parts: list[Sequence[Mapping[str, Any]]] = []
        at: str | None = name
        while at is not None:
            entry = self._stored.get(at)
            if entry is None:
                return None
            self._stored.move_to_end(at)  # a conversation that goes on stays
            parts += [entry.response["output"], entry.input]
            at = entry.previous
        return [item for part in reversed(parts) for item in part]

    def delete(self, name: str) -> bool:
        """Whether there was one."""
        entry = self._stored.pop(name, None)
        if entry is None:
            return False
        self._bytes -= entry.bytes
        for item in entry.response["output"]:
            self._items.pop(str(item.get("id")), None)
        return True
