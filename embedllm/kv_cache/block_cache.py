"""Hash-chained blocks of KV in memory with LRU eviction, as in vLLM's automatic prefix caching.

A token sequence is split into blocks of BLOCK tokens. The key of a block is a hash of its tokens and of the previous
key, so it identifies all tokens up to its end. A block can be cached without the ones before it: a prompt's KV is
combined from a sequence, memory and disk, which a radix tree does not allow. Standard library only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues, RecurrentStates

BLOCK = 64  # tokens


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Block:
    """The KV of at most BLOCK tokens; fewer at the end of what was kept."""

    parent: bytes  # the key before it
    tokens: tuple[int, ...]
    state: KeyValues
    states: RecurrentStates | None = None  # of a recurrent model, behind its last token, where they are kept

    @property
    def bytes(self) -> int:
        return state_bytes(self.state) + (0 if self.states is None else _bytes_of_states(self.states))


class BlockStore(Protocol):
    """Blocks on disk."""

    def has(self, key: bytes) -> bool: ...

    def read(self, key: bytes, tokens: Sequence[int]) -> KeyValues | None:
        """The KV of a whole block; None when it is gone or damaged."""
        ...

    def write(self, key: bytes, tokens: Sequence[int], state: KeyValues, about: Mapping[str, str]) -> None: ...

    def used(self, keys: Sequence[bytes]) -> None:
        """Notes that a chain of blocks was used."""
        ...

    def trim(self) -> None:
        """Drops those used least recently beyond the budget."""
        ...


def state_bytes(state: KeyValues) -> int:
    if (size := getattr(state, "nbytes", None)) is not None:  # of a device: backends/gpu/device_memory.py
        return size
    return sum(keys.nbytes + values.nbytes for keys, values in state)


def _bytes_of_states(states: RecurrentStates) -> int:
    if (size := getattr(states, "nbytes", None)) is not None:  # of a device: backends/gpu/state_pool.py
        return size
    return sum(array.nbytes for array in states.values())


def slice_state(state: KeyValues, start: int, stop: int) -> KeyValues:
    """The tokens from `start` to before `stop` of a state, without a copy."""
    if (sliced := getattr(state, "sliced", None)) is not None:
        return sliced(start, stop)
    return [(key[:, start:stop], value[:, start:stop]) for key, value in state]


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a whole block."""
    try:
        numbers = array("i", tokens)
    except OverflowError:  # ids of images (embedllm/backends/images.py)
        numbers = array("q", tokens)
    return sha256(parent + numbers.tobytes()).digest()


def block_keys(tokens: Sequence[int], root: bytes) -> list[bytes]:
    """Of every block: the key before it, then the key of the last whole one.

    root: the key of the KV fingerprint; blocks of different roots never match.
    """
    keys = [root]
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        keys.append(block_key(keys[-1], tokens[start : start + BLOCK]))
    return keys


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two token sequences."""
    count = min(len(one), len(other))
    one, other = list(one[:count]), list(other[:count])
    if one == other:
        return count
    same, different = 0, count  # how many are surely equal; up to where there surely is a difference
    while different - same > 1:
        middle = (same + different) // 2
        if one[same:middle] == other[same:middle]:  # many at once, which is a hundred times as fast as one by one
            same = middle
        else:
            different = middle
    return same


def _replaces(block: Block, other: Block) -> bool:
    """Whether the other of two blocks after one key is of no use beside this one."""
    if block.tokens[: len(other.tokens)] != other.tokens:
        return False
    return other.states is None or (block.states is not None and len(block.tokens) == len(other.tokens))


class BlockCache:
    """Blocks in memory, within a budget in bytes. For one thread at a time."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes = 0
        self.evicted_bytes = 0  # so far
        self._blocks: dict[tuple[bytes, tuple[int, ...]], Block] = {}  # the least recently used first
        self._after: dict[bytes, list[Block]] = {}  # by the key before them

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, parent: bytes, tokens: Sequence[int]) -> tuple[Block, int] | None:
        """The block that has most in common with the tokens after that key, and how many tokens that is."""
        tokens = tokens[:BLOCK]
        candidates = [(block, common_prefix(block.tokens, tokens)) for block in self._after.get(parent, ())]
        best = max(candidates, key=lambda pair: pair[1], default=None)
        return best if best and best[1] else None

    def has(self, parent: bytes, tokens: Sequence[int]) -> bool:
        """Whether there is KV of these tokens after that key, of a block at most."""
        match = self.find(parent, tokens)
        return match is not None and match[1] == len(tokens)

    def ends(self, parent: bytes, tokens: Sequence[int]) -> list[Block]:
        """The blocks after that key that these tokens begin with, and that have the states behind them."""
        after = self._after.get(parent, ())
        return [each for each in after if each.states is not None and tuple(tokens[: len(each.tokens)]) == each.tokens]

    def put(self, block: Block) -> None:
        """Keeps a block, and drops those used least recently for it; nothing when it is larger than the budget.

        One that begins a longer one is of no use beside it, but for its states.
        """
        siblings = self._after.get(block.parent, [])
        longer = next((other for other in siblings if _replaces(other, block)), None)
        if longer is not None:
            self.touch([longer])  # or the next block of its chain might drop it
            return
        size = block.bytes
        if size > self.budget_bytes:
            return
        for shorter in [other for other in siblings if _replaces(block, other)]:
            self._drop(shorter)
        self.make_room(size)
        self._blocks[block.parent, block.tokens] = block
        self._after.setdefault(block.parent, []).append(block)
        self.bytes += size

    def make_room(self, size: int) -> None:
        """Drops blocks used least recently until `size` more bytes are within the budget, or none is left."""
        while self._blocks and self.bytes + size > self.budget_bytes:
            oldest = next(iter(self._blocks.values()))
            self.evicted_bytes += oldest.bytes
            self._drop(oldest)

    def touch(self, blocks: Iterable[Block]) -> None:
        """Notes that a chain of blocks was used; of a chain the last ones go first."""
        for block in reversed(list(blocks)):
            key = block.parent, block.tokens
            if self._blocks.get(key) is block:
                self._blocks[key] = self._blocks.pop(key)

    def clear(self) -> None:
        self._blocks.clear()
        self._after.clear()
        self.bytes = 0

    def _drop(self, block: Block) -> None:
        del self._blocks[block.parent, block.tokens]
        siblings = self._after[block.parent]
        siblings.remove(block)
        if not siblings:
            del self._after[block.parent]
        self.bytes -= block.bytes
