"""Several sequences in one run on OpenVINO's CPU, and the blocks of their KV; sessions alone: test_engine.py."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedllm
from embedllm.backends.openvino import block_table
from embedllm.backends.openvino import paged_engine as ov_paged
from embedllm.backends.openvino.block_table import BLOCK, Blocks, Layout
from embedllm.backends.openvino.paged_engine import PagedEngine, PagedSession
from embedllm.backends.options import OpenVINOOptions
from embedllm.export import Recipe
from tests.support.openings import ov_engine, paged_engine

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

ATOL = 1e-4  # of logits up to 5: the order of float32 sums differs (docs/numerics.md#openvino)
WAIT_S = 120  # a test that waits this long has failed
GREEDY = embedllm.Sampling(temperature=0)


@pytest.fixture(scope="module")
def folder(tiny_package: Callable[..., Path]) -> Path:
    return tiny_package("qwen3", Recipe(), max_position_embeddings=600)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[PagedEngine]:
    opened = paged_engine(folder)
    yield opened
    opened.close()


def rows(session: PagedSession, tokens: list[int]) -> list[list[float]]:
    return [session.feed([token]).values(range(307)) for token in tokens]


# --- together


@pytest.mark.allcores
@pytest.mark.parametrize("seed", range(3))
def test_sequences_that_come_and_go_together_get_what_each_gets_alone(seed: int, engine: PagedEngine) -> None:
    """Of different lengths; they feed prompts, go back and are closed while others step."""

    def talk(place: int) -> None:
        random, past, session = Random(seed * 100 + place), list[int](), engine.open()
        for _ in range(12):
            act = random.random()
            if act < 0.2 and past:
                del past[random.randrange(len(past)) :]
                session.rewind(len(past))
            elif act < 0.4:
                past += (more := [random.randrange(300) for _ in range(random.choice([2, 5, 70]))])
                session.feed(more)
            else:
                past += (more := [random.randrange(300) for _ in range(4)])
                rows(session, more)
        past.append(7)
        found = rows(session, [7])[0]
        session.close()
        talks.append((past, found))

    talks: list[tuple[list[int], list[float]]] = []
    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(talk, place) for place in range(10)]:
            done.result(WAIT_S)
    for past, found in talks:
        alone = engine.open()
        np.testing.assert_allclose(found, alone.feed(past).values(range(307)), atol=ATOL)
        alone.close()


@pytest.mark.allcores
def test_steps_of_several_are_one_run(engine: PagedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    run = engine.run

    def counted(feeds: list[tuple[PagedSession, list[int]]], *, is_all: bool = False) -> np.ndarray:
        counts.append(len(feeds))
        return run(feeds, is_all=is_all)

    monkeypatch.setattr(engine, "run", counted)
    with ThreadPoolExecutor(4) as threads:
        sessions = [engine.open() for _ in range(4)]
        for done in [threads.submit(rows, session, list(range(40))) for session in sessions]:
            done.result(WAIT_S)
    for session in sessions:
        session.close()
    assert sum(counts) == 160
    assert max(counts) > 1


def test_a_batch_of_prompts_gives_what_each_gives_alone(folder: Path) -> None:
    prompts = [[(seed * place) % 300 for place in range(1, 5 + seed)] for seed in (3, 5, 40, 11, 7, 90)]
    as_exact = OpenVINOOptions(precision="f32", rounding_group=0, kv="f32")  # in numbers; exact itself runs each alone
    with embedllm.load(folder, device="openvino", openvino=as_exact) as llm:
        assert llm.runner.parallel == engine_parallel(llm) > 1
        expected = [llm.generate(prompt, GREEDY, max_tokens=20, stop_tokens=[]).tokens for prompt in prompts]
        found = llm.generate_batch(prompts, GREEDY, max_tokens=20, stop_tokens=[])
        assert [one.tokens for one in found] == expected


def test_what_is_exact_runs_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several rows round otherwise: what a reply is may not depend on what runs beside it."""
    counts: list[int] = []
    run = PagedEngine.run

    def counted(
        self: PagedEngine, feeds: Sequence[tuple[PagedSession, Sequence[int]]], *, is_all: bool = False
    ) -> np.ndarray:
        counts.append(len(feeds))
        return run(self, feeds, is_all=is_all)

    monkeypatch.setattr(PagedEngine, "run", counted)
    with embedllm.load(folder, device="openvino", exact=True) as llm:
        assert llm.runner.parallel == engine_parallel(llm) == 1
        with ThreadPoolExecutor(4) as threads:
            replies = [threads.submit(llm.generate, [1, 2], GREEDY, max_tokens=20, stop_tokens=[]) for _ in range(4)]
            assert len({reply.result(WAIT_S).tokens for reply in replies}) == 1
    assert set(counts) == {1}


