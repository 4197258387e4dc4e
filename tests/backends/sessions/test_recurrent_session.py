"""Sequences of recurrent models: a rewind goes back to a copy of the states, and feeds on from there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

from embedllm import Sampling, load
from embedllm.backends.base import BatchRow, Interrupted, MovesState
from embedllm.backends.devices.registry import devices, open_engine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.backends.sessions.recurrent_session import StatefulSession, step_together
from embedllm.errors import ContextFull, DeviceError, DeviceUnavailable, ExportError
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource, read_json
from embedllm.export.graphs import write_variant
from embedllm.export.quantization.float_forward import FloatPass
from embedllm.hub.location import Location
from embedllm.package.package import open_package
from tests.support.tiny_recurrent import tiny_falcon_h1, tiny_lfm2, tiny_qwen3_5

TOKENS = np.random.default_rng(3).integers(3, 300, 120).tolist()
# between one feed and several, of the spread of the logits (5 to 17): the order of float32 sums differs, and the states
# carry the difference on. Measured: 1e-6 on one AMD EPYC, 2e-5 (2.4e-4 of a logit) on another
CLOSE = 1e-4


def check(found: np.ndarray, expected: np.ndarray) -> None:
    """That logits differ by no more than the order of sums explains."""
    assert np.abs(found - expected).max() < CLOSE * np.ptp(expected)


class Sums:
    """A plain session whose state and logits are sums of what it was fed, and that fails when it is told to."""

    def __init__(self) -> None:
        self.position = self.capacity = 0
        self.sum = 0.0
        self.fed: list[list[int]] = []
        self.fails = False

    def feed(self, tokens: Sequence[int]) -> float:
        return float(self.feed_all(tokens)[-1, 0])

    def feed_all(self, tokens: Sequence[int]) -> np.ndarray:
        self.fed.append(list(tokens))
        rows = self.sum + np.cumsum(tokens, dtype=np.float32)[:, None]
        self.sum = float(rows[-1, 0])
        if self.fails:
            raise Interrupted  # the state has changed, and the position has not
        self.position += len(tokens)
        return rows

    def rewind(self, position: int) -> None:
        self.position = position
        self.sum = self.sum if position else 0.0

    def states(self) -> dict[str, np.ndarray]:
        return {"sum": np.array([self.sum], np.float32)}

    def set_states(self, states: Mapping[str, np.ndarray]) -> None:
        self.sum = float(states["sum"][0])

    def adapt(self, adapter: object) -> None: ...

    def close(self) -> None: ...


def sums(tmp_path: Path, *, chunk: int = 64) -> tuple[StatefulSession, Sums]:
    decoder = describe(Config(read_json(tiny_lfm2(tmp_path) / "config.json", "a configuration")))
    engine = SimpleNamespace(package=SimpleNamespace(decoder=decoder), context=512, chunk=chunk, remedy="none")
    plain = Sums()
    return StatefulSession(engine, plain), plain  # type: ignore[arg-type]  # they have what is asked of them


def test_a_rewind_that_fails_is_done_before_the_next_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that fails to bring states back may do it later; until then they belong to no position."""
    session, plain = sums(tmp_path)
    session.feed([1, 2, 3])
    session.feed([10])
    session.feed([20])

    def fails(states: object) -> None:
        raise DeviceError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(plain, "set_states", fails)
        with pytest.raises(DeviceError):
            session.rewind(3)
        with pytest.raises(DeviceError):  # again
            session.feed([30])
        assert session.steps_from is None  # no step with others either
    assert session.feed([30]) == 36
    assert session.position == 4


def test_a_step_of_several_that_fails_rewinds_all_though_one_rewind_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, plain), (second, _) = sums(tmp_path), sums(tmp_path / "second")
    for session in (first, second):
        session.feed([1, 2, 3])
        session.feed([10])

    def fails(*_: object) -> NoReturn:
        raise DeviceError("out of memory")

    def run(rows: Sequence[BatchRow]) -> NoReturn:
        for session, tokens in rows:
            session.feed(tokens)
        raise DeviceError("the logits cannot be read")

    rows = [BatchRow(session, [5]) for session in (first, second)]
    with monkeypatch.context() as patch:
        patch.setattr(plain, "set_states", fails)
        with pytest.raises(DeviceError, match="the logits cannot be read"):
            step_together(first._engine, rows, lambda session, token: True, run)
    assert [session.feed([7]) for session in (first, second)] == [23, 23]


