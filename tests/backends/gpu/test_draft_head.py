"""Draft heads that guess on by themselves on a device, with the CPU provider as the device, and on CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import embedllm
from embedllm import Sampling
from embedllm.backends.base import Device, Engine, OpenOptions, Session
from embedllm.backends.devices import registry
from embedllm.backends.gpu import cuda, hidden_rows
from embedllm.backends.gpu import draft_head as device_head
from embedllm.backends.gpu.cuda import CudaEngine, CudaHeadEngine
from embedllm.backends.gpu.draft_head import DeviceHeadEngine, GuessedRow
from embedllm.backends.gpu.hidden_rows import KEPT, DeviceHiddenRows
from embedllm.backends.gpu.recurrent_engine import RecurrentEngine
from embedllm.backends.ort import draft_head as ort_draft_head
from embedllm.backends.ort.driver import open_draft_head as open_on_cpu
from embedllm.backends.sessions.draft_head import DraftHeadEngine, DraftHeadSession
from embedllm.export import Recipe, convert
from embedllm.export.eagle import add_eagle
from embedllm.export.mtp import add_mtp
from embedllm.generation.speculation.speculator import Draft
from embedllm.package.entries import Graph
from embedllm.package.package import Package, open_package
from embedllm.types import Logits
from tests.support.draft_heads import make_drafts_free
from tests.support.eagle_heads import tiny_eagle
from tests.support.host_engine import HOST, HostEngine, make_host_the_device, open_host
from tests.support.host_head import HostHeadEngine, heads_for_host
from tests.support.host_memory import HostMemory
from tests.support.mtp_heads import add_head
from tests.support.tiny import tiny_checkpoint
from tests.support.tiny_recurrent import tiny_qwen3_5

GREEDY = Sampling(temperature=0)
TOKENS = np.random.default_rng(3).integers(0, 300, 60).tolist()
KINDS = ("eagle", "mtp")
GUESSES = 4


def write_package(kind: str, folder: Path, bits: int) -> Path:
    checkpoint = tiny_checkpoint(folder / "checkpoint", num_hidden_layers=4)
    if kind == "mtp":
        add_head(checkpoint, layer=0)
    package = convert(checkpoint, folder / "package", Recipe(bits=bits))
    with heads_for_host():
        if kind == "mtp":
            add_mtp(package, checkpoint, bits=bits)
        else:
            add_eagle(package, tiny_eagle(folder / "head"), bits=bits)
    return package


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def package(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(kind, tmp_path_factory.mktemp(kind), 32)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    make_host_the_device(monkeypatch)


def hidden_variant(package: Package) -> str:
    return next(graph.variant for graph in package.graphs if "hidden-float32" in graph.variant)


def head_options(package: Path, kind: str) -> OpenOptions:
    head = open_package(package / kind)
    return OpenOptions(package=head, device=HOST, graph=head.graph(f"{kind}-float32"))


def open_host_head(options: OpenOptions) -> DraftHeadEngine[hidden_rows.HiddenSpan]:
    return DraftHeadEngine(HostHeadEngine(options.package, options.require_graph(), HOST))


@pytest.fixture
def target(package: Path, on_host: None) -> Iterator[HostEngine]:
    opened = open_package(package)
    engine = open_host(opened, hidden_variant(opened))
    engine.captures = True  # the CPU captures nothing: it runs all as it stands
    yield engine
    engine.close()


class Pair:
    """The same sequence on a device and on the CPU, each with its head."""

    def __init__(self, target: Engine, package: Path, kind: str) -> None:
        opened = open_package(package)
        device = next(one for one in registry.devices() if one.name == "cpu")
        cpu = registry.open_engine(opened, device, exact=True, hidden_graph=hidden_variant(opened))
        engines = open_host_head(head_options(package, kind)), open_on_cpu(head_options(package, kind))
        self.sessions: list[Session] = [target.open(64), cpu.open()]
        self.vocabulary = getattr(engines[1], "tokens", None)
        self.heads: list[DraftHeadSession[object]] = [engine.open() for engine in engines]  # type: ignore[misc]
        for head, session in zip(self.heads, self.sessions, strict=True):
            head.follow(session)

    def each(self, act: Callable[[Session], object]) -> None:
        for session in self.sessions:
            act(session)

    def guesses(self, tokens: list[int], count: int) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Of the heads, which are given these tokens more: on the device at once, on the CPU one by one."""
        device, cpu = self.heads
        device.want(count)
        row = device.feed(tokens)
        assert isinstance(row, GuessedRow)
        wanted: list[tuple[int, float]] = []
        for at in range(count):
            logits = cpu.feed(tokens if not at else [wanted[-1][0]])
            best = logits.top(1)
            token = best.tokens[0] if self.vocabulary is None else self.vocabulary[best.tokens[0]]
            wanted.append((token, math.exp(best.logits[0] - logits.logsumexp())))
        cpu.rewind(cpu.position - count + 1)
        return row.guesses(), wanted


