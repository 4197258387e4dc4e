"""Shifts of a full sequence: how many tokens go, and that those that stay are as if they had always stood there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm import Model, Sampling, load
from embedllm.backends.base import MovesState
from embedllm.cancel import Cancel
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.generation.chunk import Chunk
from embedllm.generation.request import Request
from embedllm.kv_cache.context_shift import ContextShift, check_movable
from embedllm.kv_cache.sequence_pool import CachedSequence
from embedllm.package.architecture.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Rope,
    RopeScaling,
    YarnScaling,
)
from embedllm.package.architecture.weights import Linear
from embedllm.package.rope import moved_keys, tables
from tests.support.tiny import tiny_config

GREEDY = Sampling(temperature=0)
PLAIN = Rope(base=10000.0, rotary_dim=16)
SCALINGS: list[RopeScaling | None] = [
    None,
    LinearScaling(factor=4.0),
    DynamicScaling(factor=2.0, original_context=64),
    Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=64),
    YarnScaling(factor=4.0, original_context=64, beta_fast=32.0, beta_slow=1.0, attention_factor=1.2, truncate=True),
]


def turned(keys: np.ndarray, rope: Rope, start: int) -> np.ndarray:
    """Keys, [H, T, D], at the positions from `start` on."""
    cos, sin = tables(rope, start + keys.shape[1], start)
    half = rope.rotary_dim // 2
    first, second, rest = np.split(keys, [half, rope.rotary_dim], axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


# --- the keys


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rotated", [16, 8])  # all of a head, and half of it
def test_moved_keys_are_those_that_were_turned_there_at_once(scaling: RopeScaling | None, rotated: int) -> None:
    rope = Rope(base=10000.0, rotary_dim=rotated, scaling=scaling)
    keys = np.random.default_rng(0).standard_normal((2, 50, 16)).astype(np.float32)
    moved = moved_keys(turned(keys, rope, 90), rope, 90, by=37)
    assert moved.dtype == np.float32
    np.testing.assert_allclose(moved, turned(keys, rope, 53), atol=3e-6)


def test_keys_of_16_bits_stay_of_16_bits() -> None:
    keys = np.ones((1, 3, 16), np.float16)
    moved = moved_keys(keys, PLAIN, 9, by=4)
    assert moved.dtype == np.float16
    np.testing.assert_allclose(moved, moved_keys(keys.astype(np.float32), PLAIN, 9, by=4), atol=2e-3)


# --- how many tokens


@given(
    st.integers(8, 300).flatmap(lambda context: st.tuples(st.just(context), st.integers(4, context // 2))), st.data()
)
def test_a_shift_makes_room_for_what_a_step_feeds(sizes: tuple[int, int], data: st.DataObject) -> None:
    context, keep = sizes
    shift = ContextShift(keep=keep, context=context, ropes=(PLAIN,))
    held = data.draw(st.integers(keep, context))
    count = data.draw(st.integers(1, shift.step))
    dropped = shift.tokens_to_drop(held, count)
    assert (dropped > 0) == (held + count > context)
    assert held - dropped + count <= context
    assert held - dropped >= keep


def test_a_shift_drops_a_quarter_of_what_is_not_kept() -> None:
    shift = ContextShift(keep=20, context=100, ropes=(PLAIN,))
    assert [shift.tokens_to_drop(held, 1) for held in (99, 100)] == [0, 20]
    assert shift.tokens_to_drop(100, 21) == 40


# --- on real sessions


@pytest.fixture(params=["cpu", "reference", "openvino"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    return request.param


def one_layer(tiny_package: Callable[..., Path], **config: object) -> Path:
    """A model whose keys and values come of their own token alone, so that a shift is exact up to rounding."""
    return tiny_package("llama", num_hidden_layers=1, max_position_embeddings=128, **config)


def full(llm: Model, count: int) -> tuple[CachedSequence, list[int]]:
    """A sequence that holds tokens, and these."""
    tokens = [int(token) for token in np.random.default_rng(1).integers(3, 300, count)]
    sequence = llm.runner.sequences.new()
    sequence.feed(tokens)
    return sequence, tokens


@pytest.mark.parametrize("window", [None, 40])
def test_a_shifted_sequence_goes_on_as_one_that_holds_what_is_left(
    tiny_package: Callable[..., Path], device: str, window: int | None
) -> None:
    family = {} if window is None else {"sliding_window": window}
    package = tiny_package("mistral", num_hidden_layers=1, max_position_embeddings=128, **family)
    with load(package, device=device, exact=device != "reference") as llm:
        sequence, tokens = full(llm, 128)
        sequence.shift = ContextShift(keep=8, context=128, ropes=llm.package.decoder.layer_ropes)
        dropped: list[int] = []
        sequence.note_dropped = dropped.append
        for token in (5, 6, 7):
            shifted = sequence.feed([token])
        assert dropped == [30]
        assert sequence.tokens == [*tokens[:8], *tokens[38:], 5, 6, 7]
        assert sequence.reusable_tokens == tokens[:8]
        fresh = llm.runner.sequences.new().feed(sequence.tokens)
        every = range(shifted.size)
        np.testing.assert_allclose(shifted.values(every), fresh.values(every), atol=2e-4)
        unturned = llm.runner.sequences.new()  # as if the keys were left as they are: that is not the same
        unturned.feed(tokens)
        assert isinstance(unturned.session, MovesState)
        state = unturned.session.export_state(38, 128)
        unturned.session.rewind(8)
        unturned.session.import_state(state)
        wrong = unturned.session.feed([5, 6, 7])
        assert np.abs(np.subtract(wrong.values(every), fresh.values(every))).max() > 1e-2


def test_what_is_dropped_again_is_counted_again(tiny_package: Callable[..., Path]) -> None:
    with load(one_layer(tiny_package), exact=True) as llm:
        sequence, tokens = full(llm, 128)
        sequence.shift = ContextShift(keep=8, context=128, ropes=llm.package.decoder.layer_ropes)
        shifted = [sequence.feed([token]) for token in range(10, 80)][-1]
        assert sequence.tokens == [*tokens[:8], *tokens[8 + 90 :], *range(10, 80)]
        fresh = llm.runner.sequences.new().feed(sequence.tokens)
        every = range(shifted.size)
        np.testing.assert_allclose(shifted.values(every), fresh.values(every), atol=3e-4)
        sequence.rewind_by(len(sequence.tokens) - 8)
        sequence.feed(tokens[8:20])
        assert sequence.reusable_tokens == tokens[:20]


def reply(
    llm: Model, shift: ContextShift | None, prompt: list[int], count: int | None, sequence: CachedSequence
) -> list[Chunk]:
    request = Request(prompt=prompt, sampling=GREEDY, max_tokens=count, stop=(), stop_tokens=frozenset(), top_count=0,
                      shift=shift, speculate="off")  # fmt: skip
    return list(llm.runner.stream(request, Cancel(), sequence))


def test_others_get_nothing_of_a_shifted_sequence(tiny_package: Callable[..., Path], tmp_path: Path) -> None:
    package = tiny_package("llama", max_position_embeddings=256)
    with load(package, exact=True, cache_dir=tmp_path) as llm:
        tokens = [int(token) for token in np.random.default_rng(1).integers(3, 300, 250)]
        sequence = llm.runner.sequences.new()
        shift = ContextShift(keep=16, context=256, ropes=llm.package.decoder.layer_ropes)
        chunks = reply(llm, shift, tokens, 40, sequence)
        assert chunks[-1].finish_reason == "length"
        assert chunks[-1].statistics.dropped_tokens == 60
        assert chunks[-1].statistics.tokens == 40
        held = list(sequence.tokens)
        again = llm.generate([*held, 5], GREEDY, max_tokens=2, stop_tokens=())
        assert again.statistics.cached_tokens <= 16
        llm.runner.sequences.drop(sequence)  # what it holds goes into the prefix cache: only what is plain
        llm.release()
    with load(package, exact=True, cache_dir=tmp_path) as llm:
        fresh = llm.generate([*held, 5], GREEDY, max_tokens=2, stop_tokens=())
        assert fresh.logprobs == pytest.approx(again.logprobs, abs=1e-4)


def test_a_prompt_longer_than_the_context_is_fed_with_shifts_on_the_way(tiny_package: Callable[..., Path]) -> None:
    with load(one_layer(tiny_package), exact=True) as llm:
        sequence, tokens = full(llm, 100)
        prompt = [*tokens, *(int(token) for token in np.random.default_rng(2).integers(3, 300, 90))]
        chunks = reply(
            llm, ContextShift(keep=8, context=128, ropes=llm.package.decoder.layer_ropes), prompt, 3, sequence
        )
        statistics = chunks[-1].statistics
        assert (statistics.cached_tokens, statistics.prompt_tokens) == (100, 190)
        assert statistics.dropped_tokens > 0
        left = [*prompt[:8], *prompt[8 + statistics.dropped_tokens :]]
        assert [chunk.token for chunk in chunks] == list(
            llm.generate(left, GREEDY, max_tokens=3, stop_tokens=()).tokens
        )


def test_a_reply_without_a_limit_ends_after_as_many_tokens_as_the_context_holds(
    tiny_package: Callable[..., Path],
) -> None:
    with load(one_layer(tiny_package)) as llm:
        sequence, tokens = full(llm, 50)
        chunks = reply(
            llm, ContextShift(keep=8, context=128, ropes=llm.package.decoder.layer_ropes), tokens, None, sequence
        )
        assert (chunks[-1].finish_reason, chunks[-1].statistics.tokens) == ("length", 128)


def test_integer_keys_and_sessions_that_keep_their_state_are_refused(tiny_package: Callable[..., Path]) -> None:
    class Held:
        position = 0

        def export_state(self, start: int, stop: int) -> list[tuple[np.ndarray, np.ndarray]]:
            return [(np.zeros((1, 0, 4), np.int8), np.zeros((1, 0, 4), np.int8))]

        def import_state(self, state: object) -> None: ...

    described = describe(Config(tiny_config("llama")))
    with pytest.raises(ValueError, match=r"found quantized int8 keys.*Load without kv="):
        check_movable(Held(), "cpu", described)  # type: ignore[arg-type]  # a part of one
    with pytest.raises(ValueError, match="that of 'npu' cannot be taken out"):
        check_movable(object(), "npu", described)  # type: ignore[arg-type]  # none
    table = Linear(name="positions", source="wpe", rows=128, columns=64)
    with pytest.raises(ValueError, match="mixes these into its keys for good"):
        check_movable(Held(), "cpu", replace(described, position_embeddings=table))  # type: ignore[arg-type]  # a part of one


def test_keys_that_no_position_turned_stay() -> None:
    keys, values = np.ones((2, 1, 6, 4), np.float32)
    local = Rope(base=100.0, rotary_dim=4)
    shift = ContextShift(keep=1, context=16, ropes=(replace(PLAIN, rotary_dim=4), None, local))
    moved = shift.shifted([(keys, values)] * 3, 8, by=3)
    assert np.array_equal(moved[1][0], keys)
    assert np.array_equal(moved[2][0], moved_keys(keys, local, 8, by=3))
    assert not np.array_equal(moved[2][0], keys)
