"""Images on engines whose buffers stay on a device, with the CPU provider as the device; on GPUs: test_vision.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.base import BatchRow, Interrupted
from embedllm.backends.images import images_of, images_unsupported, place_images
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert, graphs
from embedllm.export.graphs import write_variant
from embedllm.package.graph_variants import GPU_FLOAT32, VISION_GPU_FLOAT32
from embedllm.package.package import MANIFEST, open_package
from tests.support.host_engine import HostEngine, assert_close, make_host_the_device, open_host
from tests.support.logits import values
from tests.support.vision import IMAGE_TOKEN, Image, image, seeing_prompt, vision_checkpoint

ONE, TWO = image(1), image(2, tiles=2)
PARTS: dict[str, tuple[Image | list[int], ...]] = {
    "text behind": ([5], ONE, [6, 7]),
    "two images": (ONE, [5, 6], TWO, [8]),
    "no text behind": ([5, 6], TWO),
    "no image": ([5, 6, 7, 8] * 5,),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    return convert(vision_checkpoint(root / "checkpoint"), root / "package", Recipe(bits=32))


@pytest.fixture
def engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostEngine]:
    make_host_the_device(monkeypatch)
    found = open_host(open_package(folder))
    yield found
    found.close()


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, np.ndarray]:
    """The last row of each prompt, by the reference."""
    reference = ReferenceEngine(open_package(folder))
    assert reference.images is not None
    reference.images.add([ONE, TWO])
    return {name: reference.open().feed_all(ids(name))[-1] for name in PARTS}


def ids(name: str) -> list[int]:
    return place_images(*seeing_prompt(*PARTS[name]), IMAGE_TOKEN)


@pytest.fixture
def seeing(engine: HostEngine) -> HostEngine:
    found = images_of(engine)
    assert found is not None
    found.add([ONE, TWO])
    return engine


@pytest.mark.parametrize("name", PARTS)
def test_prompts_follow_the_reference_in_any_pieces(
    seeing: HostEngine, expected: dict[str, np.ndarray], name: str
) -> None:
    tokens = ids(name)
    for step in (len(tokens), 7, 1):
        session = seeing.open()
        rows = [session.feed(tokens[at : at + step]) for at in range(0, len(tokens), step)]
        assert_close(rows[-1], expected[name], seeing)
        session.close()


def test_prompts_that_are_read_in_one_run_get_what_each_gets_alone(
    seeing: HostEngine, expected: dict[str, np.ndarray]
) -> None:
    rows = [BatchRow(seeing.open(), ids(name)) for name in PARTS]
    for name, found in zip(PARTS, seeing.read_prompts(rows), strict=True):
        assert_close(found, expected[name], seeing)
    assert [row.session.position for row in rows] == [len(ids(name)) for name in PARTS]


def test_steps_of_text_go_on_beside_those_of_images(seeing: HostEngine, expected: dict[str, np.ndarray]) -> None:
    """Rows of one run, of which some have the id of an image."""
    names = ["no text behind", "text behind", "no image"]
    sessions = [seeing.open() for _ in names]
    for session, name in zip(sessions, names, strict=True):
        session.feed(ids(name)[:-1])
    found = seeing.run_batch([BatchRow(one, ids(name)[-1:]) for one, name in zip(sessions, names, strict=True)])
    for name, logits in zip(names, found, strict=True):
        assert_close(logits, expected[name], seeing)


def test_a_batch_that_fails_appends_nothing(seeing: HostEngine, expected: dict[str, np.ndarray]) -> None:
    text, stopped = seeing.open(), seeing.open()
    text.feed(ids("text behind")[:-1])
    stopped.feed(ids("no text behind")[:-1])
    stopped.interrupt()
    rows = [BatchRow(text, ids("text behind")[-1:]), BatchRow(stopped, ids("no text behind")[-1:])]
    with pytest.raises(Interrupted):
        seeing.run_batch(rows)
    stopped.interrupt(stop=False)
    assert_close(seeing.run_batch(rows)[0], expected["text behind"], seeing)
    assert text.position == len(ids("text behind"))


def test_text_after_an_image_is_fed_without_it(seeing: HostEngine) -> None:
    """Inputs of a run with images are not those of the next one."""
    alone, after = seeing.open(), seeing.open()
    expected = values(alone.feed([5] * 20))
    after.feed(ids("text behind"))
    after.rewind(0)
    np.testing.assert_array_equal(values(after.feed([5] * 20)), expected)


@pytest.mark.parametrize("variants", [["vision-gpu-float32"], ["gpu-float32", "vision-gpu-float32"]])
def test_an_older_folder_says_what_to_run(
    variants: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host_the_device(monkeypatch)
    older = folder_without_images(folder, tmp_path / "older", variants)
    engine = open_host(open_package(older, whole=False))
    assert images_of(engine) is None
    _, remedy = images_unsupported(engine)
    assert remedy == "run " + " and ".join(f"embedllm graph {older} --variant {name}" for name in variants)
    engine.close()
    for name in variants:
        write_variant(older, name)
    engine = open_host(open_package(older))
    assert images_of(engine) is not None
    engine.close()


def folder_without_images(folder: Path, older: Path, variants: list[str]) -> Path:
    """As an export wrote it before GPUs took images."""
    shutil.copytree(folder, older)
    if "gpu-float32" in variants:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graphs, "VARIANTS", (replace(GPU_FLOAT32, images=False),))
            write_variant(older, "gpu-float32")
    manifest = json.loads((older / MANIFEST).read_text())
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["variant"] != VISION_GPU_FLOAT32.name]
    del manifest["files"][VISION_GPU_FLOAT32.file]
    (older / MANIFEST).write_text(json.dumps(manifest))
    (older / VISION_GPU_FLOAT32.file).unlink()
    return older
