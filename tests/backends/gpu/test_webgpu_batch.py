"""Sequences that step together on WebGPU, beside the reference; recurrent ones and others.

On a GPU, or on a software one: .ci/lavapipe.sh pytest -m webgpu tests/backends/gpu/test_webgpu_batch.py
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedllm
from embedllm import Completion, Sampling
from embedllm.backends.base import BatchRow, Device, Interrupted, Interruptible, Session
from embedllm.backends.gpu import webgpu_batch
from embedllm.backends.gpu.webgpu import WebGpuEngine
from embedllm.backends.gpu.webgpu_batch import FEW, Batch
from embedllm.backends.gpu.webgpu_capture import CapturedRun
from embedllm.backends.gpu.webgpu_kv import KvCopier
from embedllm.backends.gpu.webgpu_pace import Pace
from embedllm.backends.gpu.webgpu_steps import CapturedSession
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from embedllm.kv_cache.transfer import exported, kv_mover
from embedllm.package.graph_variants import GPU_FLOAT32
from embedllm.package.package import Package, open_package
from embedllm.types import Logits
from tests.support.logits import best, greedy, values
from tests.support.tiny import write_tokenizer
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_granite_hybrid, tiny_lfm2, tiny_qwen3_5

pytestmark = pytest.mark.webgpu

CLOSE = 1e-3  # of the spread of the logits, in float32, as in test_webgpu_states.py
RECURRENT: dict[str, Callable[[Path], Path]] = {"lfm2": tiny_lfm2, "qwen3_5": tiny_qwen3_5, "falcon_h1": tiny_falcon_h1}
STREAMS: list[list[int]] = np.random.default_rng(1).integers(3, 300, (4, 120)).tolist()


class Loaded:
    """A model, and the logits behind each token of some texts."""

    def __init__(self, package: Package, device: Device) -> None:
        graph = package.graph(GPU_FLOAT32.name)
        assert graph is not None
        self.package = package
        self.engine = together(WebGpuEngine(package, graph, device))
        self.exact = [ReferenceEngine(package).open().feed_all(stream) for stream in STREAMS]

    def step(self, sessions: Sequence[Session], *, streams: Sequence[int] | None = None) -> Sequence[Logits]:
        """One token more of their texts to each of them, whose logits have to be the right ones."""
        places = range(len(sessions)) if streams is None else streams
        at = [session.position for session in sessions]
        rows = [BatchRow(one, [STREAMS[place][one.position]]) for one, place in zip(sessions, places, strict=True)]
        found = self.engine.run_batch(rows)
        for logits, place, position in zip(found, places, at, strict=True):
            self.check(logits, place, position)
        return found

    def check(self, logits: Logits, stream: int, position: int) -> None:
        exact = self.exact[stream][position]
        np.testing.assert_allclose(values(logits), exact, atol=CLOSE * float(np.ptp(exact)), rtol=0)


def together(engine: WebGpuEngine) -> WebGpuEngine:
    """Whose sequences step together, whether or not that is the faster way here."""
    assert engine.batches is not None
    engine.batches.paces = None
    return engine


@pytest.fixture(scope="module", params=["qwen3", *RECURRENT])
def model(
    request: pytest.FixtureRequest,
    device: Device,
    tiny_package: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Loaded]:
    if request.param in RECURRENT:
        folder = tmp_path_factory.mktemp(request.param)
        path = convert(RECURRENT[request.param](folder / "checkpoint"), folder / "package", Recipe(method="nearest"))
    else:
        path = tiny_package(request.param, max_position_embeddings=4096)
    loaded = Loaded(open_package(path), device)
    yield loaded
    loaded.engine.close()


def opened(model: Loaded, lengths: Sequence[int]) -> list[Session]:
    """Sessions that hold the beginnings of the texts."""
    sessions: list[Session] = [model.engine.open() for _ in lengths]
    for session, length, stream in zip(sessions, lengths, STREAMS, strict=False):
        session.feed(stream[:length])
    return sessions


def plain(session: Session) -> CapturedSession:
    found = session._plain if isinstance(session, StatefulSession) else session
    assert isinstance(found, CapturedSession)
    return found


def close(sessions: Sequence[Session]) -> None:
    for session in sessions:
        session.close()


def test_sequences_of_different_lengths_step_together(model: Loaded) -> None:
    """One waits meanwhile, one is fed several tokens alone, one joins and one leaves."""
    sessions = opened(model, (5, 70, 33))
    for turn in range(12):
        stepping = [0, 1, 2] if turn < 4 else [0, 2] if turn < 7 else [0, 1, 2]
        model.step([sessions[at] for at in stepping], streams=stepping)
        if turn == 5:
            at = sessions[1].position
            model.check(sessions[1].feed(STREAMS[1][at : at + 3]), 1, at + 2)
    batch = plain(sessions[0]).slot
    assert batch is not None
    assert batch.is_newer
    sessions.append(model.engine.open())
    sessions[3].feed(STREAMS[3][:20])
    for _ in range(3):
        model.step(sessions)
    sessions.pop(0).close()
    for _ in range(3):
        model.step(sessions, streams=[1, 2, 3])
    for at, session in enumerate(sessions, 1):
        position = session.position
        model.check(session.feed([STREAMS[at][position]]), at, position)
    close(sessions)


def test_logits_of_one_that_waits_stay_while_others_step(model: Loaded) -> None:
    sessions = opened(model, (5, 9, 12))
    model.step(sessions)  # which is compared with single steps
    found = model.engine.run_batch([BatchRow(one, [STREAMS[at][one.position]]) for at, one in enumerate(sessions)])
    position = sessions[1].position - 1
    model.step([sessions[0], sessions[2]], streams=[0, 2])
    model.check(found[1], 1, position)
    assert best(found[1]) == int(model.exact[1][position].argmax())
    latest = model.step([sessions[0], sessions[2]], streams=[0, 2])
    for logits in (found[0], latest[0]):  # the one is read already
        logits.top(1)
    again = model.engine.run_batch([BatchRow(sessions[at], [3]) for at in (0, 2)])
    model.engine.run_batch([BatchRow(sessions[at], [3]) for at in (0, 2)])
    with pytest.raises(ValueError, match="these logits are gone"):
        again[0].values([3])
    close(sessions)


def test_a_rewind_in_a_batch_equals_a_sequence_that_was_never_there(model: Loaded) -> None:
    """To the end of the prompt, and to the middle of what was made in the batch, before the others step and behind."""
    sessions = opened(model, (20, 31, 64))
    for back in (3, 8):
        for _ in range(8):
            model.step(sessions)
        sessions[1].rewind(sessions[1].position - back)
        model.step([sessions[0], sessions[2]], streams=[0, 2])
    for _ in range(3):
        model.step(sessions)
    sessions[2].rewind(0)
    sessions[2].feed(STREAMS[2][:2])
    for _ in range(3):
        model.step(sessions)
    close(sessions)


def test_a_step_that_fails_leaves_all_as_they_were(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = opened(model, (20, 31))
    for _ in range(3):
        model.step(sessions)
    slot = plain(sessions[0]).slot
    assert slot is not None
    positions = [session.position for session in sessions]

    def fails(self: object) -> None:
        raise RuntimeError("out of something")

    with monkeypatch.context() as patch:
        patch.setattr(CapturedRun, "run", fails)
        with pytest.raises(DeviceError, match="out of something"):
            model.step(sessions)
    assert [session.position for session in sessions] == positions
    model.step(sessions[:1])
    sessions.append(model.engine.open())
    sessions[2].feed(STREAMS[2][:9])
    model.step([sessions[0], sessions[2]], streams=[0, 2])  # the logits of the other are gone, which is no failure
    for _ in range(3):
        model.step(sessions)
    close(sessions)


def test_what_cannot_be_brought_back_is_not_lost(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others step, one grows out of the batch, or is fed alone: once the device works, all goes on."""
    sessions = opened(model, (20, 31, 40, 12))
    for _ in range(3):
        model.step(sessions)
    positions = [session.position for session in sessions]

    def fails(self: object, *args: object, **options: object) -> None:
        raise RuntimeError("out of something")

    with monkeypatch.context() as patch:
        patch.setattr(KvCopier, "copied", fails)
        with pytest.raises(DeviceError, match="out of something"):
            model.step(sessions[:3])
        with pytest.raises(DeviceError, match="out of something"):
            model.step(sessions[:1])
        patch.setattr(webgpu_batch, "WIDTHS", (16,))  # the batch is too narrow
        with pytest.raises(DeviceError, match="out of something"):
            model.step(sessions)
    assert [session.position for session in sessions] == positions
    for count in (3, 4, 1):
        model.step(sessions[:count])
    close(sessions)


