"""Images whose tokens attend to one another (Gemma 3) on engines with slots, with the CPU provider as the device.

On GPUs: tests/backends/test_vision.py, and pytest -m gpu tests/backends/gpu/test_image_decoder.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import BatchRow
from embedllm.backends.gpu.io_binding_engine import ResidentEngine
from embedllm.backends.images import images_of, images_unsupported, place_images
from embedllm.backends.ort.runtime import ort
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from embedllm.export.graphs import write_variant
from embedllm.package.package import MANIFEST, open_package
from embedllm.types import Logits
from tests.support.host_engine import assert_close, graphs_for_host, make_host_the_device, open_resident, reference_rows
from tests.support.vision import IMAGE_TOKEN, TILE_TOKENS, Image, gemma_checkpoint, image, seeing_prompt

ONE, TWO = image(1), image(2)
PARTS: dict[str, tuple[Image | list[int], ...]] = {
    "text behind": ([5] * 9, ONE, [6, 7]),
    "two images": (ONE, [5, 6], TWO, [8]),
    "no text between": (ONE, TWO, [6, 7]),
    "no text behind": ([5, 6], TWO),
    "no image": ([5, 6, 7, 8] * 5,),
}
LATER = (11, 12, 13)
WINDOWS = (50, TILE_TOKENS // 2)  # tokens: more than an image has, and fewer
CASES = (
    *(pytest.param(("host", window), id=f"window of {window}") for window in WINDOWS),
    *(pytest.param(("cuda", window), id=f"cuda, window of {window}", marks=pytest.mark.gpu) for window in WINDOWS),
)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, int]:
    """The device, and the window of the first layers."""
    return request.param


@pytest.fixture(scope="module")
def folder(case: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    with graphs_for_host():
        return convert(gemma_checkpoint(root / "checkpoint", window=case[1]), root / "package", Recipe(bits=32))


@pytest.fixture
def is_device(case: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is."""
    if case[0] == "host":
        make_host_the_device(monkeypatch)


@pytest.fixture
def engine(folder: Path, case: tuple[str, int], is_device: None) -> Iterator[ResidentEngine]:
    found = open_resident(open_package(folder), case[0])
    features = images_of(found)
    assert features is not None
    features.add([ONE, TWO])
    yield found
    found.close()


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, np.ndarray]:
    """The rows of each prompt and of LATER behind it, by the reference."""
    return reference_rows(folder, [ONE, TWO], {name: [*ids(name), *LATER] for name in PARTS})


def ids(name: str) -> list[int]:
    return place_images(*seeing_prompt(*PARTS[name]), IMAGE_TOKEN)


@pytest.mark.parametrize("name", PARTS)
def test_prompts_and_steps_follow_the_reference(
    engine: ResidentEngine, expected: dict[str, np.ndarray], name: str
) -> None:
    tokens, features = ids(name), images_of(engine)
    assert features is not None
    assert_close(engine.open().feed_all(tokens), expected[name][: len(tokens)], engine)
    for size in (len(tokens), 5, 1):
        session = engine.open()
        row: Logits | None = None
        while (at := session.position) < len(tokens):
            row = session.feed(tokens[at : features.end_of_piece(tokens, min(at + size, len(tokens)))])
        assert row is not None
        assert_close(row, expected[name][len(tokens) - 1], engine)
        for place, token in enumerate(LATER, len(tokens)):
            assert_close(session.feed([token]), expected[name][place], engine)
        session.close()


def test_prompts_that_are_read_together_get_what_each_gets_alone(
    engine: ResidentEngine, expected: dict[str, np.ndarray]
) -> None:
    rows = [BatchRow(engine.open(), ids(name)) for name in PARTS]
    for name, found in zip(PARTS, engine.read_prompts(rows), strict=True):
        assert_close(found, expected[name][len(ids(name)) - 1], engine)
    for at, token in enumerate(LATER):
        found = engine.run_batch([BatchRow(row.session, [token]) for row in rows])
        for name, row in zip(PARTS, found, strict=True):
            assert_close(row, expected[name][len(ids(name)) + at], engine)


def test_a_feed_that_fails_at_its_second_image_appends_nothing(
    engine: ResidentEngine, expected: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, tokens = engine.open(), ids("two images")
    decoder, graphs_read = engine.image_decoder.session, []

    def fail() -> ort.InferenceSession:
        graphs_read.append(1)
        if len(graphs_read) == 2:
            raise DeviceError("lost")
        return decoder()

    with monkeypatch.context() as patch:
        patch.setattr(engine.image_decoder, "session", fail)
        with pytest.raises(DeviceError, match="lost"):
            session.feed(tokens)
    assert session.position == 0
    assert_close(session.feed(tokens), expected["two images"][len(tokens) - 1], engine)


def test_an_older_folder_says_what_to_run(folder: Path, case: tuple[str, int], is_device: None) -> None:
    suffix = "gpu-float32" if case[0] == "host" else "float16"
    manifest = json.loads((folder / MANIFEST).read_text())
    name = f"images-{suffix}"
    older = {**manifest, "graphs": [graph for graph in manifest["graphs"] if graph["variant"] != name]}
    (folder / MANIFEST).write_text(json.dumps(older))
    engine = open_resident(open_package(folder), case[0])
    assert images_of(engine) is None
    assert images_unsupported(engine).remedy == f"run embedllm graph {folder} --variant {name}"
    engine.close()
    write_variant(folder, name)
    engine = open_resident(open_package(folder), case[0])
    assert images_of(engine) is not None
    engine.close()
