"""Captured steps of recurrent models on WebGPU: beside the reference, and beside steps that are not captured.

On a GPU, or on a software one: .ci/lavapipe.sh pytest -m webgpu tests/backends/gpu/test_webgpu_states.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import embedllm
from embedllm import Completion, Sampling
from embedllm.backends.base import Device, Foresees, Interrupted, Session
from embedllm.backends.gpu import webgpu_states, webgpu_steps
from embedllm.backends.gpu.recurrent_session import CapturedRecurrentSession, RecurrentSession
from embedllm.backends.gpu.webgpu import WebGpuEngine
from embedllm.backends.gpu.webgpu_states import PLACES, GpuStates
from embedllm.backends.gpu.webgpu_steps import CapturedSession, StepBuffers
from embedllm.backends.ort.runtime import ort
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.kv_arrays import on_host
from embedllm.backends.sessions.recurrent_session import StatefulSession
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from embedllm.kv_cache.disk_store import DiskStore
from embedllm.kv_cache.recurrent_prefix import as_kv, from_kv
from embedllm.kv_cache.transfer import exported
from embedllm.package.graph_variants import GPU_FLOAT32
from embedllm.package.package import Package, open_package
from embedllm.sampling.sampler import Sampler
from tests.support.logits import best, greedy, values
from tests.support.recurrent_checks import differences
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_granite_hybrid, tiny_lfm2, tiny_nemotron_h, tiny_qwen3_5

pytestmark = pytest.mark.webgpu

CLOSE = 1e-3  # of the spread of the logits, in float32; measured: 7e-6, 1.4e-4 where a norm divides nearly zero
GREEDY = Sampling(temperature=0)
PROMPT = [11, 5, 200, 31, 7, 90, 14]


def converted(tiny: Callable[[Path], Path], folder: Path) -> Path:
    return convert(tiny(folder / "checkpoint"), folder / "package", Recipe(method="nearest"))


def described(tiny: Callable[[Path, str], Path], folder: Path) -> Path:
    return tiny(folder / "package", GPU_FLOAT32.name)


MODELS: dict[str, Callable[[Path], Path]] = {
    "lfm2": partial(converted, tiny_lfm2),
    "qwen3_5": partial(converted, tiny_qwen3_5),
    "falcon_h1": partial(converted, tiny_falcon_h1),
    "granitemoehybrid": partial(described, tiny_granite_hybrid),
    "nemotron_h": partial(described, tiny_nemotron_h),
}


class Loaded:
    """A model, with captured steps and without."""

    def __init__(self, name: str, folder: Path, device: Device) -> None:
        self.package = open_package(MODELS[name](folder))
        self.captured, self.plain = (engine_of(self.package, device, capture=capture) for capture in (None, False))

    def close(self) -> None:
        self.captured.close()
        self.plain.close()


def engine_of(package: Package, device: Device, *, capture: bool | None = None) -> WebGpuEngine:
    graph = package.graph(GPU_FLOAT32.name)
    assert graph is not None
    return WebGpuEngine(package, graph, device, capture=capture)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    loaded = Loaded(request.param, tmp_path_factory.mktemp(request.param), device)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def delta(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """One of them, for what sessions do with any."""
    loaded = Loaded("qwen3_5", tmp_path_factory.mktemp("delta"), device)
    yield loaded
    loaded.close()


def exact_greedy(package: Package, tokens: list[int], count: int) -> list[int]:
    return greedy(ReferenceEngine(package).open(), tokens, count)


def stateful(engine: WebGpuEngine) -> StatefulSession[object]:
    session: Session = engine.open()
    assert isinstance(session, StatefulSession)
    return session


def plain_of(session: Session) -> CapturedRecurrentSession:
    assert isinstance(session, StatefulSession)
    assert isinstance(session._plain, CapturedRecurrentSession)
    return session._plain


def test_steps_are_captured_and_follow_the_reference_however_they_are_fed(model: Loaded) -> None:
    assert model.captured.captures
    assert not model.plain.captures
    for engine in (model.captured, model.plain):
        assert differences(engine, model.package).max() < CLOSE


def test_greedy_tokens_are_those_of_the_reference_and_of_steps_that_are_not_captured(model: Loaded) -> None:
    for prompt in (PROMPT, PROMPT[:1]):
        expected = exact_greedy(model.package, prompt, 40)
        for engine in (model.captured, model.plain):
            session = engine.open()
            assert greedy(session, prompt, 40) == expected
            session.close()


def test_steps_that_ran_ahead_leave_no_trace(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as leave the states from which the sequence goes on, and those before them."""
    monkeypatch.setattr(webgpu_steps, "_AHEAD_S", 60.0)  # software takes longer for a step than usually lies ahead
    session, tokens, ahead = model.captured.open(), list(PROMPT), set[int]()
    plain = plain_of(session)
    logits = session.feed(tokens)
    for turn in range(9):
        for _ in range(3 + turn):  # greedy, so that steps run ahead from the third on
            tokens.append(best(logits))
            logits = session.feed(tokens[-1:])
        best(logits)
        ahead.add(plain._frontier - plain._row_at)
        exact = ReferenceEngine(model.package).open().feed_all(tokens)
        if turn % 2:
            np.testing.assert_allclose(values(logits), exact[-1], atol=CLOSE * float(np.ptp(exact)), rtol=0)
        if turn % 3 == 2:
            session.rewind(len(tokens) - 2)
            del tokens[-2:]
        tokens.append(9 + turn)  # not what was foreseen
        logits = session.feed(tokens[-1:])
        exact = ReferenceEngine(model.package).open().feed_all(tokens)
        np.testing.assert_allclose(values(logits), exact[-1], atol=CLOSE * float(np.ptp(exact)), rtol=0)
    assert max(ahead) == PLACES - 2
    session.close()