def assert_same(found: Sequence[tuple[int, float]], wanted: Sequence[tuple[int, float]]) -> None:
    assert [token for token, _ in found] == [token for token, _ in wanted]
    assert [share for _, share in found] == pytest.approx([share for _, share in wanted], abs=1e-4)


def test_guesses_are_those_of_reading_each_for_the_next(target: HostEngine, package: Path, kind: str) -> None:
    pair = Pair(target, package, kind)
    pair.each(lambda session: session.feed(TOKENS[:9]))
    assert_same(*pair.guesses(TOKENS[:10], GUESSES))
    pair.each(lambda session: session.feed([TOKENS[9]]))  # a step
    assert_same(*pair.guesses([TOKENS[10]], 1))
    pair.each(lambda session: session.feed_rows(TOKENS[10:14]) if session is pair.sessions[0]  # type: ignore[attr-defined]
              else session.feed_all(TOKENS[10:14]))  # type: ignore[attr-defined]  # fmt: skip
    assert_same(*pair.guesses(TOKENS[11:15], GUESSES))
    for one in (*pair.heads, *pair.sessions):
        one.rewind(12)
    pair.each(lambda session: session.feed(TOKENS[30:33]))
    assert_same(*pair.guesses(TOKENS[30:34], GUESSES))


_FEEDS = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=6)


@given(feeds=_FEEDS, seed=st.integers(0, 5))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_feeds_and_rewinds_lead_to_the_same_guesses(
    target: HostEngine, package: Path, kind: str, feeds: list[tuple[int, int, int]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    pair, held = Pair(target, package, kind), []
    for count, rejected, guesses in feeds:
        new = random.integers(0, 300, count).tolist()
        if len(held) + count + guesses > 48:
            break
        pair.each(lambda session, new=new: session.feed(new))
        held += new
        back = min(rejected, len(held) - 1)
        if back:
            del held[len(held) - back :]
            left = len(held)
            pair.each(lambda session, left=left: session.rewind(left))
        following = int(random.integers(300))
        for head in pair.heads:
            head.rewind(min(head.position, len(held)))
        assert pair.heads[0].position == pair.heads[1].position
        assert_same(*pair.guesses([*held[pair.heads[0].position :], following], guesses))


@pytest.fixture
def heads(on_host: None, monkeypatch: pytest.MonkeyPatch) -> list[DeviceHeadEngine]:
    """Models of the device "cpu" run on the engine of CUDA, as do their heads: these."""
    opened: list[DeviceHeadEngine] = []

    def open_target(package: Package, graph: Graph, device: Device, **_: object) -> Engine:
        engine = HostEngine(package, graph, device, capture=False)
        engine.captures = True  # the CPU captures nothing: it runs all as it stands
        return engine

    def open_head(package: Package, graph: Graph, device: Device, **_: object) -> Engine:
        opened.append(HostHeadEngine(package, graph, device))
        return DraftHeadEngine(opened[-1])

    # imported above: it would take the engine's name for good while that is another's
    monkeypatch.setattr(ort_draft_head, "open_on_host", open_head)
    monkeypatch.setattr("embedllm.backends.ort.engine.OrtEngine", open_target)
    make_drafts_free(monkeypatch)
    return opened


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=1, temperature=0.3)])
def test_a_head_changes_no_reply(heads: list[DeviceHeadEngine], package: Path, kind: str, sampling: Sampling) -> None:
    with embedllm.load(package, device="cpu", draft=package / kind) as llm:
        plain = llm.generate(TOKENS[:9], sampling, max_tokens=30, speculate="off")
        drafted = llm.generate(TOKENS[:9], sampling, max_tokens=30, speculate="draft")
        assert heads
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.drafted_tokens >= 2 * GUESSES
    with pytest.raises(ValueError, match="was closed"):
        _ = heads[0].session


def test_a_head_begins_anew_where_its_kv_is_full(
    heads: list[DeviceHeadEngine], package: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_head, "_LONGEST", 40)
    with embedllm.load(package, device="cpu", draft=package / kind) as llm:
        plain = llm.generate(TOKENS[:30], GREEDY, max_tokens=60, speculate="off")
        drafted = llm.generate(TOKENS[:30], GREEDY, max_tokens=60, speculate="draft")
    assert heads[0].longest == 40
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.drafted_tokens > 30


