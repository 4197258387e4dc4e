"""The prefix cache: reuses the KV of common prompt prefixes, from memory, other live sequences and disk.

As vLLM's automatic prefix caching, with hash-chained blocks (block_cache.py). A request's own sequence comes first;
from the first token that differs, blocks in memory, then another live sequence with the same prefix, then blocks on
disk. KV is copied out of a sequence when it would be evicted with it, or when another request needs it; a sequence that
only grows costs nothing. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from embedllm.backends.base import KeepsStates, MovesState, Session
from embedllm.files.home_path import expanded
from embedllm.kv_cache.block_cache import BLOCK, Block, BlockCache, BlockStore, block_keys, common_prefix, slice_state
from embedllm.kv_cache.fingerprint import kv_fingerprint, root_key
from embedllm.kv_cache.recurrent_prefix import (
    Blocks,
    CachedPrefix,
    Holder,
    as_kv,
    ends_to_store,
    in_sequence,
    insert_prefix,
    movable,
    states_behind,
    states_key,
)
from embedllm.kv_cache.transfer import (
    TRANSFER_TOKENS,
    CachedSpan,
    export_spans,
    exported,
    kv_mover,
    span_in_memory,
    span_on_disk,
)
from embedllm.package.lora.adapter import Adapter, is_same

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

MIN_TOKENS = BLOCK // 2  # tokens; fewer are computed: moving them costs about as much


class PeerSequence(Holder, Protocol):
    """One of the same engine."""

    adapter: Adapter | None  # that its tokens were computed with


class Writer(Protocol):
    """Does jobs in a thread of its own."""

    def add(self, job: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What a prefix cache did so far, and holds; tokens and bytes."""

    hit_tokens: int  # of prompts, that were not computed again
    prompt_tokens: int  # of all prompts
    evicted_bytes: int  # dropped for others
    held_bytes: int
    capacity_bytes: int


