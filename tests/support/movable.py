"""An engine without a runtime whose sessions move their KV: every number in it tells the token that it is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.checks import check_span
from tests.support.fakes import END, FakeLogits, own_name, peaked

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues


class MovableSession:
    """A sequence; `fed` is what was computed, call by call."""

    def __init__(self, engine: MovableEngine) -> None:
        self.position = 0
        self.capacity = engine.context
        self.tokens: list[int] = []
        self.fed: list[list[int]] = []
        self.copied = 0  # tokens taken out
        self._engine = engine

    def feed(self, tokens: Sequence[int]) -> FakeLogits:
        self._engine.during_feed(self)
        self.fed.append(list(tokens))
        self.tokens += tokens
        self.position = len(self.tokens)
        return peaked(hash(tuple(self.tokens)) % END)

    def rewind(self, position: int) -> None:
        assert 0 <= position <= self.position
        del self.tokens[position:]
        self.position = position

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        self.copied += stop - start
        keys = np.array(self.tokens[start:stop], np.float32)[None, :, None]
        return [(keys, -keys)]

    def import_state(self, state: KeyValues) -> None:
        keys, values = state[0]
        assert np.array_equal(keys, -values)
        self.tokens += [int(key) for key in keys[0, :, 0]]
        self.position = len(self.tokens)

    def close(self) -> None:
        self.rewind(0)


class MovableEngine:
    """Opens MovableSessions. during_feed: called at the beginning of each feed."""

    def __init__(self, *, context: int = 4096, during_feed: Callable[[MovableSession], None] = lambda _: None) -> None:
        self.device = Device(name=own_name(), backend="fake 1", description="", available=True)
        self.context = context
        self.remedy = "export with a larger --context"
        self.chunk = 512
        self.during_feed = during_feed
        self.sessions: list[MovableSession] = []

    def open(self, capacity: int = 0) -> MovableSession:
        self.sessions.append(MovableSession(self))
        return self.sessions[-1]

    def close(self) -> None: ...