def test_one_that_is_stopped_stops_no_others(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they step together or in turns."""
    batches = model.engine.batches
    assert batches is not None
    sessions = opened(model, (20, 31))
    model.step(sessions)
    interrupted = sessions[0]
    assert isinstance(interrupted, Interruptible)
    for has_room in (True, False):
        for one in list(batches._batches):
            batches._drop(one)
        monkeypatch.setattr(batches, "_has_room", lambda width, capacity, has_room=has_room: has_room)
        interrupted.interrupt()
        for _ in range(2):
            model.step(sessions)
        with pytest.raises(Interrupted):
            interrupted.feed([5])
        interrupted.interrupt(False)
        model.step(sessions)
    close(sessions)


def test_batches_are_as_wide_as_their_sequences_are_many(model: Loaded) -> None:
    """More than have kernels for steps are in two batches, and who is in one stays there."""
    sessions, others = opened(model, (5, 9, 12, 30)), opened(model, (7, 8, 9, 10))
    seen: list[list[int]] = []
    for stepping in (sessions[:2], sessions[:3], sessions, others, others[1:], sessions[:2]):
        model.step(stepping, streams=[(sessions if one in sessions else others).index(one) for one in stepping])
        slots = [plain(one).slot for one in stepping]
        seen.append([slot.batch.width if slot is not None and isinstance(slot.batch, Batch) else 1 for slot in slots])
    assert seen == [[2, 2], [3, 3, 3], [3, 3, 3, 1], [2, 2, 2, 2], [3, 3, 3], [3, 3]]
    close([*sessions, *others])


@dataclass(frozen=True, eq=False)
class Rows:
    """In place of a batch."""

    width: int


@given(st.lists(st.integers(0, 5), min_size=FEW + 1, max_size=3 * FEW))
def test_narrow_parts_are_few_and_leave_sequences_where_they_are(places: list[int]) -> None:
    """places: the batch of each sequence; 0: none, from 1 on narrow ones, which have no more than their rows."""
    batches = [Rows(width) for width in (0, 2, FEW, FEW, 8, 16)]
    sessions, inside = [], defaultdict(list)
    for place in places:
        has_row = place > 0 and len(inside[place]) < batches[place].width
        session = SimpleNamespace(slot=SimpleNamespace(batch=batches[place]) if has_row else None)
        sessions.append(session)
        if has_row:
            inside[place].append(id(session))
    parts = [set(map(id, part)) for part in webgpu_batch._narrow_parts(cast("list[CapturedSession]", sessions))]
    assert sorted(one for part in parts for one in part) == sorted(map(id, sessions))
    assert all(0 < len(part) <= FEW for part in parts)
    assert len(parts) == -(-len(sessions) // FEW)
    narrow = sorted((set(inside[at]) for at in (1, 2, 3)), key=len, reverse=True)
    assert all(any(held <= part for part in parts) for held in narrow[: len(parts)])


@pytest.mark.parametrize("has_room", [True, False])
def test_a_batch_grows_with_a_sequence(
    has_room: bool, device: Device, tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each sequence alone, whose next greedy token is in the buffers of before."""
    package = open_package(tiny_package("qwen3", max_position_embeddings=4096))
    graph = package.graph(GPU_FLOAT32.name)
    assert graph is not None
    engine = together(WebGpuEngine(package, graph, device))
    if not has_room:
        monkeypatch.setattr(engine.batches, "_has_room", lambda width, capacity: False)
    tokens = np.random.default_rng(4).integers(3, 300, 1020).tolist()
    sessions = [engine.open() for _ in range(2)]
    found = [[best(session.feed(prompt))] for session, prompt in zip(sessions, (tokens, tokens[:9]), strict=True)]
    for _ in range(8):
        rows = [BatchRow(session, each[-1:]) for session, each in zip(sessions, found, strict=True)]
        for each, logits in zip(found, engine.run_batch(rows), strict=True):
            each.append(best(logits))
    assert sessions[0].capacity == 2048
    assert found == [greedy(ReferenceEngine(package).open(), prompt, 9) for prompt in (tokens, tokens[:9])]
    close(sessions)
    engine.close()


def test_others_take_a_prefix_of_a_sequence_in_a_batch(model: Loaded) -> None:
    """One that was in the batch, too, and a new one: the newest KV and states are in the batch's rows only."""
    sessions = opened(model, (20, 31))
    sessions.append(model.engine.open())
    sessions[2].feed(STREAMS[1][:9])
    for _ in range(4):
        model.step(sessions, streams=[0, 1, 1])
    sessions[2].rewind(9)
    for taker in (sessions[2], model.engine.open()):
        slot = plain(sessions[1]).slot
        assert slot is not None
        assert slot.is_newer
        take_rest(taker, sessions[1])
        sessions += [] if taker in sessions else [taker]
        for _ in range(2):
            model.step(sessions, streams=[0, 1, 1, 1][: len(sessions)])
    close(sessions)


def take_rest(session: Session, source: Session) -> None:
    """Takes what another one holds more of the second text."""
    start, stop = session.position, source.position
    mover, source_mover = kv_mover(session), kv_mover(source)
    assert mover is not None
    assert source_mover is not None
    if isinstance(session, StatefulSession) and isinstance(source, StatefulSession):
        states = source.export_states(stop)
        assert session.import_prefix(STREAMS[1][start:stop], [exported(source_mover, start, stop)], states)
    else:
        mover.import_state(exported(source_mover, start, stop))


def test_a_wrong_batch_is_given_up(model: Loaded, device: Device, monkeypatch: pytest.MonkeyPatch,
                                   caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    """As one whose rows are those of other sequences."""
    graph = model.package.graph(GPU_FLOAT32.name)
    assert graph is not None
    engine = together(WebGpuEngine(model.package, graph, device))
    right = Batch.step
    monkeypatch.setattr(Batch, "step", lambda self, sessions, tokens: right(self, sessions, tokens)[::-1])
    caplog.set_level(logging.INFO, "embedllm")
    sessions = [engine.open() for _ in range(2)]
    for session, stream in zip(sessions, STREAMS, strict=False):
        session.feed(stream[:6])
    for at in (6, 7):
        rows = [BatchRow(session, [stream[at]]) for session, stream in zip(sessions, STREAMS, strict=False)]
        for stream, logits in enumerate(engine.run_batch(rows)):
            model.check(logits, stream, at)
    assert "take turns: a step of 2 differs by" in caplog.text
    assert engine.max_batch == 1
    close(sessions)
    engine.close()


def test_sequences_take_turns_where_that_is_faster(
    model: Loaded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a clock that says so: a second for what is together, and a tenth of one for what is not."""
    caplog.set_level(logging.INFO, "embedllm")
    now, batches = [0.0], model.engine.batches
    assert batches is not None
    monkeypatch.setattr(batches, "paces", {2: Pace("steps of up to 2", ("together", "in turns"), lambda: now[0])})
    sessions, ways = opened(model, (5, 9)), list[bool]()
    for _ in range(70):
        model.step(sessions)
        slot = plain(sessions[0]).slot
        ways.append(slot is not None and slot.is_newer)
        now[0] += 1.0 if ways[-1] else 0.1
    assert ways[1]
    assert not ways[-1]
    assert "steps of up to 2 run in turns: 1e+03 ms a step together, 100 ms a step in turns" in caplog.text
    close(sessions)


def test_the_clock_compares_nothing_while_there_is_no_room(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or turns that happen to be quicker than turns would be the way of those that have room, too."""
    now, batches = [0.0], model.engine.batches
    assert batches is not None
    for one in list(batches._batches):
        batches._drop(one)
    monkeypatch.setattr(batches, "paces", {2: Pace("steps of up to 2", ("together", "in turns"), lambda: now[0])})
    sessions = opened(model, (5, 9))
    with monkeypatch.context() as patch:
        patch.setattr(batches, "_has_room", lambda width, capacity: False)
        for step in range(70):
            model.step(sessions)
            now[0] += 1.0 if step < 35 else 0.1
    model.step(sessions)
    assert plain(sessions[0]).slot is not None
    close(sessions)


def test_batches_have_room_for_what_is_held_not_for_what_there_is_room_for(
    device: Device, tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short sequence may have the buffers of a long one that was closed."""
    package = open_package(tiny_package("qwen3", max_position_embeddings=4096))
    model = Loaded(package, device)
    assert model.engine.batches is not None
    sessions: list[Session] = [model.engine.open(4096), model.engine.open()]
    for session, stream in zip(sessions, STREAMS, strict=False):
        session.feed(stream[:6])
    monkeypatch.setattr(model.engine.batches, "_has_room", lambda width, tokens: tokens == 1024)
    model.step(sessions)
    model.step(sessions)
    assert all(plain(session).slot is not None for session in sessions)
    close(sessions)
    model.engine.close()


def test_requests_at_once_give_the_texts_that_they_give_alone(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy ones, sampled ones, one with a penalty, and second turns, which reuse what the first ones left."""
    steps: list[int] = []
    right = Batch.step

    def counted(self: Batch, sessions: Sequence[CapturedSession], tokens: Sequence[int]) -> list[Logits]:
        steps.append(len(sessions))
        return right(self, sessions, tokens)

    monkeypatch.setattr(Batch, "step", counted)
    kinds = [Sampling(temperature=0), Sampling(seed=3, top_p=0.9), Sampling(temperature=0, repetition_penalty=1.2)]
    folder = tiny_granite_hybrid(tmp_path / "package", GPU_FLOAT32.name)  # float32: no ties
    write_tokenizer(folder, 307)
    with embedllm.load(folder, device=device.name, tuned=False) as llm:

        def reply(at: int, tokens: Sequence[int]) -> Completion:
            return llm.generate(list(tokens), kinds[at], max_tokens=12 + 6 * at, stop_tokens=(), speculate="off")

        alone = [reply(at, STREAMS[at][:20]) for at in range(3)]
        turns = [[*STREAMS[at][:20], *alone[at].tokens, 9, 8, 7] for at in range(3)]
        again = [reply(at, turn) for at, turn in enumerate(turns)]
        assert not steps
        with ThreadPoolExecutor(3) as threads:
            at_once = list(threads.map(reply, range(3), [stream[:20] for stream in STREAMS]))
            second = list(threads.map(reply, range(3), turns))
    for ours, expected in ((at_once, alone), (second, again)):
        assert [each.tokens for each in ours] == [each.tokens for each in expected]
    assert max(steps) > 1
