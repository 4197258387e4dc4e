"""KV on its way from a session, memory or disk to another session. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.backends.base import KeepsStates, MovesState, MovesStored
from embedllm.kv_cache.block_cache import BLOCK, Block, BlockCache, BlockStore, slice_state

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues, Session, Span

# tokens per transfer: some sessions copy all that they hold for it, and the host holds a copy
TRANSFER_TOKENS = 8 * BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSpan:
    """A span of a prompt whose KV is cached, and how to read it."""

    start: int
    stop: int
    read: Callable[[], KeyValues | None]  # None when it is gone meanwhile


def kv_mover(session: Session) -> MovesState | None:
    """What takes a session's KV out and in; of a recurrent model it is of use with the states only."""
    mover = session.kv if isinstance(session, KeepsStates) else session
    return mover if isinstance(mover, MovesState) else None


def span_of_block(block: Block, first: int, start: int, stop: int) -> CachedSpan:
    """Some tokens of a block in memory. first: the token that it begins with."""
    return CachedSpan(start=start, stop=stop, read=lambda: slice_state(block.state, start - first, stop - first))


def span_in_memory(
    memory: BlockCache, prompt: Sequence[int], at: int, limit: int, keys: Sequence[bytes], used: list[Block]
) -> CachedSpan | None:
    """The tokens of a prompt from one on that a block in memory has, before `limit`; the block is added to `used`."""
    first = at - at % BLOCK
    match = memory.find(keys[at // BLOCK], prompt[first : first + BLOCK])
    if match is None:
        return None
    block, count = match
    stop = min(first + count, limit)
    if stop <= at:
        return None
    used.append(block)
    return span_of_block(block, first, at, stop)


def span_on_disk(
    folder: BlockStore | None, prompt: Sequence[int], at: int, limit: int, keys: Sequence[bytes]
) -> CachedSpan | None:
    """As span_in_memory, of a block on disk."""
    index = at // BLOCK
    if folder is None or index + 1 >= len(keys) or not folder.has(keys[index + 1]):
        return None
    first = index * BLOCK
    stop = min(first + BLOCK, limit)

    def read() -> KeyValues | None:
        state = folder.read(keys[index + 1], prompt[first : first + BLOCK])
        return None if state is None else slice_state(state, at - first, stop - first)

    return CachedSpan(start=at, stop=stop, read=read)


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
