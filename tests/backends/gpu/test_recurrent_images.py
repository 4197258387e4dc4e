"""Images in recurrent models (LFM2-VL, Qwen 3.5) on engines with slots, with the CPU provider as the device.

On GPUs: tests/backends/test_recurrent_images.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import BatchRow
from embedllm.backends.gpu import io_binding_engine, kv_steps
from embedllm.backends.gpu.recurrent_engine import RecurrentEngine, RecurrentSlot
from embedllm.backends.images import images_of, place_images
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from embedllm.types import Logits
from tests.support.dynamic_vision import IMAGE_TOKEN, DynamicImage, dynamic_checkpoint, dynamic_image, dynamic_prompt
from tests.support.host_engine import graphs_for_host, make_host_the_device, open_host, reference_rows
from tests.support.logits import values

TOLERANCE = 3e-4  # of the spread: the rounding of a state adds up over the tokens
WIDE, TALL = dynamic_image(1, 2, 3), dynamic_image(2, 4, 1)
PARTS: dict[str, tuple[DynamicImage | list[int], ...]] = {
    "text around": ([5, 6], WIDE, [7, 8, 9]),
    "two images": (TALL, [5], WIDE, [6, 7]),
    "no image": ([5, 6, 7, 8] * 5,),
}
LATER = (11, 12, 13)


@pytest.fixture(scope="module", params=["lfm2_vl", "qwen3_5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    with graphs_for_host():
        return convert(dynamic_checkpoint(root / "checkpoint", request.param), root / "package", Recipe(bits=32))


@pytest.fixture
def engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecurrentEngine]:
    make_host_the_device(monkeypatch)
    for module in (io_binding_engine, kv_steps):
        monkeypatch.setattr(module, "SHORTEST", 16)
    opened = RecurrentEngine(open_host(open_package(folder)))
    images = images_of(opened)
    assert images is not None, opened.images_unsupported
    images.add([WIDE, TALL])
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, np.ndarray]:
    """The rows of each prompt and of LATER behind it, by the reference."""
    return reference_rows(folder, [WIDE, TALL], {name: [*ids(name), *LATER] for name in PARTS})


def ids(name: str) -> list[int]:
    return place_images(*dynamic_prompt(*PARTS[name]), IMAGE_TOKEN)


def assert_close(found: Logits | np.ndarray, expected: np.ndarray) -> None:
    row = found if isinstance(found, np.ndarray) else values(found)
    assert expected.std() > 0.1  # else a part could be missing unseen
    assert np.abs(row - expected).max() <= TOLERANCE * expected.std()


@pytest.mark.parametrize("name", PARTS)
def test_prompts_and_steps_follow_the_reference_in_any_pieces(
    engine: RecurrentEngine, expected: dict[str, np.ndarray], name: str
) -> None:
    tokens = ids(name)
    assert_close(engine.open().feed_all(tokens), expected[name][: len(tokens)])
    for size in (len(tokens), 3, 1):  # cuts in the middle of images
        session = engine.open()
        for at in range(0, len(tokens), size):
            row = session.feed(tokens[at : at + size])
            assert_close(row, expected[name][min(at + size, len(tokens)) - 1])
        for place, token in enumerate(LATER, len(tokens)):
            assert_close(session.feed([token]), expected[name][place])
        session.close()


def test_sequences_with_images_step_together_each_with_its_own_states(
    engine: RecurrentEngine, expected: dict[str, np.ndarray]
) -> None:
    sessions = {name: engine.open() for name in PARTS}
    for name, session in sessions.items():
        session.feed(ids(name))
    for at, token in enumerate(LATER):
        found = engine.run_batch([BatchRow(session, [token]) for session in sessions.values()])
        for name, row in zip(PARTS, found, strict=True):
            assert_close(row, expected[name][len(ids(name)) + at])


def test_a_step_of_an_image_goes_on_beside_steps_of_text(
    engine: RecurrentEngine, expected: dict[str, np.ndarray]
) -> None:
    in_image, text = engine.open(), engine.open()
    in_image.feed(ids("text around")[:5])  # its first rows
    text.feed(ids("no image")[:5])
    for at in range(5, 8):
        found = engine.run_batch([BatchRow(in_image, ids("text around")[at : at + 1]),
                                  BatchRow(text, ids("no image")[at : at + 1])])  # fmt: skip
        assert_close(found[0], expected["text around"][at])
        assert_close(found[1], expected["no image"][at])


def test_a_batch_whose_image_fails_changes_no_states(
    engine: RecurrentEngine, expected: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_image, text = engine.open(), engine.open()
    in_image.feed(ids("text around")[:5])
    text.feed(ids("no image")[:5])
    rows = [BatchRow(text, ids("no image")[5:6]), BatchRow(in_image, ids("text around")[5:6])]

    def fail(*_: object) -> None:
        raise DeviceError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(RecurrentSlot, "_run", fail)
        with pytest.raises(DeviceError, match="lost"):
            engine.run_batch(rows)
    assert (text.position, in_image.position) == (5, 5)
    found = engine.run_batch(rows)
    assert_close(found[0], expected["no image"][5])
    assert_close(found[1], expected["text around"][5])


@pytest.mark.parametrize("cut", [1, 5, 9], ids=["before the image", "in it", "behind it"])
def test_a_rewound_sequence_goes_on_as_a_new_one(
    engine: RecurrentEngine, expected: dict[str, np.ndarray], cut: int
) -> None:
    tokens, session = [*ids("text around"), *LATER], engine.open()
    for at in range(0, len(tokens), 4):
        session.feed(tokens[at : at + 4])
    session.rewind(cut)
    assert_close(session.feed_all(tokens[cut:]), expected["text around"][cut:])