def engine_parallel(llm: embedllm.Model) -> int:
    assert isinstance(llm.runner.engine, PagedEngine)
    return llm.runner.engine.parallel


def test_a_model_whose_attention_cannot_be_paged_runs_all_the_same_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(model: object) -> None:
        raise RuntimeError("no such pattern")

    monkeypatch.setattr(ov_paged, "paged_attention", refuse)
    caplog.set_level(logging.INFO, "embedllm")
    with embedllm.load(folder, device="openvino") as llm:
        assert llm.runner.parallel == 1
        assert len(llm.generate([1, 2, 3], GREEDY, max_tokens=4, stop_tokens=[]).tokens) == 4
    assert "take turns, without paged attention: OpenVINO" in caplog.text


@pytest.mark.parametrize(("small", "lengths"), [(1 << 30, [512, 78]), (0, [256, 256, 78])])
def test_a_large_model_is_fed_in_shorter_runs_with_the_same_logits(
    small: int, lengths: list[int], folder: Path, engine: PagedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ov_paged, "_SMALL", small)
    other, fed = paged_engine(folder), list[int]()
    tokens = np.random.default_rng(2).integers(0, 307, 590).tolist()
    run = other.run

    def counted(feeds: Sequence[tuple[PagedSession, Sequence[int]]], **options: bool) -> np.ndarray:
        fed.extend(len(piece) for _, piece in feeds)
        return run(feeds, **options)

    monkeypatch.setattr(other, "run", counted)
    session, alone = other.open(), engine.open()
    np.testing.assert_allclose(
        session.feed(tokens).values(range(307)), alone.feed(tokens).values(range(307)), atol=ATOL
    )
    assert fed == lengths
    other.close()
    alone.close()


# --- the blocks


def buffers(kind: str = "f32", width: int = 8) -> Blocks:
    return Blocks({"k": Layout(2, width, kind), "v": Layout(1, width, kind)}, lambda name, tensor: None)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 90)), max_size=30))
