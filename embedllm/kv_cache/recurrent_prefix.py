"""Prefixes of recurrent models: the KV of a prompt up to a position whose states are kept, and these states.

As Marconi (Pan et al. 2024) has it: states are worth their memory where prompts part, at the ends of prompts and of
replies, and at intervals. They lie with the block of KV that ends there (block_cache.py). Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, cast

from embedllm.backends.base import KeepsStates
from embedllm.backends.images import FIRST_ID
from embedllm.kv_cache.block_cache import BLOCK, Block, BlockCache, BlockStore, common_prefix
from embedllm.kv_cache.transfer import (
    TRANSFER_TOKENS,
    CachedSpan,
    export_spans,
    exported,
    span_in_memory,
    span_of_block,
    span_on_disk,
)

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from embedllm.backends.base import KeyValues, RecurrentStates, Session

    Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of states, by name

MOST_STATES = 4  # positions of one sequence whose states go into memory when it is dropped
_BUDGET_SHARE = 4  # these states take a quarter of the memory at most, where that is more than one position's


class Holder(Protocol):
    """A live sequence, which may be running."""

    session: Session

    @property
    def reusable_tokens(self) -> list[int]:
        """Its tokens, as far as their KV depends on these tokens only (not after a context shift)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrefix:
    """The tokens from `start` to before `stop` of a prompt, which are cached with the states behind them."""

    start: int
    stop: int
    spans: Sequence[CachedSpan]
    states: Callable[[], RecurrentStates | None]  # None where they are gone meanwhile


def movable(session: Session) -> KeepsStates | None:
    """The session, where its states can be given to another one."""
    return session if isinstance(session, KeepsStates) and session.kv is not None else None


def last_message(prompt: Sequence[int], marks: Container[int]) -> int:
    """Where the last message of a chat begins, by its marks; 0: nowhere.

    What opens the reply is at the end of a prompt: the mark before that has the same kind as one in it. Marks that no
    text parts from an image are not looked at: most are its own, and one message may have several images.
    """
    later: set[int] = set()
    stop = len(prompt)
    while stop > 1:
        start = stop
        while start > 1 and (prompt[start - 1] in marks or prompt[start - 1] >= FIRST_ID):
            start -= 1
        if all(prompt[at] < FIRST_ID for at in range(start, stop)):
            for at in range(stop - 1, start - 1, -1):
                if prompt[at] in later:
                    return at
                later.add(prompt[at])
        stop = start - 1
    return 0


