"""Two engines for one sequence: when the KV goes over, on sessions that count it; and for real, CPU and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedllm
from embedllm.backends.base import Device, Interrupted
from embedllm.backends.devices.split_engine import LEAST, SplitEngine, SplitSession
from embedllm.backends.openvino.engine import OvEngine
from embedllm.backends.ort.engine import OrtEngine
from embedllm.errors import ContextFull, DeviceUnavailable
from embedllm.export import Recipe
from embedllm.types import Logits
from tests.support.fakes import FakeEngine, FakeLogits, FakeSession, peaked
from tests.support.openings import ort_engine, ov_engine

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues

MakePackage = Callable[..., Path]
ATOL = 1e-4  # of logits up to 5: the order of float32 sums differs
PAIR = Device(name="a+b", backend="fake", description="", available=True)


class Movable(FakeSession):
    """A FakeSession whose KV is its tokens, and which counts what went over."""

    exported: list[tuple[int, int]]
    imported: list[int]

    def export_state(self, start: int, stop: int) -> KeyValues:
        self.exported = [*getattr(self, "exported", []), (start, stop)]
        keys = np.array(self.tokens[start:stop], np.float32)[None, :, None]
        return [(keys, keys)]

    def import_state(self, state: KeyValues) -> None:
        tokens = [int(token) for token in state[0][0][0, :, 0]]
        self.imported = [*getattr(self, "imported", []), len(tokens)]
        self.tokens += tokens
        self.position = len(self.tokens)

    def feed(self, tokens: Sequence[int]) -> FakeLogits:
        super().feed(tokens)
        return peaked(sum(self.tokens) % 256)


class MovableEngine(FakeEngine):
    def open(self, capacity: int = 0) -> Movable:
        session = Movable(self)
        self.sessions.append(session)
        return session


def pair(**options: int) -> tuple[SplitSession, Movable, Movable]:
    reads, makes = MovableEngine(context=1000), MovableEngine(context=1000)
    session = SplitEngine(reads, makes, PAIR).open(**options)
    one, other = reads.sessions[0], makes.sessions[0]
    assert isinstance(one, Movable)
    assert isinstance(other, Movable)
    return session, one, other


def moves(session: Movable) -> list[tuple[int, int]]:
    return getattr(session, "exported", [])


LONG = list(range(100, 100 + LEAST))


def test_a_prompt_is_read_on_the_first_and_tokens_are_made_on_the_second() -> None:
    session, reads, makes = pair()
    session.feed(LONG)
    assert (reads.fed, makes.fed) == ([LONG], [])
    for token in (1, 2, 3):
        session.feed([token])
    assert (reads.fed, makes.fed) == ([LONG], [[1], [2], [3]])
    assert makes.tokens == [*LONG, 1, 2, 3]
    assert session.position == LEAST + 3


def test_the_kv_goes_over_once_a_switch() -> None:
    session, reads, makes = pair()
    session.feed(LONG)
    session.feed(LONG)
    assert moves(reads) == moves(makes) == []
    session.feed([1])
    session.feed([2])
    assert (moves(reads), moves(makes)) == ([(0, 2 * LEAST)], [])
    assert reads.position == 0  # it is held once
    session.feed(LONG)
    assert (len(moves(reads)), moves(makes)) == (1, [(0, 2 * LEAST + 2)])
    session.feed([3])
    assert len(moves(makes)) == 1
    assert moves(reads)[1:] == [(2 * LEAST + 2, 3 * LEAST + 2)]  # what the other one lacks, no more
    assert makes.tokens == [*LONG, *LONG, 1, 2, *LONG, 3]


def test_fewer_tokens_than_pay_are_fed_where_tokens_are_made() -> None:
    session, reads, makes = pair()
    session.feed(LONG[1:])
    assert (reads.fed, makes.fed) == ([], [LONG[1:]])


@given(st.lists(st.tuples(st.sampled_from(["feed", "rewind"]), st.integers(0, 90)), max_size=12))
def test_any_order_of_feeds_and_rewinds_holds_the_right_tokens(steps: list[tuple[str, int]]) -> None:
    session, reads, makes = pair()
    held: list[int] = []
    for step, (kind, count) in enumerate(steps):
        if kind == "rewind":
            position = min(count, len(held))
            del held[position:]
            session.rewind(position)
        elif count:
            new = [(step * 7 + n) % 256 for n in range(count)]
            held += new
            assert session.feed(new).top(1).tokens == [sum(held) % 256]
        assert session.position == len(held)
        for part in (reads, makes):  # each holds a beginning
            assert part.tokens == held[: part.position]
        assert max(reads.position, makes.position) == len(held)


def test_an_imported_state_is_held_where_tokens_are_made() -> None:
    session, reads, makes = pair()
    session.feed(LONG)
    keys = np.array([[[7.0], [8.0]]], np.float32)
    session.import_state([(keys, keys)])
    assert (session.position, makes.tokens, reads.tokens) == (LEAST + 2, [*LONG, 7, 8], [])


@pytest.mark.parametrize("position", [-1, 4])
def test_a_rewind_goes_back_only(position: int) -> None:
    session, *_ = pair()
    session.feed([1, 2, 3])
    with pytest.raises(ValueError, match=f"cannot rewind to {position}; the session holds 3"):
        session.rewind(position)


def test_an_interrupted_feed_leaves_the_position() -> None:
    session, reads, makes = pair()
    session.feed(LONG)
    session.interrupt()
    assert reads.stopping.is_set()
    assert makes.stopping.is_set()
    for tokens in ([1], LONG):
        with pytest.raises(Interrupted):
            session.feed(tokens)
        assert session.position == LEAST
    session.interrupt(False)
    session.feed([1])
    assert makes.tokens == [*LONG, 1]


def test_closing_closes_both() -> None:
    reads, makes = MovableEngine(), MovableEngine(context=20)
    engine = SplitEngine(reads, makes, PAIR)
    assert (engine.context, engine.chunk) == (20, 16)
    session = engine.open()
    session.close()
    engine.close()
    assert all(one.closed for one in (*reads.sessions, *makes.sessions, reads, makes))


# --- for real


@pytest.fixture(scope="module")
def folder(tiny_package: MakePackage) -> Path:
    return tiny_package("qwen3", Recipe(), max_position_embeddings=600)


@pytest.fixture(scope="module")
def engines(folder: Path) -> Iterator[tuple[OvEngine, OrtEngine]]:
    ov, cpu = ov_engine(folder), ort_engine(folder)
    yield ov, cpu
    ov.close()
    cpu.close()


def values(logits: Logits) -> Sequence[float]:
    return logits.values(range(logits.size))


@pytest.mark.parametrize("openvino_reads", [True, False])
def test_a_pair_gives_the_logits_of_one_device(openvino_reads: bool, engines: tuple[OvEngine, OrtEngine]) -> None:
    ov, cpu = engines
    session = (SplitEngine(ov, cpu, PAIR) if openvino_reads else SplitEngine(cpu, ov, PAIR)).open()
    plain = cpu.open()
    random = np.random.default_rng(1)
    for kind, count in (
        ("feed", 50), ("feed", 1), ("feed", 1), ("feed", 40), ("rewind", 70), ("feed", 3), ("feed", 64), ("rewind", 20),
        ("feed", 1), ("rewind", 0), ("feed", 33), ("feed", 2),
    ):  # fmt: skip
        if kind == "rewind":
            for one in (session, plain):
                one.rewind(count)
        else:
            tokens = random.integers(0, 307, count).tolist()
            np.testing.assert_allclose(values(session.feed(tokens)), values(plain.feed(tokens)), atol=ATOL)
        assert session.position == plain.position


def test_a_pair_moves_its_state_and_is_full_as_one(engines: tuple[OvEngine, OrtEngine]) -> None:
    ov, cpu = engines
    session, plain = SplitEngine(ov, cpu, PAIR).open(), cpu.open()
    plain.feed([5] * 300)
    session.feed([5] * 40)
    session.import_state(plain.export_state(40, 300))
    np.testing.assert_allclose(values(session.feed([7])), values(plain.feed([7])), atol=ATOL)
    for ours, theirs in zip(session.export_state(250, 301), plain.export_state(250, 301), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=ATOL)
    for count in (300, 5):
        session.rewind(min(session.position, 600 - count + 1) if count > 5 else session.position)
        if count == 5:
            session.feed([6] * (598 - session.position))
        with pytest.raises(ContextFull) as caught:
            session.feed([8] * count)
        assert caught.value.limit == 600
    assert session.position == 598


@pytest.mark.parametrize("name", ["openvino+cpu", "cpu+openvino"])
def test_a_loaded_pair_replies_as_one_device(name: str, folder: Path) -> None:
    prompt = np.random.default_rng(2).integers(3, 307, 60).tolist()
    greedy = embedllm.Sampling(temperature=0)
    with embedllm.load(folder, device="cpu", exact=True) as one, embedllm.load(folder, device=name, exact=True) as two:
        assert two.device.name == name
        ours, theirs = (llm.generate(prompt, greedy, max_tokens=24, stop_tokens=[]).tokens for llm in (one, two))
    assert ours == theirs


# --- what is refused


@pytest.mark.parametrize(
    ("name", "half"),
    [("npu-on-cpu+cpu", "npu-on-cpu"), ("cpu+npu-on-cpu", "npu-on-cpu"), ("reference+cpu", "reference")],
)
def test_a_half_that_cannot_share_is_refused(name: str, half: str, folder: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=f"'{half}': its KV can be neither taken out nor put in"):
        embedllm.load(folder, device=name)


@pytest.mark.parametrize("name", ["tpu+cpu", "cpu+tpu"])
def test_a_half_that_is_not_there_is_named(name: str, folder: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="'tpu': not found"):
        embedllm.load(folder, device=name)
