"""Several sequences in one run on OpenVINO's CPU, and the blocks of their KV; sessions alone: test_engine.py."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embedllm
from embedllm.backends.base import BatchRow, Interrupted, max_batch
from embedllm.backends.devices.registry import open_engine
from embedllm.backends.openvino import block_table
from embedllm.backends.openvino import paged_engine as ov_paged
from embedllm.backends.openvino.block_table import BLOCK, Blocks, Layout
from embedllm.backends.openvino.paged_engine import MAX_BATCH, PagedEngine, PagedSession
from embedllm.backends.openvino.runtime import has_bf16
from embedllm.backends.options import OpenVINOOptions
from embedllm.errors import ContextFull, DeviceError
from embedllm.export import Recipe
from embedllm.package.package import open_package
from tests.support.logits import values
from tests.support.openings import device, ov_engine, paged_engine

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

ATOL = 1e-4  # of logits up to 5: the order of float32 sums differs (docs/numerics.md#openvino)
GREEDY = embedllm.Sampling(temperature=0)
WITH_BF16 = pytest.mark.skipif(not has_bf16(), reason="this processor does not compute in bf16")


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


def alone(engine: PagedEngine, tokens: Sequence[int]) -> np.ndarray:
    """The logits after these of a session that is never fed with others."""
    session = engine.open()
    found = values(session.feed(tokens))
    session.close()
    return found


# --- together


PLACES = st.integers(0, 5)
FEEDS = st.dictionaries(PLACES, st.sampled_from([1, 1, 1, 2, 7, 70]), min_size=1)
ACTS = st.one_of(
    st.tuples(st.just("run"), FEEDS, st.integers(1, 4)),
    st.tuples(st.just("feed"), PLACES, st.sampled_from([1, 2, 5, 70])),
    st.tuples(st.just("feed_all"), PLACES, st.integers(1, 5)),
    st.tuples(st.just("rewind"), PLACES, st.integers(0, 150)),
    st.tuples(st.just("close"), PLACES, st.just(0)),
)


@pytest.mark.allcores
@settings(max_examples=25, deadline=None)
@given(acts=st.lists(ACTS, min_size=5, max_size=20))
def test_any_order_of_calls_gives_each_sequence_what_it_gets_alone(
    acts: list[tuple[str, object, int]], engine: PagedEngine
) -> None:
    """Of different lengths in one run; they feed prompts, go back and are closed between the runs of others."""
    random = np.random.default_rng(len(acts))
    sessions, pasts = [engine.open() for _ in range(6)], [list[int]() for _ in range(6)]
    last: dict[int, np.ndarray] = {}

    def more(place: int, count: int) -> list[int]:
        tokens = random.integers(0, 300, min(count, 599 - len(pasts[place]))).tolist()
        pasts[place] += tokens
        return tokens

    for act, first, second in acts:
        if act == "run":
            assert isinstance(first, dict)
            for _ in range(second):
                feeds = {place: tokens for place, count in first.items() if (tokens := more(place, count))}
                if feeds:
                    found = engine.run_batch([BatchRow(sessions[place], tokens) for place, tokens in feeds.items()])
                    last |= {place: values(row) for place, row in zip(feeds, found, strict=True)}
            continue
        assert isinstance(first, int)
        session, past = sessions[first], pasts[first]
        if act == "close":
            session.close()
            sessions[first], pasts[first] = engine.open(), []
            last.pop(first, None)
        elif act == "rewind":
            del past[second:]
            session.rewind(len(past))
            last.pop(first, None)
        elif tokens := more(first, second):
            last[first] = values(session.feed(tokens)) if act == "feed" else session.feed_all(tokens)[-1]
    for place, session in enumerate(sessions):
        assert session.position == len(pasts[place])
        if place in last:
            np.testing.assert_allclose(last[place], alone(engine, pasts[place]), atol=ATOL)
            np.testing.assert_allclose(values(session.feed([9])), alone(engine, [*pasts[place], 9]), atol=ATOL)
        session.close()


@pytest.mark.allcores
def test_rows_of_any_length_are_one_run(engine: PagedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    run = engine.run

    def counted(feeds: list[tuple[PagedSession, list[int]]], *, is_all: bool = False) -> np.ndarray:
        counts.append(len(feeds))
        return run(feeds, is_all=is_all)

    assert engine.mixes_lengths
    sessions = [engine.open() for _ in range(4)]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run", counted)
        pieces = [[5], list(range(40)), [6], list(range(7))]
        found = engine.run_batch([BatchRow(*row) for row in zip(sessions, pieces, strict=True)])
    assert counts == [4]
    for session, tokens, row in zip(sessions, pieces, found, strict=True):
        assert session.position == len(tokens)
        np.testing.assert_allclose(values(row), alone(engine, tokens), atol=ATOL)
        session.close()


def test_logits_stay_until_their_own_session_is_fed_again(engine: PagedEngine) -> None:
    sessions = [engine.open() for _ in range(3)]
    first = engine.run_batch([BatchRow(session, [5]) for session in sessions])
    before = values(first[0])
    engine.run_batch([BatchRow(session, [6]) for session in sessions[1:]])
    sessions[2].feed([7])
    np.testing.assert_array_equal(values(first[0]), before)
    for session in sessions:
        session.close()


def test_what_is_exact_runs_by_itself(folder: Path) -> None:
    """Sums of several rows round otherwise: what a reply is may not depend on what runs beside it."""
    assert max_batch(paged_engine(folder)) == MAX_BATCH
    assert max_batch(paged_engine(folder, joins=False)) == 1
    package = open_package(folder)
    exact = open_engine(package, device("openvino"), exact=True)
    assert max_batch(exact) == 1
    exact.close()


class FailingRequest:
    """Runs, and then fails."""

    def __init__(self, request: object) -> None:
        self._request = request

    def __getattr__(self, name: str) -> object:
        return getattr(self._request, name)

    def infer(self) -> None:
        self._request.infer()  # type: ignore[attr-defined]  # a request
        raise RuntimeError("out of memory")


def test_a_run_that_fails_leaves_all_sessions_as_they_were(
    engine: PagedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [engine.open() for _ in range(3)]
    for count, session in enumerate(sessions, 30):
        session.feed(list(range(count)))
    rows_of_run = [BatchRow(session, [1, 2, 3]) for session in sessions]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_request", FailingRequest(engine._request))
        with pytest.raises(DeviceError, match=r"cannot make a step: out of memory"):
            engine.run_batch(rows_of_run)
    with pytest.raises(ContextFull):
        engine.run_batch([*rows_of_run[:2], BatchRow(sessions[2], [1] * 600)])
    with monkeypatch.context() as patch:
        patch.setattr(engine.blocks, "take", lacking)
        with pytest.raises(DeviceError, match="no memory for the KV of 3 sequences"):
            engine.run_batch([BatchRow(session, [1] * 70) for session in sessions])
    assert [session.position for session in sessions] == [30, 31, 32]
    for count, row in enumerate(engine.run_batch(rows_of_run), 30):
        np.testing.assert_allclose(values(row), alone(engine, [*range(count), 1, 2, 3]), atol=ATOL)
    for session in sessions:
        session.close()


def lacking(count: int) -> list[int]:
    raise MemoryError


def test_an_interrupt_stops_a_feed_between_its_runs_and_no_run_of_several(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = paged_engine(folder)
    session, beside, fed, run = other.open(), other.open(), list[int](), other.run

    def stopping(feeds: Sequence[tuple[PagedSession, Sequence[int]]], **options: bool) -> np.ndarray:
        fed.extend(len(piece) for _, piece in feeds)
        session.interrupt()
        return run(feeds, **options)

    monkeypatch.setattr(other, "run", stopping)
    with pytest.raises(Interrupted):
        session.feed([5] * 590)
    assert (session.position, fed) == (0, [512])
    other.run_batch([BatchRow(session, [5] * 3), BatchRow(beside, [6])])
    assert (session.position, beside.position) == (3, 1)
    other.close()


def test_a_model_whose_attention_cannot_be_paged_runs_all_the_same_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(model: object) -> None:
        raise RuntimeError("no such pattern")

    monkeypatch.setattr(ov_paged, "paged_attention", refuse)
    caplog.set_level(logging.INFO, "embedllm")
    with embedllm.load(folder, device="openvino") as llm:
        assert max_batch(llm.runner.engine) == 1
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


@pytest.mark.parametrize(("kv", "precision"), [("u8", "f32"), pytest.param("bf16", "bf16", marks=WITH_BF16)])
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


def test_a_kv_of_bf16_is_refused_where_the_processor_has_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedllm.backends.openvino.properties.has_bf16", lambda: False)
    with pytest.raises(ValueError, match="'bf16', which this processor does not compute in"):
        paged_engine(folder, options=OpenVINOOptions(kv="bf16"), exact=False)


@pytest.mark.parametrize("kv", ["u8", pytest.param("bf16", marks=WITH_BF16), "f16", "f32"])
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
