"""Images of Gemma 4 on engines with slots, with the CPU provider as the device.

On GPUs: tests/backends/test_gemma4_images.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import BatchRow
from embedllm.backends.images import images_of, place_images
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.backends.test_gemma4_images import CASES
from tests.support.dynamic_vision import IMAGE_TOKEN, DynamicImage, dynamic_image, dynamic_prompt
from tests.support.gemma4 import gemma4_checkpoint
from tests.support.host_engine import (
    HostEngine,
    assert_close,
    graphs_for_host,
    make_host_the_device,
    open_host,
    reference_rows,
)

WIDE, TALL = dynamic_image(1, 3, 5), dynamic_image(2, 5, 2)
PARTS: dict[str, tuple[DynamicImage | list[int], ...]] = {
    "text behind": ([5] * 9, WIDE, [6, 7]),
    "two images": (WIDE, [5, 6], TALL, [8]),
    "no text behind": ([5, 6], TALL),
    "no image": ([5, 6, 7, 8] * 5,),
}
LATER = (11, 12, 13)


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gemma4")
    with graphs_for_host():
        return convert(
            gemma4_checkpoint(root / "checkpoint", config=CASES[request.param]), root / "package", Recipe(bits=32)
        )


@pytest.fixture
def engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostEngine]:
    make_host_the_device(monkeypatch)
    opened = open_host(open_package(folder))
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


@pytest.mark.parametrize("name", PARTS)
def test_prompts_and_steps_follow_the_reference(engine: HostEngine, expected: dict[str, np.ndarray], name: str) -> None:
    tokens, features = ids(name), images_of(engine)
    assert features is not None
    assert_close(engine.open().feed_all(tokens), expected[name][: len(tokens)], engine)
    for size in (len(tokens), 5):
        session = engine.open()
        while (at := session.position) < len(tokens):
            end = features.end_of_piece(tokens, min(at + size, len(tokens)))
            assert_close(session.feed(tokens[at:end]), expected[name][end - 1], engine)
        for place, token in enumerate(LATER, len(tokens)):
            assert_close(session.feed([token]), expected[name][place], engine)
        session.close()


def test_prompts_that_are_read_together_get_what_each_gets_alone(
    engine: HostEngine, expected: dict[str, np.ndarray]
) -> None:
    rows = [BatchRow(engine.open(), ids(name)) for name in PARTS]
    for name, found in zip(PARTS, engine.read_prompts(rows), strict=True):
        assert_close(found, expected[name][len(ids(name)) - 1], engine)
    for at, token in enumerate(LATER):
        found = engine.run_batch([BatchRow(row.session, [token]) for row in rows])
        for name, row in zip(PARTS, found, strict=True):
            assert_close(row, expected[name][len(ids(name)) + at], engine)
