"""Layers with windows free the KV that no token sees any more, on ONNX Runtime's CPU; logits stay what they were."""

from __future__ import annotations

import mmap
import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm import Sampling
from embedllm.backends.base import BatchRow, Forgets, Session
from embedllm.backends.devices.split_engine import SplitEngine
from embedllm.backends.ort import engine as ort
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.sessions import window_retention
from embedllm.backends.sessions.sparse_memory import empty_rows
from embedllm.export import Recipe
from embedllm.export.graphs import write_variant
from embedllm.generation.engine_loop import CallerThread
from embedllm.kv_cache.block_cache import BLOCK
from embedllm.kv_cache.sequence import CachedSequence
from embedllm.loading.memory_estimate import estimate_memory
from embedllm.package.graph_variants import INT4_KV, INT8_KV, GraphVariant
from embedllm.package.package import open_package
from tests.support.decoder_cases import CASES, VOCABULARY, attending, by_layer, kv_heads, plain
from tests.support.described import described_package
from tests.support.openings import device, ort_engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is given back to Linux only")

CONTEXT, WINDOW = 4096, 150
GREEDY = Sampling(temperature=0)
TOKENS = np.random.default_rng(7).integers(0, VOCABULARY, CONTEXT).tolist()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is kept than of a real model: a page has 64 rows of the tiny one."""
    for name, tokens in {"FIRST": 64, "NEWEST": 32, "PROMPT": 8, "STEP": 64}.items():
        monkeypatch.setattr(window_retention, name, tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, of which the first has a window."""
    decoder = replace(by_layer({"window": WINDOW}, {})(kv_heads(5)(plain())), context=CONTEXT)
    recipe = Recipe(method="nearest")
    return described_package(tmp_path_factory.mktemp("window") / "package", decoder, recipe, variant="generic-float32")


def pair(folder: Path, *, exact: bool = False) -> tuple[OrtSession, OrtSession]:
    """A session that forgets, and one that keeps all."""
    forgets, keeps = (ort_engine(folder, exact=exact).open() for _ in range(2))
    keeps.keeps_all = True
    return forgets, keeps


def feed_prompt(session: Session | CachedSequence, stop: int) -> None:
    """The first tokens that it lacks, in pieces."""
    held = session.tokens if isinstance(session, CachedSequence) else range(session.position)
    for start in range(len(held), stop, 100):
        session.feed(TOKENS[start : min(start + 100, stop)])


def resident_rows(array: np.ndarray) -> int:
    """How many rows of the first head lie in pages with memory of their own, not in the one of zeros that all share."""
    at, size = array.ctypes.data, array.shape[2] * array.strides[2]
    first, last = at // mmap.PAGESIZE, (at + size - 1) // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as pages:  # noqa: PTH123
        pages.seek(8 * first)
        entries = struct.unpack(f"{last - first + 1}Q", pages.read(8 * (last - first + 1)))
    own = sum(entry >> 63 & entry >> 56 & 1 for entry in entries)  # present, and mapped once: proc(5)
    return own * mmap.PAGESIZE // array.strides[2]


def same(sessions: Sequence[OrtSession], tokens: Sequence[int]) -> None:
    """Feeds both; their logits are the same bit for bit."""
    forgets, keeps = (np.array(session.feed(tokens).values(range(VOCABULARY))) for session in sessions)
    np.testing.assert_array_equal(forgets, keeps)
    assert np.isfinite(keeps).all()


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_logits_are_those_of_a_session_that_keeps_all(folder: Path, *, exact: bool) -> None:
    """A prompt in pieces, over growths of the buffers, steps, and rewinds near and far."""
    both = pair(folder, exact=exact)
    for start in range(0, 1500, 300):
        same(both, TOKENS[start : start + 300])
    for token in TOKENS[1500:1640]:
        same(both, [token])
    near, prompt, first = 1640 - 20, 1500 - 3, 50
    assert both[0].whole() < 200
    for place in (near, prompt, first):
        for session in both:
            session.rewind(place)
        same(both, TOKENS[place : place + 30])
        for token in TOKENS[place + 30 : place + 36]:
            same(both, [token])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_sequence(folder: Path) -> None:
    forgets, keeps = pair(folder)
    for session in (forgets, keeps):
        feed_prompt(session, 3000)
    page = mmap.PAGESIZE // forgets.kv["0.key"].strides[2]
    most = window_retention.most_rows(WINDOW, 3000, 100) + 4 * page  # three pieces that begin and end within pages
    for part in ("key", "value"):
        assert resident_rows(forgets.kv[f"0.{part}"]) <= most < 900
        assert resident_rows(forgets.kv[f"1.{part}"]) >= 3000  # sees all
        assert resident_rows(keeps.kv[f"0.{part}"]) >= 3000


@pytest.mark.slow
def test_a_session_refuses_to_go_back_to_where_its_windows_saw_what_is_gone(folder: Path) -> None:
    session = ort_engine(folder).open()
    feed_prompt(session, 1000)
    with pytest.raises(ValueError, match=r"cannot rewind to 500: .* Rewind to 64, and feed"):
        session.rewind(500)
    with pytest.raises(ValueError, match=r"KV of tokens 0 to 500 is not kept .* the first 64"):
        session.export_state(0, 500)
    assert session.position == 1000
    session.rewind(64)
    session.feed(TOKENS[64:500])
    fresh = ort_engine(folder).open()
    fresh.import_state(session.export_state(0, 64))
    assert fresh.position == 64