def test_between_two_copies_tokens_are_fed_again_with_the_next_ones(tmp_path: Path) -> None:
    session, plain = sums(tmp_path)
    session.feed([1, 2, 3])
    for token in (4, 5, 6):
        session.feed([token])
    session.rewind(5)
    assert (session.position, plain.position) == (5, 3)
    assert session.feed([10]) == 25
    assert plain.fed[-1] == [4, 5, 10]
    session.rewind(3)  # where the prompt ended there is a copy
    assert session.feed_all([7, 8]).tolist() == [[13], [21]]
    assert plain.fed[-1] == [7, 8]


def test_a_copy_for_drafts_stays_until_they_are_accepted(tmp_path: Path) -> None:
    session, _ = sums(tmp_path)
    session.feed([1, 2, 3])
    session.feed([4])
    session.feed_rows([5, 6, 7])
    session.rewind(5)  # 6 and 7 were wrong
    session.feed_rows([8, 9, 10])
    assert list(session._copies) == [3, 4]
    session.feed([11])
    session.feed([12])
    assert list(session._copies) == [3]  # as steps leave it
    session.feed_rows([13, 14])
    session.rewind(10)
    session.feed([15, 16])  # not drafts: another prompt, whose beginning is gone back to
    session.feed([17])
    assert list(session._copies) == [3, 10, 12]


def test_the_end_of_a_prompt_is_kept_though_drafts_follow_it(tmp_path: Path) -> None:
    session, _ = sums(tmp_path)
    session.feed([1, 2, 3])
    session.feed_rows([5, 6, 7])
    session.feed([8])
    session.feed([9])
    assert list(session._copies) == [3]


def test_a_long_way_back_is_fed_again_in_chunks(tmp_path: Path) -> None:
    session, plain = sums(tmp_path, chunk=4)
    for token in range(1, 11):
        session.feed([token])
    session.rewind(9)
    assert session.feed_all([100]).tolist() == [[145]]
    assert [len(tokens) for tokens in plain.fed[10:]] == [4, 4, 2]


def test_a_feed_that_failed_in_the_middle_leaves_no_trace(tmp_path: Path) -> None:
    session, plain = sums(tmp_path)
    session.feed([1, 2, 3])
    session.feed([4])
    plain.fails = True
    with pytest.raises(Interrupted):
        session.feed([5])
    plain.fails = False
    assert session.position == 4
    assert session.feed([6]) == 16


def test_copies_are_few_the_newest_stays_and_the_others_lie_apart(tmp_path: Path) -> None:
    session, plain = sums(tmp_path)
    for _ in range(100):
        session.feed([1, 1])
    session.rewind(198)
    assert plain.position == 198  # the newest copy
    assert session.feed([1]) == 199
    kept = 0
    for position in range(197, -1, -1):
        session.rewind(position)
        kept += plain.position == position
    assert 4 <= kept <= 17  # 16 copies, and the beginning
    assert session.feed([5]) == 5


def test_what_cannot_be_fed_changes_nothing(tmp_path: Path) -> None:
    session, plain = sums(tmp_path)
    session.feed([1, 2])
    for wrong in ([], [307]):
        with pytest.raises(ValueError, match=r"feed needs|outside the vocabulary"):
            session.feed(wrong)
    with pytest.raises(ContextFull):
        session.feed([1] * 511)
    with pytest.raises(ValueError, match="cannot rewind to 3"):
        session.rewind(3)
    assert session.feed([1]) == 4
    assert len(plain.fed) == 2


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lfm2")
    return convert(tiny_lfm2(folder / "checkpoint"), folder / "package", Recipe(bits=4, symmetric=True))