def test_sampled_steps_that_ran_ahead_leave_no_trace(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is that of the tokens before it, whatever was guessed; here some guesses are made wrong."""
    assert model.captured.guesser is not None
    monkeypatch.setattr(model.captured, "pace", None)  # ahead, whether or not that is the faster way here
    monkeypatch.setattr(webgpu_steps, "_AHEAD_S", 60.0)
    session, sampler, ahead = model.captured.open(), Sampler(Sampling(seed=5)), set[int]()
    assert isinstance(session, Foresees)
    session.foresee(sampler.draws)
    row, tokens = session.feed(PROMPT), list(PROMPT)
    plain = plain_of(session)
    for turn in range(24):
        chosen = sampler.pick(row).token
        tokens.append(7 if turn % 11 == 10 else chosen)
        row = session.feed(tokens[-1:])
        ahead.add(plain._frontier - plain.position)
        exact = ReferenceEngine(model.package).open().feed_all(tokens)
        np.testing.assert_allclose(values(row), exact[-1], atol=CLOSE * float(np.ptp(exact)), rtol=0)
        if turn == 17:
            session.rewind(len(tokens) - 4)
            del tokens[-4:]
            tokens.append(5)
            row = session.feed(tokens[-1:])
    assert plain._guesses is not None
    assert max(ahead) == PLACES - 2
    session.close()


def test_a_rewind_goes_back_to_copies_on_the_gpu(delta: Loaded) -> None:
    """The end of a prompt is kept: nothing of it is fed again for another reply."""
    session = delta.captured.open()
    replies = []
    for _ in range(3):
        first = session.feed(PROMPT) if not session.position else session.feed(PROMPT[-1:])
        replies.append([best(first), *greedy(session, [best(first)], 12)])
        session.rewind(len(PROMPT))
        assert plain_of(session).position == len(PROMPT)
        session.rewind(len(PROMPT) - 1)
    assert replies == [exact_greedy(delta.package, PROMPT, 13)] * 3
    session.close()


def test_a_prefix_is_taken_of_one_whose_steps_ran_ahead(model: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPU, by a captured session and by one that is not, and through the host; the steps leave no trace."""
    monkeypatch.setattr(webgpu_steps, "_AHEAD_S", 60.0)
    for engine in (model.captured, model.plain):
        source = stateful(engine)
        tokens = [*PROMPT, *greedy(source, PROMPT, 9)]
        stop = source.position  # the last token was not fed
        assert engine is model.plain or plain_of(source)._frontier > stop
        for to_host in (False, True):
            assert source.kv is not None
            kv, states = exported(source.kv, 3, stop), source.export_states(stop)
            assert isinstance(states, GpuStates)
            assert states.nbytes == sum(array.nbytes for array in states.values())
            other = stateful(engine)
            other.feed(tokens[:3])
            assert other.import_prefix(tokens[3:stop], [on_host(kv) if to_host else kv],
                                       dict(states) if to_host else states)  # fmt: skip
            assert greedy(other, tokens[stop:], 5) == exact_greedy(model.package, tokens, 5)
            other.rewind(stop)  # to a copy of them
            assert greedy(other, tokens[stop:], 5) == exact_greedy(model.package, tokens, 5)
            other.close()
        source.rewind(5)
        source.feed(tokens[5:stop])
        assert greedy(source, tokens[stop:], 5) == exact_greedy(model.package, tokens, 5)
        source.close()


def test_states_that_cannot_be_taken_change_nothing(delta: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV before them was, and some of the states are written."""
    right = webgpu_states._copy

    def fails(source: list[ort.OrtValue], to: list[ort.OrtValue]) -> None:
        right(source[:1], to[:1])
        patch.undo()
        raise RuntimeError("out of something")

    for engine in (delta.captured, delta.plain):
        for held in (0, 3):
            source, other = stateful(engine), stateful(engine)
            source.feed(PROMPT)
            if held:
                other.feed(PROMPT[:held])
            assert source.kv is not None
            kv, states = exported(source.kv, held, len(PROMPT)), source.export_states(len(PROMPT))
            with monkeypatch.context() as patch:
                patch.setattr(webgpu_states, "_copy", fails)
                with pytest.raises(DeviceError, match="out of something"):
                    other.import_prefix(PROMPT[held:], [kv], states)
            assert other.position == held
            assert other.kept() == ([held] if held else [])
            assert greedy(other, PROMPT[held:], 5) == exact_greedy(delta.package, PROMPT, 5)
            source.close()
            other.close()


def test_states_of_float16_go_to_the_disk_and_back_as_they_are(device: Device, delta: Loaded, tmp_path: Path) -> None:
    graph = delta.package.graph("webgpu-float16")
    assert graph is not None
    engine = WebGpuEngine(delta.package, graph, device)
    source, other = stateful(engine), stateful(engine)
    source.feed(PROMPT)
    assert source.kv is not None
    states, kv = source.export_states(len(PROMPT)), exported(source.kv, 0, len(PROMPT))
    store, shapes = DiskStore(tmp_path, budget_bytes=1 << 20), source.state_shapes
    store.write(b"key" * 8, PROMPT[-1:], as_kv(states, shapes), {})
    stored = store.read(b"key" * 8, PROMPT[-1:])
    assert stored is not None
    restored = from_kv(stored, shapes)
    assert restored is not None
    assert {name: (array.dtype, array.shape) for name, array in restored.items()} == {
        name: (np.float16, shape) for name, shape in shapes.items()
    }
    wider = {name: array.astype(np.float32) for name, array in restored.items()}
    for each in (restored, wider):
        assert other.import_prefix(PROMPT, [kv], each)
        for name, array in other.export_states(len(PROMPT)).items():
            np.testing.assert_array_equal(array, states[name])
        other.rewind(0)
    source.close()
    other.close()
    engine.close()


def test_sequences_in_turn_do_not_disturb_each_other_nor_those_before_them(delta: Loaded) -> None:
    prompts = [PROMPT, PROMPT[::-1], [250, 3, 4]]
    expected = [exact_greedy(delta.package, prompt, 16) for prompt in prompts]
    for _ in range(2):  # the second time in the buffers of the first
        sessions = [delta.captured.open() for _ in prompts]
        found: list[list[int]] = [[] for _ in prompts]
        for _ in range(16):
            for session, prompt, tokens in zip(sessions, prompts, found, strict=True):
                tokens.append(best(session.feed(tokens[-1:] or prompt)))
        assert found == expected
        for session in sessions:
            session.close()


def test_greedy_steps_go_on_where_the_kv_grows(device: Device, tmp_path: Path) -> None:
    folder = tiny_granite_hybrid(tmp_path / "package", GPU_FLOAT32.name, max_position_embeddings=2048)
    package = open_package(folder)
    engine = engine_of(package, device)
    tokens, session = np.random.default_rng(4).integers(3, 300, 1010).tolist(), engine.open()
    assert greedy(session, tokens, 30) == exact_greedy(package, tokens, 30)
    assert session.capacity == 2048
    session.close()
    engine.close()


def test_requests_reuse_what_the_conversation_before_them_left(device: Device, delta: Loaded) -> None:
    """Through the public API: a second turn, a reply once more, and requests at once, in guesses and without."""
    prompt = PROMPT * 6
    with embedllm.load(delta.package.folder, device=device.name, exact=True, tuned=False) as llm:

        def reply(tokens: list[int], speculate: Literal["lookup", "off"] = "off") -> Completion:
            return llm.generate(tokens, GREEDY, max_tokens=16, stop_tokens=(), speculate=speculate)

        first = reply(prompt)
        turn = [*prompt, *first.tokens, 9, 8, 7]
        second, again = reply(turn), reply(turn)
        assert list(first.tokens) == exact_greedy(delta.package, prompt, 16)
        assert list(second.tokens) == list(again.tokens) == exact_greedy(delta.package, turn, 16)
        assert list(reply(prompt, "lookup").tokens) == list(first.tokens)
        cached = [each.statistics.cached_tokens for each in (first, second, again)]
        assert cached == [0, len(prompt) + 15, len(prompt) + 15]  # where its states are kept
        with ThreadPoolExecutor(3) as threads:
            at_once = list(threads.map(reply, [prompt, turn, PROMPT]))
        assert [list(each.tokens) for each in at_once[:2]] == [list(first.tokens), list(second.tokens)]
        assert list(at_once[2].tokens) == exact_greedy(delta.package, PROMPT, 16)


def test_an_interrupt_stops_greedy_steps_and_they_go_on_after_it(delta: Loaded) -> None:
    session = delta.captured.open()
    found = greedy(session, PROMPT, 10)
    session.interrupt()  # type: ignore[attr-defined]  # sessions of this engine have it
    with pytest.raises(Interrupted):
        session.feed(found[-1:])
    session.interrupt(False)  # type: ignore[attr-defined]
    assert session.position == len(PROMPT) + 9
    assert [*found, *greedy(session, found[-1:], 10)] == exact_greedy(delta.package, PROMPT, 20)
    session.close()


def test_a_run_reads_a_place_and_writes_the_next_one_alone(delta: Loaded) -> None:
    buffers = delta.captured.take(0)
    assert isinstance(buffers, StepBuffers)
    states = buffers.states
    marked = [[np.full(value.shape(), 1 + place, np.float32) for value in states.copies(place)]
              for place in range(PLACES)]  # fmt: skip
    for place, arrays in enumerate(marked):
        states.write(place, [delta.captured.place(array) for array in arrays])
    step = buffers.steps[PLACES - 1]  # writes the first
    step.run()
    for place, arrays in enumerate(marked):
        same = [np.array_equal(delta.captured.read(value), array)
                for value, array in zip(states.copies(place), arrays, strict=True)]  # fmt: skip
        assert any(same) == all(same) == (place != 0)
    delta.captured.give_back(buffers)


def test_what_cannot_be_captured_runs_kernel_by_kernel_and_says_why(
    delta: Loaded, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose captured steps read states that do not belong to them."""
    caplog.set_level(logging.INFO, "embedllm")
    monkeypatch.setattr(CapturedSession, "_run_steps", steps_from_the_first_place)
    engine = engine_of(delta.package, device)
    assert not engine.captures
    assert "not captured here: captured steps differ by" in caplog.text
    session = engine.open()
    assert isinstance(session, StatefulSession)
    assert isinstance(session._plain, RecurrentSession)
    assert greedy(session, PROMPT, 5) == exact_greedy(delta.package, PROMPT, 5)
    session.close()
    engine.close()


_run_steps = CapturedSession._run_steps


def steps_from_the_first_place(self: CapturedSession, count: int, given: object, *, behind: int = 0) -> None:
    self.place = 0
    _run_steps(self, count, given, behind=behind)  # type: ignore[arg-type]