@pytest.mark.slow
def test_what_is_given_away_is_what_a_session_that_keeps_all_gives(folder: Path) -> None:
    both = pair(folder)
    for session in both:
        feed_prompt(session, 1000)
    for span in ((0, 64), (990, 1000), (500, 500)):
        for given, expected in zip(*(session.export_state(*span) for session in both), strict=True):
            np.testing.assert_array_equal(given, expected)


@pytest.mark.slow
def test_a_sequence_that_goes_far_back_computes_again_what_is_gone(folder: Path) -> None:
    """Speculation and turns rewind a sequence, which knows its tokens."""
    forgets, keeps = (CachedSequence(ort_engine(folder), CallerThread()) for _ in range(2))
    assert isinstance(keeps.session, Forgets)
    keeps.session.keeps_all = True
    for sequence in (forgets, keeps):
        feed_prompt(sequence, 1000)
    assert (forgets.truncate_to_prefix(TOKENS[:700]), keeps.truncate_to_prefix(TOKENS[:700])) == (64, 699)
    for sequence in (forgets, keeps):
        feed_prompt(sequence, 1000)
        sequence.rewind_by(len(sequence.tokens) - 500)
        assert sequence.tokens == TOKENS[:500]
    logits = [np.array(sequence.feed(TOKENS[500:510]).values(range(VOCABULARY))) for sequence in (forgets, keeps)]
    np.testing.assert_allclose(*logits, atol=1e-4 * logits[1].std(), rtol=0)  # fed in other pieces: sums differ
    assert forgets.reusable_tokens == TOKENS[: len(forgets.reusable_tokens)]


def stepped(engine: OrtEngine, sessions: Sequence[OrtSession]) -> list[np.ndarray]:
    """The logits after a step of each, in one run."""
    rows = engine.run_batch([BatchRow(session, [TOKENS[session.position]]) for session in sessions])
    return [np.array(row.values(range(VOCABULARY))) for row in rows]


@pytest.mark.slow
def test_sequences_that_step_together_free_their_parts_of_shared_memory(folder: Path) -> None:
    """They join, grow, go when one ends, and one joins in a place that was another's; each stays what it is alone."""
    engine = ort_engine(folder, exact=False)
    sessions, starts = [engine.open() for _ in range(4)], [1000, 900, 300, 20]
    for session, count in zip(sessions, starts, strict=True):
        feed_prompt(session, count)
    found: dict[OrtSession, list[np.ndarray]] = {session: [] for session in sessions}
    for running, count in ((sessions[:3], 300), (sessions[1:3], 10), (sessions[1:], 150)):
        for _ in range(count):
            for session, row in zip(running, stepped(engine, running), strict=True):
                found[session].append(row)
        if running[0] is sessions[0]:
            page = mmap.PAGESIZE // sessions[0].kv["0.key"].strides[2]
            most = window_retention.most_rows(WINDOW, 3000, 1) + 4 * page  # three pieces that begin and end in pages
            assert all(resident_rows(session.kv["0.key"]) <= most < 900 for session in running)
            assert all(resident_rows(session.kv["1.key"]) >= session.position for session in running)
            sessions[0].close()
    for session, start in zip(sessions, starts, strict=True):
        alone = ort_engine(folder, exact=False).open()
        alone.keeps_all = True
        feed_prompt(alone, start)
        expected = [
            alone.feed([token]).values(range(VOCABULARY)) for token in TOKENS[start : start + len(found[session])]
        ]
        # with AVX2 alone ONNX Runtime sums several rows in another order than one, so that an activation may be rounded
        # to the next of its 255 steps: 0.03 of a spread of 5
        np.testing.assert_allclose(found[session], expected, atol=0.1)


@pytest.mark.parametrize("case", [case for case in CASES if "window" in case or case == "two rope bases"])
@pytest.mark.slow
def test_every_kind_of_layer_with_a_window_may_forget(case: str, tmp_path: Path) -> None:
    decoder = replace(CASES[case](plain()), context=1024)
    folder = described_package(tmp_path / "package", decoder, Recipe(bits=16), variant="generic-float32")
    both = pair(folder)
    for start in range(0, 600, 200):
        same(both, TOKENS[start : start + 200])
    for token in TOKENS[600:604]:
        same(both, [token])
    windowed = {name for name in both[0].kv if both[0].retention.is_windowed(name)}
    assert windowed
    assert all(resident_rows(both[0].kv[name]) < 600 for name in windowed)


