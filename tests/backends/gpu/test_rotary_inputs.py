"""Positions of images (M-RoPE) on engines with slots, with the CPU provider as the device.

On one of NVIDIA's GPUs: pytest -m gpu tests/backends/gpu/test_rotary_inputs.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import BatchRow
from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.backends.images import image_ids, images_of, place_images
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from embedllm.package.graph_variants import GraphVariant
from embedllm.package.package import open_package
from tests.support.dynamic_vision import IMAGE_TOKEN, DynamicImage, dynamic_checkpoint, dynamic_image, dynamic_prompt
from tests.support.host_engine import assert_close, graphs_for_host, make_host_the_device, open_resident
from tests.support.logits import values

WIDE, TALL = dynamic_image(1, 2, 3), dynamic_image(2, 4, 1)
PARTS: dict[str, tuple[DynamicImage | list[int], ...]] = {
    "text behind": ([5], WIDE, [6, 7]),
    "two images": (WIDE, [5, 6], TALL, [8, 9, 10]),
    "the same twice": (TALL, [5, 6], TALL, [8]),
    "no text behind": ([5, 6], TALL),
    "no image": ([5, 6, 7, 8] * 5,),
}
LATER = (11, 12, 13)
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
CASES = (
    *(pytest.param(("host", family), id=family) for family in ("qwen2_5_vl", "qwen3_vl")),
    *(pytest.param(("cuda", family), id=f"cuda, {family}", marks=pytest.mark.gpu) for family in FAMILIES),
)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The device and the family."""
    return request.param


@pytest.fixture(scope="module")
def folder(case: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(case[1])
    with graphs_for_host():
        return convert(dynamic_checkpoint(root / "checkpoint", case[1]), root / "package", Recipe(bits=32))


@pytest.fixture
def engine(folder: Path, case: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ResidentEngine]:
    if case[0] == "host":
        make_host_the_device(monkeypatch)
    found = open_resident(open_package(folder), case[0])
    features = images_of(found)
    assert features is not None
    features.add([WIDE, TALL])
    yield found
    found.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> ReferenceEngine:
    found = ReferenceEngine(open_package(folder))
    assert found.images is not None
    found.images.add([WIDE, TALL])
    return found


@pytest.fixture(scope="module")
def expected(reference: ReferenceEngine) -> dict[str, np.ndarray]:
    """The rows of each prompt and of LATER behind it."""
    return {name: reference.open().feed_all([*ids(name), *LATER]) for name in PARTS}


def ids(name: str) -> list[int]:
    return place_images(*dynamic_prompt(*PARTS[name]), IMAGE_TOKEN)


def test_features_follow_the_reference(engine: ResidentEngine, reference: ReferenceEngine) -> None:
    for image in (WIDE, TALL):
        rows = [features.rows(image_ids(image)) for one in (engine, reference) if (features := images_of(one))]
        assert_close(rows[0], rows[1], engine)


@pytest.mark.parametrize("name", PARTS)
def test_prompts_and_steps_follow_the_reference_in_any_pieces(
    engine: ResidentEngine, expected: dict[str, np.ndarray], name: str
) -> None:
    tokens = ids(name)
    for size in (len(tokens), 5, 1):
        session = engine.open()
        rows = [session.feed(tokens[at : at + size]) for at in range(0, len(tokens), size)]
        assert_close(rows[-1], expected[name][len(tokens) - 1], engine)
        for at, token in enumerate(LATER, len(tokens)):
            assert_close(session.feed([token]), expected[name][at], engine)
        session.close()


def test_prompts_that_are_read_together_get_what_each_gets_alone(
    engine: ResidentEngine, expected: dict[str, np.ndarray]
) -> None:
    rows = [BatchRow(engine.open(), ids(name)) for name in PARTS]
    for name, found in zip(PARTS, engine.read_prompts(rows), strict=True):
        assert_close(found, expected[name][len(ids(name)) - 1], engine)


def test_rows_of_a_step_have_positions_of_their_own(
    engine: ResidentEngine, expected: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one run, where the graph has positions as an input."""
    sessions = {name: engine.open() for name in PARTS}
    for name, session in sessions.items():
        session.feed(ids(name))
    if engine.package.decoder.attentions[0].q_norm is not None:
        monkeypatch.setattr(ResidentSession, "feed", None)
    for at, token in enumerate(LATER):
        found = engine.run_batch([BatchRow(session, [token]) for session in sessions.values()])
        for name, row in zip(PARTS, found, strict=True):
            assert_close(row, expected[name][len(ids(name)) + at], engine)


def test_a_sequence_that_was_rewound_goes_on_as_a_new_one(
    engine: ResidentEngine, expected: dict[str, np.ndarray]
) -> None:
    tokens, session, alone = ids("two images"), engine.open(), engine.open()
    session.feed(tokens)
    alone.feed([*tokens[:1], 11])
    row = alone.feed([12])
    session.rewind(1)
    session.feed([11])
    assert_close(session.feed([12]), values(row), engine)
    session.rewind(1)
    assert_close(session.feed(tokens[1:]), expected["two images"][len(tokens) - 1], engine)


def test_kv_that_another_sequence_takes_keeps_its_positions(
    engine: ResidentEngine, expected: dict[str, np.ndarray]
) -> None:
    tokens = ids("two images")
    for cut in (2, len(tokens) - 1, len(tokens)):
        first, second = engine.open(), engine.open()
        first.feed(tokens)
        second.import_state(first.export_stored([(0, cut)])[0])
        second.put_images(0, tokens[:cut])
        for at, token in enumerate([*tokens[cut:], *LATER], cut):
            row = second.feed([token])
            assert_close(row, expected["two images"][at], engine)


def test_a_feed_that_failed_leaves_no_positions(engine: ResidentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    session, alone = engine.open(), engine.open()
    alone.feed([5, 6])
    row = alone.feed([11])
    session.feed([5, 6])

    def fail(*_: object) -> None:
        raise DeviceError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(type(engine), "session", property(fail))
        with pytest.raises(DeviceError, match="lost"):
            session.feed(ids("two images"))
    assert_close(session.feed([11]), values(row), engine)


def test_only_models_that_norm_queries_and_keys_have_positions_as_an_input(engine: ResidentEngine) -> None:
    names = {one.name for one in engine.session.get_inputs()}
    assert ("position_ids" in names) == (engine.package.decoder.attentions[0].q_norm is not None)


def test_attention_that_norms_nothing_takes_positions(
    case: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """When CUDA's does (it does not in ONNX Runtime 1.31.1), GraphVariant.takes_positions() needs no exception."""
    if case[1] != "qwen2_5_vl":
        pytest.skip("its attention norms queries and keys, or is like that of Qwen2.5-VL")
    if case[0] == "cuda":
        request.applymarker(pytest.mark.xfail(strict=True, reason="flash attention of steps ignores positions"))
    monkeypatch.setattr(GraphVariant, "takes_positions", lambda self, _: self.position_ids and self.images)
    make_host_the_device(monkeypatch)
    with graphs_for_host():
        folder = convert(dynamic_checkpoint(tmp_path / "checkpoint", case[1]), tmp_path / "package", Recipe(bits=32))
    reference, engine = ReferenceEngine(open_package(folder)), open_resident(open_package(folder), case[0])
    rows: list[np.ndarray] = []
    for one in (reference, engine):
        features = images_of(one)
        assert features is not None
        features.add([WIDE, TALL])
        session = one.open()
        session.feed(ids("two images"))
        rows.append(values([session.feed([token]) for token in LATER][-1]))
    engine.close()
    assert_close(rows[1], rows[0], engine)
