"""States behind the accepted ones of some drafts, of what recurrent operators have read of all of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from embedllm.backends.base import BatchRow, Device
from embedllm.backends.devices.registry import devices
from embedllm.backends.ort.activation_replay import FROM, ReplayGraph
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.ort.recurrent_state import States
from embedllm.backends.ort.runtime import ort
from embedllm.backends.ort.session import OrtSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.export import Recipe, convert
from embedllm.package.graph_variants import FLOAT32, GPU_FLOAT32
from embedllm.package.package import open_package
from embedllm.package.recurrent_state import state_shapes
from tests.support.tiny_recurrent import (
    tiny_falcon_h1,
    tiny_granite_hybrid,
    tiny_lfm2,
    tiny_nemotron_h,
    tiny_olmo_hybrid,
    tiny_qwen3_5,
)

VOCABULARY = 307
# of the spread of the logits: float32 sums in another order, through the states of 50 tokens (measured: 1.5e-5)
CLOSE = 5e-4


def converted(make: Callable[[Path], Path], folder: Path) -> Path:
    return convert(make(folder / "checkpoint"), folder / "package", Recipe(bits=4))


def written(make: Callable[[Path, str], Path], folder: Path) -> Path:
    return make(folder / "package", FLOAT32.name)


MODELS = {
    "lfm2": functools.partial(converted, tiny_lfm2),
    "qwen3_5": functools.partial(converted, tiny_qwen3_5),
    "falcon_h1": functools.partial(converted, tiny_falcon_h1),
    "granite": functools.partial(written, tiny_granite_hybrid),
    "olmo": functools.partial(written, tiny_olmo_hybrid),
    "nemotron": functools.partial(written, tiny_nemotron_h),
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODELS["qwen3_5"](tmp_path_factory.mktemp("qwen"))


def cpu() -> Device:
    return next(one for one in devices() if one.name == "cpu")


def engine_of(folder: Path, *, variant: str = FLOAT32.name, exact: bool = True, adapts: bool = False) -> OrtEngine:
    package = open_package(folder)
    graph = next(graph for graph in package.graphs if graph.variant == variant)
    return OrtEngine(package, graph, cpu(), exact=exact, adapts=adapts)


def opened(engine: OrtEngine) -> StatefulSession:
    session = engine.open()
    assert isinstance(session, StatefulSession)
    return session


class Judge:
    """The reference device, which reads each sequence from its beginning."""

    def __init__(self, folder: Path) -> None:
        self._package = open_package(folder)
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def check(self, tokens: Sequence[int], rows: np.ndarray) -> None:
        """That these are the logits behind the last ones of some tokens."""
        if tuple(tokens) not in self._rows:
            self._rows[tuple(tokens)] = ReferenceEngine(self._package).open().feed_all(tokens)
        expected = self._rows[tuple(tokens)][-len(rows) :]
        assert np.abs(rows - expected).max() < CLOSE * np.ptp(expected)


def values(rows: Sequence[object]) -> np.ndarray:
    return np.array([row.values(range(VOCABULARY)) for row in rows])  # type: ignore[attr-defined]  # Logits


@pytest.mark.parametrize("seed", range(3))
def test_any_pattern_of_accepted_and_rejected_drafts_gives_what_the_reference_gives(folder: Path, seed: int) -> None:
    random, judge, session = np.random.default_rng(seed), Judge(folder), opened(engine_of(folder))
    held = random.integers(3, 300, 9).tolist()
    session.feed(held)
    for _ in range(25):
        kind = random.choice(["drafts", "drafts", "step", "prompt", "back"])
        count = {"drafts": int(random.integers(2, 6)), "step": 1, "prompt": 3, "back": 0}[kind]
        new = random.integers(3, 300, count).tolist()
        if kind == "drafts":
            judge.check([*held, *new], values(session.feed_rows(new)))
            kept = len(held) + sorted(random.integers(0, count + 1, 2).tolist())[::-1][0]
            held = [*held, *new][:kept]
            session.rewind(kept)
            if random.random() < 0.2 and kept > 2:  # again, before anything was fed
                held = held[:-1]
                session.rewind(kept - 1)
        elif kind == "back":
            held = held[: int(random.integers(max(1, len(held) - 8), len(held) + 1))]
            session.rewind(len(held))
        else:
            held += new
            judge.check(held, session.feed_all(new) if kind == "prompt" else values([session.feed(new)]))
        assert session.position == len(held)
        if len(held) > 45:
            held = held[:5]
            session.rewind(5)


def test_a_rejection_feeds_no_token_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(engine_of(folder))
    fed: list[list[int]] = []
    feed = session._plain.feed
    session.feed([5, 6, 7])
    monkeypatch.setattr(session._plain, "feed", lambda tokens: fed.append(list(tokens)) or feed(tokens))
    session.feed([8])
    for accepted in (1, 2, 3, 1):
        session.feed_rows([9, 10, 11, 12])
        session.rewind(session.position - 4 + accepted)
        session.feed([13])
    assert fed == [[8], [13], [13], [13], [13]]
    assert list(session._copies) == [3]  # the end of the prompt


def test_states_behind_drafts_are_written_in_place_where_no_other_goes_back_to_those_before(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, places = opened(engine_of(qwen)), []
    follow = States.follow

    def spy(states: States, compute: Callable[[object, object], None]) -> None:
        follow(states, lambda past, present: (places.append(past is present), compute(past, present))[0])

    monkeypatch.setattr(States, "follow", spy)
    session.feed([5, 6, 7])
    first = values(session.feed_rows([8, 9, 10]))
    session.rewind(4)
    session.feed([11])
    session.feed_rows([12, 13])
    session.rewind(6)
    session.feed([14])
    assert places == [False, True]
    session.rewind(3)  # the end of the prompt
    assert np.abs(values(session.feed_rows([8, 9, 10])) - first).max() < CLOSE * np.ptp(first)


def test_a_replay_that_fails_leaves_a_sequence_that_goes_on(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, judge = opened(engine_of(qwen)), Judge(qwen)
    session.feed([5, 6, 7])
    session.feed([8])
    session.feed_rows([9, 10, 11])
    session.rewind(5)

    def fails(graph: ReplayGraph) -> ort.InferenceSession:
        raise RuntimeError("there is no memory")

    with monkeypatch.context() as patch:
        patch.setattr(ReplayGraph, "session", property(fails))
        with pytest.raises(Exception, match="there is no memory"):
            session.feed([12])
    assert session.position == 5
    judge.check([5, 6, 7, 8, 9, 12], values([session.feed([12])]))


def test_a_sequence_whose_drafts_were_rejected_steps_with_others(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, counts = engine_of(qwen, exact=False), []
    run = engine._run_all
    monkeypatch.setattr(engine, "_run_all", lambda rows: counts.append(len(rows)) or run(rows))
    sessions = [opened(engine), opened(engine)]
    for session in sessions:
        session.feed([5, 6, 7])
    sessions[0].feed_rows([9, 10, 11])
    sessions[0].rewind(4)
    rows = [values(engine.run_batch([BatchRow(session, [token]) for session in sessions]))[0] for token in (12, 13)]
    assert counts == [2, 2]
    expected = ReferenceEngine(open_package(qwen)).open().feed_all([5, 6, 7, 9, 12, 13])[-2:]
    for found, wanted in zip(rows, expected, strict=True):
        assert np.corrcoef(found, wanted)[0, 1] > 0.99  # activations are rounded: not exact


def test_drafts_of_a_model_with_room_for_adapters_are_replayed(qwen: Path) -> None:
    session, judge = opened(engine_of(qwen, adapts=True)), Judge(qwen)
    session.feed([5, 6, 7])
    session.feed_rows([9, 10, 11])
    session.rewind(5)
    assert session._replayer() is not None
    judge.check([5, 6, 7, 9, 10, 12], values([session.feed([12])]))


def test_a_feed_that_asks_for_none_gives_no_activations(qwen: Path) -> None:
    engine = engine_of(qwen)
    graph = engine.replay_graph
    assert graph is not None
    inputs = {one.name for one in engine.session.get_overridable_initializers()}
    assert FROM in inputs
    session = opened(engine)
    session.feed(list(range(3, 43)))
    session.feed_rows([5, 6, 7])  # which asks
    assert isinstance(session._plain, OrtSession)
    binding = session._plain._prepare([1, 2, 3], logits_from=-1)
    wide = [name for name in graph.outputs if name.startswith("activations.")]
    for name in wide:
        binding.bind_output(name)
    engine.session.run_with_iobinding(binding)
    assert {value.shape()[1] for value in binding.get_outputs()[-len(wide) :]} == {0}


def test_graphs_with_other_operators_are_fed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_olmo_hybrid(tmp_path / "package", GPU_FLOAT32.name)
    caplog.set_level(logging.INFO, "embedllm")
    session = opened(engine_of(folder, variant=GPU_FLOAT32.name))
    session.feed([5, 6, 7])
    session.feed_rows([9, 10, 11])
    session.rewind(5)
    assert session._replayer() is None
    assert "accepted drafts are fed again" in caplog.text
    Judge(folder).check([5, 6, 7, 9, 10, 12], values([session.feed([12])]))


def test_the_extended_graph_is_the_graph_with_more_behind_it(qwen: Path) -> None:
    package = open_package(qwen)
    data = (package.folder / FLOAT32.file).read_bytes()
    names = state_shapes(package.decoder)
    graph = ReplayGraph(data, names, ort.SessionOptions)
    before, after = onnx.load_model_from_string(data), onnx.load_model_from_string(data + graph.extension())
    count = len(before.graph.node)
    assert after.graph.node[:count] == before.graph.node
    assert {node.op_type for node in after.graph.node[count:]} == {"Slice"}
    assert [one.name for one in after.graph.output[len(before.graph.output) :]] == graph.outputs
    assert before.opset_import == after.opset_import
    assert (package.folder / FLOAT32.file).read_bytes() == data