def test_each_sequence_finds_what_it_wrote(acts: list[tuple[bool, int]]) -> None:
    blocks = buffers()
    held: list[tuple[list[int], np.ndarray]] = []
    for place, (is_end, count) in enumerate(acts):
        if is_end and held:
            blocks.give_back(held.pop(count % len(held))[0])
        else:
            taken = blocks.take(-(-count // BLOCK))
            values = np.full((2, count, 8), place, np.float32) + np.arange(count, dtype=np.float32)[:, None] / 100
            blocks.write("k", taken, 0, values[:, : count // 2])
            blocks.write("k", taken, count // 2, values[:, count // 2 :])
            held.append((taken, values))
        used = [block for taken, _ in held for block in taken]
        assert len(used) == len(set(used))
        for taken, values in held:
            np.testing.assert_array_equal(blocks.read("k", taken, 0, values.shape[1]), values)


@pytest.mark.parametrize(("count", "stay"), [(10, 13), (40, 1)])
def test_the_memory_of_the_last_blocks_goes_back_when_it_is_much(
    count: int, stay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: dict[str, list[int]] = {}
    monkeypatch.setattr(block_table, "_KEPT", 20 * BLOCK * 2 * 16 * 4)
    blocks = Blocks({"k": Layout(2, 16, "f32")}, lambda name, tensor: bound.update({name: list(tensor.shape)}))
    first, second = blocks.take(count - 1), blocks.take(1)
    blocks.give_back(first)
    assert bound["k"][0] >= count
    blocks.give_back(second)
    assert bound["k"][0] == stay
    assert len(set(blocks.take(count + 1))) == count + 1


@pytest.mark.parametrize(("kind", "off"), [("f32", 0), ("f16", 2e-3), ("bf16", 2e-2), ("u8", 2e-2)])
def test_what_was_read_is_stored_as_it_was(kind: str, off: float) -> None:
    blocks = buffers(kind, 24 if kind == "u8" else 16)
    first, second = blocks.take(2), blocks.take(2)
    values = np.random.default_rng(0).normal(size=(2, 50, 16)).astype(np.float32)
    blocks.write("k", first, 3, values)
    read = blocks.read("k", first, 3, 53)
    np.testing.assert_allclose(read, values, atol=off)
    blocks.write("k", second, 5, read)
    np.testing.assert_allclose(blocks.read("k", second, 5, 55), read, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kv", "precision"), [("u8", "f32"), ("bf16", "bf16")])
def test_the_plugin_stores_the_kv_as_it_is_read_here(kv: str, precision: str, folder: Path) -> None:
    """A layout that another version changes would show here."""
    options = OpenVINOOptions(precision=precision, kv=kv, rounding_group=0)
    small, exact = paged_engine(folder, options=options, exact=False).open(), ov_engine(folder).open()
    tokens = np.random.default_rng(1).integers(0, 300, 70).tolist()
    small.feed(tokens)
    exact.feed(tokens)
    pairs = zip(small.export_state(0, 70), exact.export_state(0, 70), strict=True)
    first = next(pairs)  # of the first layer, whose inputs are the same
    for found, expected in zip(*first, strict=True):
        np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())


@given(st.sampled_from(["f32", "f16", "bf16", "u8"]), st.integers(0, 40), st.integers(0, 90), st.integers(0, 70))
def test_stored_values_are_the_same_wherever_they_lie(kind: str, start: int, count: int, place: int) -> None:
    blocks = buffers(kind, 24 if kind == "u8" else 16)
    other, first, second = blocks.take(2), blocks.take(5), blocks.take(6)
    values = np.random.default_rng(count).normal(size=(2, count, 16)).astype(np.float32)
    blocks.write("k", first, start, values)
    stored = blocks.read_stored("k", first, start, start + count)
    blocks.write("k", second, place, stored)
    np.testing.assert_array_equal(blocks.read_stored("k", second, place, place + count), stored)
    np.testing.assert_array_equal(
        blocks.read("k", second, place, place + count), blocks.read("k", first, start, start + count)
    )
    assert not blocks.read_stored("k", other, 0, 2 * BLOCK).any()


@pytest.mark.parametrize("kv", ["u8", "bf16", "f16", "f32"])
def test_a_sequence_goes_on_from_stored_kv_as_the_one_that_computed_it(kv: str, folder: Path) -> None:
    options = OpenVINOOptions(precision="bf16" if kv == "bf16" else "f32", kv=kv, rounding_group=0)
    engine = paged_engine(folder, options=options, exact=False)
    one, other = engine.open(), engine.open()
    one.feed(np.random.default_rng(2).integers(0, 300, 90).tolist())
    for state in one.export_stored([(0, 45), (45, 90)]):
        other.import_state(state)
    for ours, theirs in zip(other.export_stored([(0, 90)])[0], one.export_stored([(0, 90)])[0], strict=True):
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(other.feed_all([5, 6, 7]), one.feed_all([5, 6, 7]))
    engine.close()


def test_8_bit_kv_takes_its_own_size_in_the_prefix_cache(folder: Path) -> None:
    with embedllm.load(folder, device="openvino") as llm:
        session = llm.runner.engine.open()
        llm.generate([1] * 200, GREEDY, max_tokens=2, stop_tokens=())
        llm.generate([2] * 200, GREEDY, max_tokens=2, stop_tokens=())
        prefixes = llm.runner.sequences.prefix_cache
        assert prefixes is not None
        stored = [layout for name, layout in llm.runner.engine.blocks.layouts.items() if "_cache." in name]  # type: ignore[attr-defined]  # a PagedEngine
        assert {layout.kind for layout in stored} == {"u8"}
        assert prefixes.bytes == 201 * sum(layout.heads * layout.width for layout in stored)
        session.close()


@pytest.mark.parametrize("spans", [[(0, 4)], [(0, 2), (2, 4)], [(2, 1)], [(-1, 2)]])
def test_tokens_that_are_not_held_cannot_be_exported(spans: list[tuple[int, int]], engine: PagedEngine) -> None:
    session = engine.open()
    session.feed([1, 2, 3])
    with pytest.raises(ValueError, match=r"there are no tokens .* the session holds 3"):
        session.export_stored(spans)
    session.close()


def test_stored_kv_of_another_model_is_refused(folder: Path) -> None:
    engine = paged_engine(folder, options=OpenVINOOptions(kv="u8"), exact=False)
    session = engine.open()
    session.feed([1, 2, 3])
    (state,) = session.export_stored([(0, 3)])
    wrongs: list[KeyValues] = [
        state[1:],
        [(key[..., 1:], value[..., 1:]) for key, value in state],
        [(key.astype(np.int16), value) for key, value in state],
        [(key, value.astype(np.float32)) for key, value in state],
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="this state"):
            session.import_state(wrong)
    assert session.position == 3
    engine.close()


def test_a_growth_for_which_memory_is_lacking_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks({"k": Layout(2, 16, "f32"), "v": Layout(2, 16, "f32")}, lambda name, tensor: None)
    values, zeros, made = np.ones((2, BLOCK, 16), np.float32), np.zeros, list[object]()
    held = blocks.take(1)
    blocks.write("k", held, 0, values)

    def lacking(*args: object) -> object:
        made.append(args)
        if len(made) == 2:
            raise MemoryError
        return zeros(*args)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(np, "zeros", lacking)
    with pytest.raises(MemoryError):
        blocks.take(20)
    held += blocks.take(20)
    assert sorted(held) == list(range(21))
    np.testing.assert_array_equal(blocks.read("k", held, 0, BLOCK), values)


def test_what_was_compiled_goes_with_the_end_of_the_engine_though_its_sessions_are_kept(folder: Path) -> None:
    engine = paged_engine(folder)
    session = engine.open()
    session.feed([1, 2, 3])
    compiled = weakref.ref(engine.compiled)
    engine.close()
    assert compiled() is None  # at once, not when garbage is collected
    session.close()  # as a reply that ran meanwhile does
    with pytest.raises(ValueError, match="this model was closed"):
        engine.open()


def test_memory_goes_back_with_the_last_sequence(engine: PagedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_table, "_KEPT", 0)
    sessions = [engine.open() for _ in range(3)]
    for session in sessions:
        session.feed(list(range(200)))
    assert [session.capacity for session in sessions] == [224] * 3
    sessions[0].rewind(0)
    assert sessions[0].capacity == 0
    for session in sessions:
        session.close()
    assert all(len(buffer) == 1 for buffer in engine.blocks._buffers.values())
    session = engine.open()
    np.testing.assert_allclose(
        session.feed([1, 2, 3]).values(range(307)), rows(engine.open(), [1, 2, 3])[-1], atol=ATOL
    )