def test_a_head_follows_a_recurrent_model(on_host: None, tmp_path: Path) -> None:
    checkpoint = add_head(tiny_qwen3_5(tmp_path / "checkpoint"), layer=1)
    package = convert(checkpoint, tmp_path / "package", Recipe(bits=32))
    with heads_for_host():
        add_mtp(package, checkpoint, bits=32)
    engine = RecurrentEngine(open_host(open_package(package), "hidden-float32"))
    pair = Pair(engine, package, "mtp")
    pair.each(lambda session: session.feed(TOKENS[:9]))
    pair.each(lambda session: session.feed([TOKENS[9]]))
    assert_same(*pair.guesses(TOKENS[:11], GUESSES))
    engine.close()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_captured_guesses_on_cuda_are_those_of_kernels_launched_one_by_one(kind: str, tmp_path: Path) -> None:
    folder = write_package(kind, tmp_path, 4)
    package, head = open_package(folder), open_package(folder / kind)
    graphs = package.graph(hidden_variant(package).replace("32", "16")), head.graph(f"{kind}-float16")
    assert graphs[0] is not None
    assert graphs[1] is not None
    gpu = cuda.devices()[0]
    engine = CudaEngine(package, graphs[0], gpu)
    heads = [DraftHeadEngine(CudaHeadEngine(head, graphs[1], gpu, capture=is_on)) for is_on in (True, False)]
    session, held = engine.open(), TOKENS[:9]
    following = [*(one.open() for one in heads), heads[0].open()]  # the last one has memory that was never used
    for one in following:
        one.follow(session)
    session.feed(held)
    for count in (1, 3, 2, 5, 1, 4, 7, 6, 9):  # tokens that the target model reads between guesses
        found = []
        for one in following:
            one.want(GUESSES)
            row = one.feed([*held, 7][one.position :])
            assert isinstance(row, GuessedRow)
            found.append(row.guesses())
            one.rewind(len(held))
        assert_same(found[0], found[1])
        assert_same(found[0], found[2])
        new = TOKENS[len(held) : len(held) + count]
        if count == 1:
            session.feed(new)
        else:
            session.feed_rows(new)
        held += new
    for one in (*heads, engine):
        one.close()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_drafts_on_cuda_and_its_guesses_are_as_likely_as_on_the_cpu(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_package(kind, tmp_path, 4)
    make_drafts_free(monkeypatch)
    shares: dict[str, list[float]] = {}
    guesses = Draft.guesses
    for name in ("cpu", "cuda"):
        noted = shares[name] = []

        def note(self: Draft, logits: Logits, noted: list[float] = noted) -> Sequence[tuple[int, float]]:
            found = guesses(self, logits)
            noted.extend(share for _, share in found)
            return found

        monkeypatch.setattr(Draft, "guesses", note)
        with embedllm.load(folder, device=name, draft=folder / kind) as llm:
            reply = llm.generate(TOKENS[:9], GREEDY, max_tokens=20, speculate="draft")
            assert reply.statistics.drafted_tokens >= 2 * GUESSES
    assert shares["cuda"][0] == pytest.approx(shares["cpu"][0], abs=0.02)


def test_a_guess_that_is_no_number_is_worth_nothing() -> None:
    row = GuessedRow(300, lambda: np.array([[7, np.nan], [8, 0.5]], np.float32))
    assert row.guesses() == [(7, 0.0), (8, 0.5)]
    assert row.top(1).logits == [-math.inf]


@settings(max_examples=300, deadline=None)
@given(puts=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 2 * KEPT)), max_size=12))
def test_the_newest_rows_are_kept_as_they_were_put(puts: list[tuple[int, int]]) -> None:
    memory, width = HostMemory(), 3
    rows = DeviceHiddenRows(memory, _Nothing(), width * 4)
    rows.put(5, 0, 5)  # nobody follows
    assert rows.stop == 0
    rows.keep()
    expected: dict[int, float] = {}
    position = first = 0
    for number, (back, count) in enumerate(puts):
        position = max(0, position - back) + count
        source = np.full((count, width), number, np.float32)
        source[:, 0] = np.arange(position - count, position)
        rows.put(position, source.ctypes.data, count)
        expected = {at: kept for at, kept in expected.items() if at < position - count}
        expected |= dict.fromkeys(range(position - count, position), float(number))
        assert rows.stop == position
        first = max(min(first, position - count), position - KEPT)
        assert rows.first == first
        found = np.empty((rows.stop - rows.first, width), np.float32)
        rows.get(rows.first, rows.stop).copy(found.ctypes.data)
        assert found[:, 0].tolist() == list(range(rows.first, rows.stop))
        assert found[:, 1].tolist() == [expected[at] for at in range(rows.first, rows.stop)]


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
