"""The rule of the prefix cache: against a naive model, and by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedllm.kv_cache.block_cache import BLOCK, Block, BlockCache, block_keys, common_prefix, slice_state, state_bytes

ROOT = b"root"
# few tokens in long runs: chains that share whole blocks, differ within one, or end in one
CHAIN = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 70)), min_size=1, max_size=4).map(
    lambda runs: [token for token, count in runs for _ in range(count)]
)


def state_of(tokens: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """A KV from which the tokens can be read: 8 bytes a token."""
    array = np.array(tokens, np.float32)[None, :, None]
    return [(array, array + 1)]


def blocks_of(tokens: list[int]) -> list[Block]:
    keys = block_keys(tokens, ROOT)
    pieces = [tokens[start : start + BLOCK] for start in range(0, len(tokens), BLOCK)]
    return [Block(parent=keys[at], tokens=tuple(piece), state=state_of(piece)) for at, piece in enumerate(pieces)]


def put(cache: BlockCache, tokens: list[int]) -> None:
    blocks = blocks_of(tokens)
    for block in blocks:
        cache.put(block)
    cache.touch(blocks)


def found(cache: BlockCache, prompt: list[int]) -> list[int]:
    """The tokens whose KV the cache gives, one block after another."""
    keys, given = block_keys(prompt, ROOT), []
    for at, key in enumerate(keys):
        hit = cache.find(key, prompt[at * BLOCK :])
        if hit is None:
            break
        block, count = hit
        given += [int(value) for value in slice_state(block.state, 0, count)[0][0][0, :, 0]]
        if count < BLOCK:
            break
    return given


@given(st.lists(CHAIN, max_size=6), CHAIN)
def test_a_prompt_gets_what_the_nearest_of_all_that_was_put_gives(chains: list[list[int]], prompt: list[int]) -> None:
    cache = BlockCache(1 << 30)
    for chain in chains:
        put(cache, chain)
    longest = max((common_prefix(chain, prompt) for chain in chains), default=0)
    assert found(cache, prompt) == prompt[:longest]


@given(st.lists(CHAIN, max_size=8), st.integers(8 * BLOCK, 40 * BLOCK), CHAIN)
def test_within_a_budget_it_never_gives_wrong_tokens_nor_takes_more(
    chains: list[list[int]], budget: int, prompt: list[int]
) -> None:
    cache = BlockCache(budget)
    for chain in chains:
        put(cache, chain)
        assert cache.bytes <= budget
    assert cache.bytes == sum(state_bytes(block.state) for block in cache._blocks.values())
    given = found(cache, prompt)
    assert given == prompt[: len(given)]
    last = chains[-1] if chains else []
    if 8 * len(last) <= budget:  # what was put last is there, whatever came before
        assert len(given) >= common_prefix(last, prompt)


def test_the_blocks_of_a_chain_that_were_there_are_not_dropped_for_its_next_ones() -> None:
    cache = BlockCache(8 * 3 * BLOCK)
    put(cache, [1] * BLOCK)
    put(cache, [2] * 2 * BLOCK)
    put(cache, [1] * 2 * BLOCK)
    assert found(cache, [1] * 2 * BLOCK) == [1] * 2 * BLOCK


def test_what_chains_share_is_held_once() -> None:
    cache = BlockCache(1 << 20)
    put(cache, [1] * BLOCK + [2] * 10)
    put(cache, [1] * BLOCK + [3] * 10)
    assert (len(cache), cache.bytes) == (3, 8 * (BLOCK + 20))


def test_a_longer_block_takes_the_place_of_its_beginning() -> None:
    cache = BlockCache(1 << 20)
    put(cache, [1] * 10)
    put(cache, [1] * 20)
    put(cache, [1] * 5)
    assert (len(cache), cache.bytes) == (1, 8 * 20)


def test_the_chain_used_least_recently_goes_first_and_its_end_before_its_beginning() -> None:
    cache = BlockCache(8 * BLOCK * 4)
    put(cache, [1] * 2 * BLOCK)
    put(cache, [2] * 2 * BLOCK)
    hit = cache.find(ROOT, [1] * BLOCK)
    assert hit is not None
    cache.touch([hit[0]])
    put(cache, [3] * BLOCK)  # the end of the first chain is the oldest: only its beginning was used
    assert [len(found(cache, [token] * 2 * BLOCK)) // BLOCK for token in (1, 2, 3)] == [1, 2, 1]
    put(cache, [4] * BLOCK)
    assert [len(found(cache, [token] * 2 * BLOCK)) // BLOCK for token in (1, 2, 3, 4)] == [1, 1, 1, 1]


def test_a_block_larger_than_the_budget_is_not_kept_and_nothing_goes_for_it() -> None:
    cache = BlockCache(8 * 20)
    put(cache, [1] * 20)
    cache.put(blocks_of([2] * 21)[0])
    assert (found(cache, [2] * 21), found(cache, [1] * 20)) == ([], [1] * 20)


def test_under_another_root_nothing_is_found() -> None:
    cache = BlockCache(1 << 20)
    put(cache, [1] * BLOCK)
    assert cache.find(b"another", [1] * BLOCK) is None
    assert set(block_keys([1] * 200, b"one")).isdisjoint(block_keys([1] * 200, b"two"))


def test_a_key_is_of_all_tokens_before_it() -> None:
    one, two = block_keys([1] * 3 * BLOCK, ROOT), block_keys([2] + [1] * (3 * BLOCK - 1), ROOT)
    assert len(one) == 4
    assert set(one) & set(two) == {ROOT}


@given(st.lists(CHAIN, max_size=8), st.integers(0, 40 * BLOCK), st.integers(0, 50 * BLOCK))
def test_room_is_made_by_dropping_no_more_than_it_takes(chains: list[list[int]], budget: int, size: int) -> None:
    cache = BlockCache(budget)
    for block in (block for chain in chains for block in blocks_of(chain)):
        cache.put(block)
    before = dict(cache._blocks)
    cache.make_room(size)
    assert cache.bytes + size <= budget or not len(cache)
    assert list(cache._blocks) == list(before)[len(before) - len(cache) :]  # those used last stay
    dropped = list(before.values())[: len(before) - len(cache)]
    assert not dropped or cache.bytes + dropped[-1].bytes + size > budget
