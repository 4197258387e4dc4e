"""KV on its way from a session, memory or disk to another session. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.backends.base import MovesState, MovesStored
from embedllm.kv_cache.block_cache import BLOCK

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues, Span

# tokens per transfer: some sessions copy all that they hold for it, and the host holds a copy
TRANSFER_TOKENS = 8 * BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSpan:
    """A span of a prompt whose KV is cached, and how to read it."""

    start: int
    stop: int
    read: Callable[[], KeyValues | None]  # None when it is gone meanwhile


def exported(session: MovesState, start: int, stop: int) -> KeyValues:
    """A copy of the KV of the tokens from `start` to before `stop`, stored as the session stores it where it can."""
    return export_spans(session, [(start, stop)])[0]


def export_spans(session: MovesState, spans: Sequence[Span]) -> list[KeyValues]:
    """As `exported`, of spans in order, at least one; none of them keeps the memory of another."""
    if isinstance(session, MovesStored):
        return session.export_stored(spans)
    first = spans[0][0]
    state = session.export_state(first, spans[-1][1])  # in one call: some sessions copy all that they hold for it
    if len(spans) == 1:
        return [state]
    return [
        [(key[:, start - first : stop - first].copy(), value[:, start - first : stop - first].copy())
         for key, value in state]
        for start, stop in spans
    ]  # fmt: skip


def read_spans(sources: Sequence[CachedSpan]) -> Iterator[KeyValues]:
    """The KV of consecutive spans, in pieces of about TRANSFER_TOKENS; ends at the first span that is gone."""
    if not sources:
        return
    from embedllm.backends.sessions.kv_arrays import can_join, joined  # numpy, which a browser has not

    states: list[KeyValues] = []
    count = 0
    for source in sources:
        state = source.read()
        if state is None:
            break
        if states and (count >= TRANSFER_TOKENS or not can_join(states[-1], state)):
            yield joined(states)
            states, count = [], 0
        states.append(state)
        count += source.stop - source.start
    if states:
        yield joined(states)