def replies(folder: Path, cache: Path) -> list[tuple[int, ...] | tuple[tuple[int, ...], ...]]:
    """What all that moves or rewinds KV says of prompts that are many windows long."""
    long, other = TOKENS[:700], [*TOKENS[:300], *TOKENS[800:1200]]
    found: list[tuple[int, ...] | tuple[tuple[int, ...], ...]] = []
    with embedllm.load(folder, device="cpu", exact=True) as model:
        for prompt in (long, [*long, *TOKENS[700:720]], other, long):
            found.append(model.generate(prompt, GREEDY, max_tokens=90, stop_tokens=()).tokens)
        found.append(
            model.generate([*long, *long[:600]], GREEDY, max_tokens=60, stop_tokens=(), speculate="lookup").tokens
        )
        found.append(tuple(each.tokens for each in model.beam_search(other, beams=3, max_tokens=6)))
        with model.conversation(when_full="shift") as talk:
            found += [talk.say("list all files", GREEDY, max_tokens=600, stop_tokens=()).tokens for _ in range(3)]
    for _ in range(2):
        with embedllm.load(folder, device="cpu", exact=True, cache_dir=cache) as model:
            reply = model.generate(other, GREEDY, max_tokens=5)
            found += [reply.tokens, (reply.statistics.cached_tokens,)]
    return found


@pytest.mark.slow
def test_replies_are_those_of_a_model_that_keeps_all(
    tiny_package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns, prompts that differ in the middle, guesses, beams, a shift, and KV on disk."""
    folder = tiny_package("mistral", None, sliding_window=WINDOW, max_position_embeddings=1500)
    found = replies(folder, tmp_path / "forgets")
    monkeypatch.setattr(ort, "GIVES_BACK", False)
    assert found == replies(folder, tmp_path / "keeps")
    assert found[-1] == (699 // BLOCK * BLOCK,)  # blocks on disk are whole


def test_what_is_computed_again_is_not_said_to_have_been_held(tiny_package: Callable[..., Path]) -> None:
    folder = tiny_package("mistral", None, sliding_window=WINDOW, max_position_embeddings=1500)
    with embedllm.load(folder, device="cpu") as model:
        model.generate(TOKENS[:700], GREEDY, max_tokens=90, stop_tokens=())
        counts = [
            model.generate([*TOKENS[:same], *TOKENS[1000:1100]], GREEDY, max_tokens=2).statistics.cached_tokens
            for same in (699, 400)
        ]
    assert counts == [699, 64]


def test_what_is_needed_counts_what_layers_keep(folder: Path) -> None:
    package = open_package(folder)
    full = attending(package.decoder.layers[1])
    counted = [estimate_memory(package, device("cpu"), context=tokens).kv_bytes for tokens in (2048, 4096)]
    assert counted[1] - counted[0] == 2048 * 2 * full.kv_heads * full.head_dim * 4
    others = [estimate_memory(package, device("reference"), context=tokens).kv_bytes for tokens in (2048, 4096)]
    assert others[1] == 2 * others[0] > 2 * counted[0]


@pytest.mark.slow
def test_a_pair_of_engines_keeps_all_as_each_gets_it_from_the_other(folder: Path) -> None:
    pair_of_engines = SplitEngine(ort_engine(folder), ort_engine(folder), device("cpu")).open()
    alone = ort_engine(folder).open()
    alone.keeps_all = True
    for session in (pair_of_engines, alone):
        feed_prompt(session, 900)
        for token in TOKENS[900:1000]:
            session.feed([token])
        session.rewind(700)
    rows = [np.array(session.feed(TOKENS[700:750]).values(range(VOCABULARY))) for session in (pair_of_engines, alone)]
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.slow
@pytest.mark.parametrize("variant", [INT8_KV, INT4_KV])
def test_quantized_kv_is_freed_alike(tiny_package: Callable[..., Path], tmp_path: Path, variant: GraphVariant) -> None:
    plain = tiny_package("mistral", None, sliding_window=WINDOW, max_position_embeddings=1500)
    folder = Path(shutil.copytree(plain, tmp_path / "package"))
    write_variant(folder, variant.name, tokens=TOKENS[:100])
    package = open_package(folder)
    graph = package.graph(variant.name)
    assert graph is not None
    both = [OrtEngine(package, graph, device("cpu")).open() for _ in range(2)]
    both[1].keeps_all = True
    for start in range(0, 1400, 200):
        same(both, TOKENS[start : start + 200])
    for token in TOKENS[1400:1404]:
        same(both, [token])
    forgotten, kept = (resident_rows(session.kv["1.key"]) for session in both)
    assert forgotten < kept


@pytest.mark.parametrize("is_windowed", [False, True])
def test_memory_that_the_system_does_not_have_is_a_memory_error(is_windowed: bool) -> None:
    with pytest.raises(MemoryError):
        empty_rows((1, 1, 1 << 50, 1), np.float32, is_windowed=is_windowed)


def test_kv_of_a_new_sequence_takes_no_memory_before_it_is_written_though_others_were_freed() -> None:
    shape = 1, 8, 256, 128  # 1 MiB, as of a layer of 0.6B
    for _ in range(3):
        buffers = [empty_rows(shape, np.float32, is_windowed=False) for _ in range(8)]
        assert max(map(resident_rows, buffers)) <= 8  # in the page of an allocator's header
        assert not any(buffer.any() for buffer in buffers)
        for buffer in buffers:
            buffer[:] = 1
