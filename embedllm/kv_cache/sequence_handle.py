"""A sequence that is kept between requests, by a conversation."""

from __future__ import annotations

from functools import partial

from embedllm.kv_cache.sequence import CachedSequence
from embedllm.kv_cache.sequence_pool import SequencePool


class SequenceHandle:
    """A sequence that somebody keeps between requests: a conversation. It is freed when this is closed or dropped."""

    def __init__(self, pool: SequencePool, capacity: int = 0) -> None:
        """capacity: tokens that it has room for from the beginning. From any thread: it is opened when it is needed."""
        self._pool = pool
        self._capacity = capacity
        self._opened: list[CachedSequence] = []
        pool.loop.when_dropped(self, partial(_drop_all, pool, self._opened))

    @property
    def sequence(self) -> CachedSequence | None:
        """None: it was not opened yet."""
        return self._opened[0] if self._opened else None

    def open(self) -> CachedSequence:
        """The sequence, in the thread of the device's loop."""
        if not self._opened:
            self._opened.append(self._pool.new(self._capacity))
        return self._opened[0]

    def close(self) -> None:
        """From any thread; twice is fine. A request that waits with it opens another one."""
        self._pool.loop.post(partial(_drop_all, self._pool, self._opened))


def _drop_all(pool: SequencePool, sequences: list[CachedSequence]) -> None:
    while sequences:
        pool.drop(sequences.pop())