class PrefixCache:
    """The prefix cache of a model. Used in the thread of the device's loop."""

    def __init__(
        self, budget_bytes: int, *, model: Mapping[str, str] | None = None, folder: BlockStore | None = None
    ) -> None:
        """model: the model's fingerprint (fingerprint.py); needed with a folder."""
        self.folder = folder
        self._model = dict(model or {})
        self._root = b""
        self._about: dict[str, str] = {}
        self._memory = BlockCache(budget_bytes)
        self._bytes_per_token = 0  # 0: not known yet
        self._hit_tokens = self._prompt_tokens = 0

    def bind_session(self, session: Session) -> None:
        """Takes the KV fingerprint of the first session, which the blocks on disk must have."""
        mover = kv_mover(session)
        if self.folder is not None and not self._root and mover is not None:
            kind = kv_fingerprint(self._model, mover)
            self._about, self._root = {"kind": json.dumps(kind)}, root_key(kind)

    @property
    def bytes(self) -> int:
        """Bytes of KV in memory."""
        return self._memory.bytes

    @property
    def statistics(self) -> CacheStatistics:
        memory = self._memory
        return CacheStatistics(hit_tokens=self._hit_tokens, prompt_tokens=self._prompt_tokens, held_bytes=memory.bytes,
                               evicted_bytes=memory.evicted_bytes, capacity_bytes=memory.budget_bytes)  # fmt: skip

    def count(self, hit_tokens: int, prompt_tokens: int) -> None:
        """Counts a prompt for the statistics."""
        self._hit_tokens += hit_tokens
        self._prompt_tokens += prompt_tokens

    def find(
        self, prompt: Sequence[int], start: int, peers: Iterable[PeerSequence], adapter: Adapter | None = None
    ) -> list[CachedSpan]:
        """The cached spans of a prompt from a token on, without a gap; none when they are too short to be worth a copy.

        adapter: that it was computed with.
        """
        limit = len(prompt) - 1  # the last one is fed, for its logits
        if limit - start < MIN_TOKENS:
            return []
        keys = block_keys(prompt, self._root_of(adapter))
        peer, shared = _longest(prompt, (peer for peer in peers if is_same(peer.adapter, adapter)))
        sources: list[CachedSpan] = []
        used: list[Block] = []
        at = start
        while at < limit:
            source = span_in_memory(self._memory, prompt, at, limit, keys, used)
            if source is None and peer is not None and shared > at:
                source = _in_sequence(peer, prompt, at, shared, adapter)
            source = source or span_on_disk(self.folder, prompt, at, limit, keys)
            if source is None:
                break
            sources.append(source)
            at = source.stop
        self._memory.touch(used)
        return sources if at - start >= MIN_TOKENS else []

    def find_recurrent(
        self,
        session: KeepsStates,
        prompt: Sequence[int],
        start: int,
        peers: Iterable[PeerSequence],
        adapter: Adapter | None = None,
    ) -> tuple[CachedPrefix | None, int]:
        """As find, for a recurrent model; and how many tokens others have had in common with this prompt."""
        limit = len(prompt) - 1
        keys = block_keys(prompt, self._root_of(adapter))
        found = [Blocks(self._memory, self.folder, prompt, keys, session.state_shapes).longest(start, limit)]
        found += [in_sequence(peer, prompt, start, limit) for peer in peers if is_same(peer.adapter, adapter)]
        prefixes = [prefix for prefix, _ in found if prefix is not None and prefix.stop - start >= MIN_TOKENS]
        return max(prefixes, key=lambda prefix: prefix.stop, default=None), max(shared for _, shared in found)

    def insert(self, holder: PeerSequence, start: int) -> None:
        """Copies the KV of a sequence from a token on into memory, before that KV is dropped."""
        tokens, session = holder.reusable_tokens, holder.session
        if len(tokens) - start < MIN_TOKENS or not self._memory.budget_bytes:
            return
        keys = block_keys(tokens, self._root_of(holder.adapter))
        if (recurrent := movable(session)) is not None and recurrent.kv is not None:
            insert_prefix(self._memory, holder, start, keys, self._token_bytes(recurrent.kv))
        if not isinstance(session, MovesState):
            return
        size = self._token_bytes(session)
        left = self._memory.budget_bytes // size  # tokens
        new_blocks: list[Block] = []
        for group in _runs(self._missing(tokens, start, keys), TRANSFER_TOKENS // BLOCK):
            spans = [(at * BLOCK, min((at + 1) * BLOCK, len(tokens))) for at in group]
            spans = [span for span in spans if span[1] - spans[0][0] <= left]  # what comes first is worth most
            if not spans:
                break
            count = spans[-1][1] - spans[0][0]
            left -= count
            self._memory.make_room(count * size)  # before the copy, which gets their memory then
            states = export_spans(session, spans)
            blocks = [Block(parent=keys[first // BLOCK], tokens=tuple(tokens[first:last]), state=state)
                      for (first, last), state in zip(spans, states, strict=True)]  # fmt: skip
            for block in blocks:
                self._memory.put(block)
            new_blocks += blocks
        self._memory.touch(new_blocks)

    def exports(
        self, holder: PeerSequence, prompt: Sequence[int], writer: Writer, adapter: Adapter | None = None
    ) -> Iterator[None]:
        """Writes the prompt's complete blocks that are not on disk yet, a few per iteration.

        They are copied from the sequence or from memory, and written by the writer. adapter: that they were computed
        with; by the time the sequence may have another.
        """
        folder = self.folder
        if folder is None:
            return
        from embedllm.backends.sessions.kv_arrays import on_host  # numpy

        keys = block_keys(prompt, self._root_of(adapter))
        stored, of_states, has_grown = keys[1:], list[bytes](), False
        if (session := movable(holder.session)) is not None:
            ends = ends_to_store(self._memory, _held(holder, prompt, adapter), prompt, keys)
            for stop in ends:
                of_states.append(states_key(keys[stop // BLOCK]))
                if folder.has(of_states[-1]):
                    continue
                held = _held(holder, prompt, adapter)  # by the time a request may have it
                states = states_behind(self._memory, held, prompt, keys, stop)
                if states is not None:
                    kv, last = as_kv(states, session.state_shapes), prompt[stop - 1 : stop]
                    writer.add(partial(folder.write, of_states[-1], last, kv, self._about))
                    has_grown = True
                yield
            stored = keys[1 : 1 + max(ends, default=0) // BLOCK]  # behind them it is of no use
        missing = [at for at, key in enumerate(stored) if not folder.has(key)]
        for group in _runs(missing, TRANSFER_TOKENS // BLOCK):
            state = _exported(holder, prompt, group[0] * BLOCK, (group[-1] + 1) * BLOCK, adapter)
            for at in group:
                offset = (at - group[0]) * BLOCK
                tokens = prompt[at * BLOCK : (at + 1) * BLOCK]
                block = slice_state(state, offset, offset + BLOCK) if state else self._whole(keys[at], tokens)
                if block is not None:
                    writer.add(partial(folder.write, keys[at + 1], tokens, on_host(block), self._about))
            yield
        writer.add(partial(folder.used, [*stored, *of_states]))
        if missing or has_grown:
            writer.add(folder.trim)

    def _root_of(self, adapter: Adapter | None) -> bytes:
        """The key before every token: nothing under one adapter is found under another, or under none."""
        return self._root if adapter is None else sha256(self._root + adapter.sha256.encode()).digest()

    def clear(self) -> None:
        """Frees what is in memory."""
        self._memory.clear()

    def _missing(self, tokens: Sequence[int], start: int, keys: Sequence[bytes]) -> list[int]:
        """The indices of the blocks from a token on that are not in memory."""
        blocks = range(start // BLOCK, -(-len(tokens) // BLOCK))
        return [at for at in blocks if not self._memory.has(keys[at], tokens[at * BLOCK : (at + 1) * BLOCK])]

    def _token_bytes(self, session: MovesState) -> int:
        """What the KV of a token takes; asked once, since some sessions copy all that they hold for it."""
        if not self._bytes_per_token:
            state = exported(session, 0, 0)
            self._bytes_per_token = sum(a.shape[0] * a.shape[2] * a.dtype.itemsize for pair in state for a in pair)
        return self._bytes_per_token

    def _whole(self, parent: bytes, tokens: Sequence[int]) -> KeyValues | None:
        """A whole block in memory."""
        match = self._memory.find(parent, tokens)
        return match[0].state if match is not None and match[1] == BLOCK else None


def _longest(prompt: Sequence[int], peers: Iterable[PeerSequence]) -> tuple[PeerSequence | None, int]:
    """The sequence with the longest common prefix, and its length in tokens."""
    movable = (peer for peer in peers if isinstance(peer.session, MovesState))
    return max(
        ((peer, common_prefix(peer.reusable_tokens, prompt)) for peer in movable),
        key=lambda one: one[1],
        default=(None, 0),
    )


def _in_sequence(
    peer: PeerSequence, prompt: Sequence[int], at: int, shared: int, adapter: Adapter | None
) -> CachedSpan:
    stop = min(at + TRANSFER_TOKENS, shared, len(prompt) - 1)
    return CachedSpan(start=at, stop=stop, read=lambda: _exported(peer, prompt, at, stop, adapter))


def _held(holder: PeerSequence, prompt: Sequence[int], adapter: Adapter | None) -> KeepsStates | None:
    """The session of a recurrent model, while it holds a prompt."""
    is_held = is_same(holder.adapter, adapter) and list(prompt) == holder.reusable_tokens[: len(prompt)]
    return movable(holder.session) if is_held else None


def _exported(
    holder: PeerSequence, prompt: Sequence[int], start: int, stop: int, adapter: Adapter | None
) -> KeyValues | None:
    """A copy of a sequence's KV of a prompt; None when it was dropped meanwhile."""
    mover = kv_mover(holder.session)
    if mover is None or not is_same(holder.adapter, adapter):
        return None
    if list(prompt[:stop]) != holder.reusable_tokens[:stop]:
        return None
    return exported(mover, start, stop)


def _runs(places: Sequence[int], most: int) -> Iterator[list[int]]:
    """Whole numbers in order, as runs without a gap of at most `most`."""
    run: list[int] = []
    for place in places:
        if run and (place != run[-1] + 1 or len(run) == most):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


PREFIX_CACHE_BYTES = 256 << 20  # bytes
CACHE_DIR_BYTES = 4 << 30  # bytes


def open_disk_store(
    cache_dir: str | os.PathLike[str] | None, *, prefix_cache: int | None, budget_bytes: int
) -> BlockStore | None:
    """The disk store, or None without a cache_dir.

    Raises ValueError for sizes that make no sense, EmbedError when the folder cannot be made.
    """
    for name, size in (
        ("prefix_cache", 0 if prefix_cache is None else prefix_cache),
        ("cache_dir_bytes", budget_bytes),
    ):
        if type(size) is not int or size < 0:
            raise ValueError(f"{name} is {size!r}; expected bytes, 0 or more.")
    if cache_dir is None:
        return None
    from embedllm.kv_cache.disk_store import DiskStore

    return DiskStore(expanded(cache_dir), budget_bytes=budget_bytes)