@pytest.fixture(scope="module", params=[tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def recurrent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent")
    return convert(request.param(folder / "checkpoint"), folder / "package", Recipe(bits=4))


def opened(folder: Path, device: str) -> StatefulSession:
    package = open_package(folder)
    if device == "reference":
        session = ReferenceEngine(package).open()
    else:
        session = open_engine(package, next(one for one in devices() if one.name == device), exact=True).open()
    assert isinstance(session, StatefulSession)
    return session


ENGINES = ("reference", "cpu", "openvino")


@pytest.mark.slow
@pytest.mark.parametrize("device", ENGINES)
def test_rewound_to_any_place_it_goes_on_as_a_fresh_session(recurrent: Path, device: str) -> None:
    expected = opened(recurrent, device).feed_all(TOKENS)
    session = opened(recurrent, device)
    held = 0
    for count in (40, 1, 1, 1, 17, 1, 1):
        session.feed(TOKENS[held : held + count])
        held += count
    for position in (62, 60, 61, 43, 59, 42, 40, 39, 41, 3, 0, 1):
        position = min(position, session.position)
        session.rewind(position)
        found = session.feed_all(TOKENS[position : position + 5])
        check(found, expected[position : position + 5])
        session.feed([9, 8, 7])
        session.feed([6])
        session.rewind(position + 5)
        one = np.array(session.feed([TOKENS[position + 5]]).values(range(307)))
        check(one, expected[position + 5])


@pytest.mark.slow
@pytest.mark.parametrize("device", ENGINES[1:])
def test_a_stopped_feed_leaves_no_trace(recurrent: Path, device: str) -> None:
    expected = opened(recurrent, device).feed_all(TOKENS[:30])
    session = opened(recurrent, device)
    for start, stop in ((0, 20), (20, 21), (21, 22), (22, 30)):
        session.interrupt()
        with pytest.raises(Interrupted):
            session.feed(TOKENS[90:100])
        session.interrupt(False)
        assert session.position == start
        check(session.feed_all(TOKENS[start:stop]), expected[start:stop])


@pytest.mark.slow
@pytest.mark.parametrize("device", ENGINES[1:])
def test_tokens_behind_wrong_guesses_are_those_without(recurrent: Path, device: str) -> None:
    """As speculative decoding does it: guesses are fed at once, and wrong ones are forgotten."""
    plain, guessing = opened(recurrent, device), opened(recurrent, device)
    rows, guessed = plain.feed(TOKENS), guessing.feed(TOKENS)
    for step in range(12):
        token = int(np.argmax(rows.values(range(307))))
        assert int(np.argmax(guessed.values(range(307)))) == token
        rows = plain.feed([token])
        guessing.feed_all([token, *TOKENS[: step % 4]])
        guessing.rewind(plain.position - 1)
        guessed = guessing.feed([token])


@pytest.mark.slow
def test_nothing_of_a_sequence_is_given_to_others(lfm2: Path) -> None:
    """Half of a sequence's KV is of no use without the states that belong to its end."""
    assert not isinstance(opened(lfm2, "cpu"), MovesState)
    with load(lfm2, device="cpu") as llm:
        first = llm.generate(TOKENS, Sampling(temperature=0), max_tokens=4)
        llm.generate(TOKENS[::-1], Sampling(temperature=0), max_tokens=4)
        again = llm.generate(TOKENS, Sampling(temperature=0), max_tokens=4)
        assert again.text == first.text
        with pytest.raises(ValueError, match="cannot be taken out"):
            llm.conversation(when_full="shift").say("hello", max_tokens=1)


def test_devices_without_such_states_say_so(lfm2: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="keep a state of fixed size"):
        load(lfm2, device="npu-on-cpu")
    with pytest.raises(DeviceUnavailable, match="states beside it"):
        load(lfm2, device="openvino+cpu")
    with pytest.raises(DeviceUnavailable, match="no 'int8-kv' graph"):
        load(lfm2, device="cpu", kv="int8")
    with pytest.raises(ExportError, match="have a recurrent state"):
        write_variant(lfm2, "directml-float16")
    others = {"generic-float16", "gpu-float32", "webgpu-float16", "wasm-float32"}
    assert {graph.variant for graph in open_package(lfm2).graphs} == {"generic-float32", "openvino", *others}


@pytest.mark.parametrize("checkpoint", [tiny_lfm2, tiny_qwen3_5, tiny_falcon_h1])
def test_sequences_of_a_text_do_not_see_each_other(tmp_path: Path, checkpoint: Callable[[Path], Path]) -> None:
    """Calibration runs them side by side: each begins with states of zeros, as a session does."""
    folder = checkpoint(tmp_path / "checkpoint")
    package = open_package(convert(folder, tmp_path / "package", Recipe(bits=32)))
    texts = np.array(TOKENS[:60]).reshape(2, 30)
    source = HuggingFaceSource(Location(folder, folder.name))
    with contextlib.closing(source):
        run = FloatPass(source, package.decoder, texts)
        run.begin()
        for index in range(len(package.decoder.layers)):
            run.layer(index)
        found = run.head_inputs() @ run.floats.matrix(package.decoder.head).T
    expected = [ReferenceEngine(package).open().feed_all(text.tolist()) for text in texts]
    check(found, np.concatenate(expected))
