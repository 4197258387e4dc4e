"""Positions of tokens of images (M-RoPE): by hand, and in sequences that are fed, rewound, kept and run together.

On GPUs: .ci/lavapipe.sh pytest -m webgpu tests/backends/test_mrope.py
On one of NVIDIA's: pytest -m gpu tests/backends/test_mrope.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm import Cancel, Model
from embedllm.backends.base import FeedsAll, MovesState, PlacesImages, VisionEncoder
from embedllm.backends.gpu.io_binding_session import ResidentSession
from embedllm.backends.gpu.unbatched_session import UnbatchedSession
from embedllm.backends.images import ImageFeatures, image_ids
from embedllm.backends.mrope import ImagePlaces
from embedllm.backends.openvino.engine import OvEngine
from embedllm.backends.openvino.runtime import devices as openvino_devices
from embedllm.backends.ort.session import OrtSession
from embedllm.errors import DeviceError
from embedllm.export import Recipe, convert
from embedllm.export.verify import verify_folder
from embedllm.package.architecture.rope import Mrope, Rope
from embedllm.package.package import open_package
from embedllm.package.rope import tables
from tests.support.dynamic_vision import DynamicImage, dynamic_checkpoint, dynamic_image
from tests.support.image_devices import Case, asked, assert_close, case_fixture, cases, fed, prompt, replied

WIDE, TALL = dynamic_image(1, 2, 3), dynamic_image(2, 4, 1)
PROMPT: tuple[DynamicImage | list[int], ...] = ([5, 6], WIDE, [7], TALL, [8, 9, 10])
# (time, row, column) of two tokens, an image of 2 rows of 3, a token, an image of 4 rows of 1, and two tokens
TOKENS = [5, 6, *image_ids(WIDE), 7, *image_ids(TALL), 8, 9]
POSITIONS = [
    (0, 0, 0), (1, 1, 1),
    (2, 2, 2), (2, 2, 3), (2, 2, 4), (2, 3, 2), (2, 3, 3), (2, 3, 4),
    (5, 5, 5),
    (6, 6, 6), (6, 7, 6), (6, 8, 6), (6, 9, 6),
    (10, 10, 10), (11, 11, 11),
]  # fmt: skip


def places(mrope: Mrope | None = None) -> ImagePlaces:
    """Of a sequence that may have both images."""

    def no_encoder() -> VisionEncoder:
        raise AssertionError("positions need no features")

    images = ImageFeatures(no_encoder)
    images.add([WIDE, TALL])
    return ImagePlaces(Rope(base=1e4, rotary_dim=16), mrope or Mrope(sections=(2, 3, 3)), images)


def test_an_image_has_rows_and_columns_and_what_follows_stands_behind_its_longer_side() -> None:
    found = places()
    found.put(0, TOKENS)
    assert found
    assert [tuple(each) for each in found.positions(0, len(TOKENS))] == POSITIONS
    assert [tuple(each) for each in found.positions(4, 10)] == POSITIONS[4:10]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_positions_do_not_depend_on_the_pieces(size: int) -> None:
    found = places()
    for at in range(0, len(TOKENS), size):
        found.put(at, TOKENS[at : at + size])
    assert [tuple(each) for each in found.positions(0, len(TOKENS))] == POSITIONS


def test_what_is_rewound_is_forgotten() -> None:
    found = places()
    found.put(0, TOKENS)
    found.rewind(4)  # in the middle of the first image
    found.put(4, TOKENS[4:9])
    assert [tuple(each) for each in found.positions(0, 9)] == POSITIONS[:9]
    found.rewind(2)
    assert not found
    found.put(2, [8, 9])
    assert [tuple(each) for each in found.positions(0, 4)] == [(at, at, at) for at in range(4)]


@pytest.mark.parametrize(
    ("mrope", "axes"),
    [
        (Mrope(sections=(2, 3, 3)), [0, 0, 1, 1, 1, 2, 2, 2]),
        (Mrope(sections=(4, 2, 2), interleaved=True), [0, 1, 2, 0, 1, 2, 0, 0]),
    ],
    ids=["one by one", "in turns"],
)
def test_sections_say_what_rotates_a_pair(mrope: Mrope, axes: list[int]) -> None:
    found = places(mrope)
    found.put(0, TOKENS)
    cos, sin = tables(Rope(base=1e4, rotary_dim=16), 12)
    rows = found.rope_rows(0, len(TOKENS))
    for token, position in enumerate(POSITIONS):
        at = [position[axis] for axis in axes]
        assert np.array_equal(rows[0][token], cos[at, range(8)])
        assert np.array_equal(rows[1][token], sin[at, range(8)])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mrope")
    return convert(dynamic_checkpoint(root / "checkpoint", "qwen3_vl"), root / "package", Recipe(bits=32))


case = case_fixture(cases())


def test_logits_follow_the_reference_in_pieces_too(llm: Model, reference: Model, case: Case) -> None:
    expected = fed(reference, prompt(reference, *PROMPT))
    ids = prompt(llm, *PROMPT)
    for step in (0, 1, 5):  # cuts in the middle of images
        assert_close(fed(llm, ids, step=step), expected, case.tolerance)


def test_the_model_with_a_kv_of_its_own_request_follows_the_reference(package: Path, reference: Model) -> None:
    """OvEngine, where paged attention cannot be used."""
    opened = open_package(package)
    graph = opened.graph("openvino")
    assert graph is not None
    engine = OvEngine(opened, graph, openvino_devices()[0], "CPU", exact=True)
    assert engine.images is not None
    engine.images.add([WIDE, TALL])
    ids = prompt(reference, *PROMPT)
    session = engine.open()
    first, rest = session.feed_all(ids[:5]).copy(), session.feed_all(ids[5:])
    assert_close(np.concatenate([first, rest]), fed(reference, ids), Case("openvino").tolerance)
    engine.close()


def test_a_sequence_that_was_rewound_goes_on_as_a_new_one(llm: Model, case: Case) -> None:
    ids, text = prompt(llm, *PROMPT), [5, 6, 11, 12]

    def feed() -> np.ndarray:
        session = llm.runner.engine.open()
        assert isinstance(session, FeedsAll)
        session.feed_all(ids)
        session.rewind(2)
        found = [session.feed_all(text[2:])]  # text only
        session.rewind(2)
        found.append(session.feed_all(ids[2:]))
        session.close()
        return np.concatenate(found)

    expected = np.concatenate([fed(llm, text)[2:], fed(llm, ids)[2:]])
    assert_close(llm.runner.call(feed), expected, case.tolerance)


def test_kv_that_another_sequence_takes_keeps_its_positions(llm: Model, case: Case) -> None:
    ids = prompt(llm, *PROMPT)

    def moved(cut: int) -> np.ndarray:
        first, second = llm.runner.engine.open(), llm.runner.engine.open()
        assert isinstance(first, MovesState)
        assert isinstance(second, MovesState)
        assert isinstance(second, PlacesImages)
        assert isinstance(second, FeedsAll)
        first.feed(ids)
        second.import_state(first.export_state(0, cut))
        second.put_images(0, ids[:cut])
        found = second.feed_all(ids[cut:])
        first.close()
        second.close()
        return found

    expected = fed(llm, ids)
    for cut in (5, 11, len(ids) - 1):
        assert_close(llm.runner.call(lambda cut=cut: moved(cut)), expected[cut:], case.tolerance)


def test_a_prompt_whose_beginning_is_in_the_prefix_cache_gets_the_same_reply(llm: Model) -> None:
    request = asked(llm, [5] * 70, WIDE, [6] * 60, TALL, [7])
    other = asked(llm, [9] * 200)
    llm.release()
    expected = replied(llm, request)
    replied(llm, other)
    *chunks, last = llm.runner.stream(request, Cancel())
    assert [chunk.token for chunk in [*chunks, last]] == expected
    assert last.statistics.cached_tokens >= 128


def test_the_next_process_finds_the_kv(package: Path, tmp_path: Path) -> None:
    replies = []
    for _ in range(2):
        with embedllm.load(package, device="cpu", cache_dir=tmp_path / "cache") as llm:
            *chunks, last = llm.runner.stream(asked(llm, [5] * 30, TALL, WIDE, [6] * 60, WIDE, [7]), Cancel())
            replies.append(([chunk.token for chunk in chunks], last.statistics.cached_tokens))
    assert replies[0][0] == replies[1][0]
    assert replies[1][1] >= 64


def test_several_at_once_get_what_each_gets_alone(llm: Model) -> None:
    requests = [asked(llm, [5 + seed], dynamic_image(30 + seed, 2 + seed, 3), [6]) for seed in range(3)]
    requests += [llm.request([5, 6, 7 + seed], temperature=0, max_tokens=8, stop_tokens=[]) for seed in range(2)]
    alone = [replied(llm, request) for request in requests]
    together = [[chunk.token for chunk in chunks] for chunks in llm.runner.run_all(requests, Cancel())]
    assert together == alone


def test_text_is_what_it_is_without_images(llm: Model, reference: Model) -> None:
    def text(model: Model) -> list[int]:
        return list(model.generate([5, 6, 7], temperature=0, max_tokens=8, stop_tokens=[]).tokens)

    before = text(llm)
    replied(llm, asked(llm, *PROMPT))
    assert text(llm) == before == text(reference)


def test_images_that_differ_in_their_sides_only_differ(llm: Model) -> None:
    """The same pixels in another order: the same number of tokens, at other rows and columns."""
    values = np.zeros((1, 3, 16, 48), np.float32)
    flat, upright = DynamicImage(values), DynamicImage(values.reshape(1, 3, 48, 16))
    assert flat.tokens == upright.tokens
    first, second = (fed(llm, prompt(llm, [5], each, [6]))[-1] for each in (flat, replace_sha(upright)))
    assert np.abs(first - second).max() > 1e-3 * first.std()


def replace_sha(image: DynamicImage) -> DynamicImage:
    """An image of other bytes, which the hash is of."""
    return DynamicImage(image.pixel_values + np.float32(1e-7))


def test_steps_behind_an_image_give_what_a_prompt_gives(llm: Model, reference: Model, case: Case) -> None:
    """One by one, by feed(): those that a GPU captures; and after another sequence had the same buffers."""
    assert getattr(llm.runner.engine, "captures", True)
    ids = [*prompt(llm, *PROMPT), 11, 12, 13, 14]
    expected = fed(reference, [*prompt(reference, *PROMPT), 11, 12, 13, 14])

    def stepped(tokens: list[int], start: int) -> np.ndarray:
        session = llm.runner.engine.open()
        found = [session.feed(tokens[:start]), *(session.feed([token]) for token in tokens[start:])][-1]
        row = found.values(range(expected.shape[1]))
        session.close()
        return np.asarray(row)

    for _ in range(2):
        row = llm.runner.call(lambda: stepped(ids, len(ids) - 4))
        assert_close(row, expected[-1], case.tolerance)
        text = llm.runner.call(lambda: stepped([5, 6, 7, 8], 1))
        assert_close(text, fed(reference, [5, 6, 7, 8])[-1], case.tolerance)


def test_a_feed_that_failed_leaves_no_positions(
    llm: Model, reference: Model, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next feeds are of one token, which a GPU computes by captured steps."""
    ids, expected = prompt(llm, *PROMPT), fed(reference, [5, 6, 11, 12, 13])[-1]

    def fail(*_: object) -> None:
        raise DeviceError("lost")

    def stepped() -> np.ndarray:
        session = llm.runner.engine.open()
        if not isinstance(session, OrtSession | UnbatchedSession | ResidentSession):
            pytest.skip("its runs are fed otherwise")
        session.feed(ids[:2])
        with monkeypatch.context() as patch:
            patch.setattr(session, "_run", fail)
            with pytest.raises(DeviceError, match="lost"):
                session.feed(ids[2:])
        row = [session.feed([token]) for token in (11, 12, 13)][-1].values(range(len(expected)))
        session.close()
        return np.asarray(row)

    assert_close(llm.runner.call(stepped), expected, case.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_the_packings_of_an_export_are_verified(package: Path, tmp_path: Path, bits: int) -> None:
    out = convert(package.parent / "checkpoint", tmp_path / "package", Recipe(bits=bits))
    assert {"vision.onnx", "openvino_vision.xml"} <= verify_folder(out).keys()