class Blocks:
    """Blocks in memory and on disk that follow each other in a prompt."""

    def __init__(
        self,
        memory: BlockCache,
        folder: BlockStore | None,
        prompt: Sequence[int],
        keys: Sequence[bytes],
        shapes: Shapes,
    ) -> None:
        """keys: block_keys() of the prompt. shapes: of the states."""
        self._memory = memory
        self._folder = folder
        self._prompt = prompt
        self._keys = keys
        self._shapes = shapes

    def longest(self, start: int, limit: int) -> tuple[CachedPrefix | None, int]:
        """The longest prefix behind `start`, of `limit` tokens at most; and how many have KV there."""
        best: CachedPrefix | None = None
        chain: list[Block] = []  # that the best one is of
        used: list[Block] = []
        spans: list[CachedSpan] = []
        at = start
        while at < limit:
            first = at - at % BLOCK
            parent, tokens = self._keys[first // BLOCK], self._prompt[first : first + BLOCK]
            for block in self._memory.ends(parent, tokens):
                stop = first + len(block.tokens)
                if at < stop <= limit and (best is None or stop > best.stop):
                    last = span_of_block(block, first, at, stop)
                    best = CachedPrefix(start=start, stop=stop, spans=[*spans, last],
                                        states=lambda states=block.states: states)  # fmt: skip
                    chain = [*used, block]
            span = self._span(at, limit, used)
            if span is None:
                break
            at = span.stop
            spans.append(span)
            if at == first + BLOCK and (best is None or best.stop < at) and self._stores_states(at):
                best = CachedPrefix(start=start, stop=at, spans=[*spans],
                                    states=lambda at=at: self._stored_states(at))  # fmt: skip
                chain = [*used]
            if at % BLOCK:
                break
        self._memory.touch(chain)
        return best, at

    def _span(self, at: int, limit: int, used: list[Block]) -> CachedSpan | None:
        """The KV from a token on, to the end of its block or to where less is there."""
        held = list[Block]()
        span = span_in_memory(self._memory, self._prompt, at, limit, self._keys, held)
        if span is None or span.stop < min(at - at % BLOCK + BLOCK, limit):  # a whole block on disk has more
            stored = span_on_disk(self._folder, self._prompt, at, limit, self._keys)
            if stored is not None:
                return stored
        used += held
        return span

    def _stores_states(self, stop: int) -> bool:
        return self._folder is not None and self._folder.has(states_key(self._keys[stop // BLOCK]))

    def _stored_states(self, stop: int) -> RecurrentStates | None:
        assert self._folder is not None  # they are there
        kv = self._folder.read(states_key(self._keys[stop // BLOCK]), self._prompt[stop - 1 : stop])
        return None if kv is None else from_kv(kv, self._shapes)


def states_key(key: bytes) -> bytes:
    """Of the states behind a whole block, by the key of its KV."""
    return sha256(key + b"states").digest()


def as_kv(states: RecurrentStates, shapes: Shapes) -> KeyValues:
    """States in the form of KV of one token, for a file."""
    arrays = [states[name].reshape(1, 1, -1) for name in shapes]
    arrays += [arrays[-1][..., :0]] * (len(arrays) % 2)
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def from_kv(kv: KeyValues, shapes: Shapes) -> RecurrentStates | None:
    """None: they are those of another model."""
    arrays = cast("list[NDArray[np.floating]]", [array for pair in kv for array in pair][: len(shapes)])
    if [array.size for array in arrays] != [math.prod(shape) for shape in shapes.values()]:
        return None
    return {name: array.reshape(shape) for (name, shape), array in zip(shapes.items(), arrays, strict=True)}


def ends_to_store(
    memory: BlockCache, session: KeepsStates | None, prompt: Sequence[int], keys: Sequence[bytes]
) -> list[int]:
    """The ends of whole blocks of a prompt whose states are kept and go to the disk, in order.

    session: that holds the prompt; None: it does no longer, and what is in memory counts. keys: of the prompt.
    """
    if session is not None:
        kept = [at for at in session.kept() if at <= len(prompt) and not at % BLOCK]
        return session.worth_keeping(kept, 0, MOST_STATES)
    return [stop for stop in range(BLOCK, len(prompt) + 1, BLOCK) if states_behind(memory, None, prompt, keys, stop)]


def states_behind(
    memory: BlockCache, session: KeepsStates | None, prompt: Sequence[int], keys: Sequence[bytes], stop: int
) -> RecurrentStates | None:
    """Those at the end of a whole block, of the session that holds the prompt or from memory; None: they are gone."""
    if session is not None and stop in session.kept():
        return session.export_states(stop)
    there = _with_states(memory, keys[stop // BLOCK - 1], prompt[stop - BLOCK : stop])
    return there[0].states if there is not None and there[1] == BLOCK else None


def in_sequence(holder: Holder, prompt: Sequence[int], start: int, limit: int) -> tuple[CachedPrefix | None, int]:
    """As Blocks.longest, of a live sequence."""
    session = movable(holder.session)
    shared = min(common_prefix(holder.reusable_tokens, prompt), limit)
    if session is None or (stop := session.last_kept(shared)) <= start:
        return None, shared
    kv = session.kv
    assert kv is not None  # it is movable
    places = range(start, stop, TRANSFER_TOKENS)
    ends = [min(at + TRANSFER_TOKENS, stop) for at in places]
    spans = [
        CachedSpan(start=at, stop=end, read=partial(exported, kv, at, end))
        for at, end in zip(places, ends, strict=True)
    ]
    return CachedPrefix(start=start, stop=stop, spans=spans, states=lambda: session.export_states(stop)), shared


def insert_prefix(memory: BlockCache, holder: Holder, start: int, keys: Sequence[bytes], token_bytes: int) -> None:
    """Copies KV from a token on, up to the last states, and states behind it into memory, before they are dropped.

    keys: block_keys() of the sequence's tokens. token_bytes: of the KV of a token.
    """
    session, tokens = movable(holder.session), holder.reusable_tokens
    if session is None or session.kv is None:
        return
    left = memory.budget_bytes
    most = max(1, min(MOST_STATES, left // (_BUDGET_SHARE * _bytes(session))))
    positions = session.worth_keeping([at for at in session.kept() if at <= len(tokens)], start, most)
    group: list[tuple[int, int]] = []
    chain: list[Block] = []

    def put() -> None:
        assert session.kv is not None  # checked
        for (first, stop), state in zip(group, export_spans(session.kv, group) if group else (), strict=True):
            states = session.export_states(stop) if stop in positions else None
            block = Block(parent=keys[first // BLOCK], tokens=tuple(tokens[first:stop]), state=state, states=states)
            memory.put(block)
            chain.append(block)
        group.clear()

    for first, stop in _spans(start, positions):
        cost = (stop - first) * token_bytes + (_bytes(session) if stop in positions else 0)
        if cost > left:  # what comes first is worth most
            break
        left -= cost
        parent, part = keys[first // BLOCK], tokens[first:stop]
        there = memory.find(parent, part) if stop not in positions else _with_states(memory, parent, part)
        if there is not None and there[1] == len(part):
            memory.touch([there[0]])  # or the next block of the chain might drop it
            chain.append(there[0])
            continue
        memory.make_room(cost)  # before the copy, which gets their memory then
        group.append((first, stop))
        if len(group) == TRANSFER_TOKENS // BLOCK:
            put()
    put()
    memory.touch(chain)


def _with_states(memory: BlockCache, parent: bytes, tokens: Sequence[int]) -> tuple[Block, int] | None:
    """As BlockCache.find, of those that the tokens begin with and that have states."""
    longest = max(memory.ends(parent, tokens), key=lambda block: len(block.tokens), default=None)
    return None if longest is None else (longest, len(longest.tokens))


def _spans(start: int, positions: Sequence[int]) -> list[tuple[int, int]]:
    """Blocks of the tokens from `start` on up to the last of the positions, and parts of blocks that end at one."""
    spans: list[tuple[int, int]] = []
    end = positions[-1] if positions else 0
    for first in range(start - start % BLOCK, end, BLOCK):
        spans += [(first, at) for at in positions if first < at < first + BLOCK]
        if first + BLOCK <= end:
            spans.append((first, first + BLOCK))
    return spans


def _bytes(session: KeepsStates) -> int:
    """Of the states of one position."""
    return 4 * sum(map(math.prod, session.state_shapes.values()))
