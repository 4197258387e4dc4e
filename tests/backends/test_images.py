"""Ids of images in prompts, and their features: computed once, kept by the image's hash."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from embedllm.backends.base import Interrupted
from embedllm.backends.images import (
    FIRST_ID,
    MAX_TOKENS,
    ImageFeatures,
    check_tile,
    image_ids,
    last_seen,
    place_images,
    text_and_images,
    without_images,
)
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.vision import Vision
from tests.support.families import SMOLVLM
from tests.support.vision import IMAGE_TOKEN, TILE_TOKENS, Image, image

HIDDEN = 4
IDS = [*image_ids(image(1))]
OTHERS = [*image_ids(image(2))]


class Encoder:
    """Counts what it encodes; a row is the mean of the pixels and its number."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, pixel_values: np.ndarray) -> np.ndarray:
        self.calls += 1
        found = np.zeros((TILE_TOKENS, HIDDEN), np.float32)
        found[:, 0], found[:, 1] = pixel_values.mean(), np.arange(TILE_TOKENS)
        return found


def features(encoder: Encoder, *, bidirectional: bool = False, budget_bytes: int = 1 << 20) -> ImageFeatures:
    return ImageFeatures(lambda: encoder, bidirectional=bidirectional, budget_bytes=budget_bytes)


def test_an_id_is_above_every_vocabulary_and_says_of_which_image_and_row() -> None:
    one, other = image_ids(image(1)), image_ids(image(2))
    assert len(one) == TILE_TOKENS
    assert FIRST_ID <= one[0] < one[-1] < 1 << 63
    assert set(one).isdisjoint(other)
    assert image_ids(image(1)) == one  # of the same pixels, another object


def test_a_feed_is_parted_at_both_ends_of_each_image() -> None:
    assert text_and_images([5, 6]) == [[5, 6]]
    assert text_and_images([*IDS[3:], *IDS, *OTHERS, 5, 6, *IDS]) == [IDS[3:], IDS, OTHERS, [5, 6], IDS]


def test_tokens_of_an_image_attend_up_to_its_last_one() -> None:
    assert last_seen([5, *IDS[:3], *OTHERS[:2], 6], 10) == [10, 13, 13, 13, 15, 15, 16]


def test_a_piece_of_a_prompt_does_not_end_within_an_image_whose_tokens_attend_to_one_another() -> None:
    tokens = [5, *IDS, *IDS, 6]
    whole = features(Encoder(), bidirectional=True)
    ends = [whole.end_of_piece(tokens, end) for end in (1, 2, TILE_TOKENS + 1, TILE_TOKENS + 2, len(tokens))]
    assert ends == [1, TILE_TOKENS + 1, TILE_TOKENS + 1, 2 * TILE_TOKENS + 1, len(tokens)]
    assert [whole.start_of_piece(tokens, start) for start in (0, 1, 2, TILE_TOKENS + 1)] == [0, 1, 1, TILE_TOKENS + 1]
    assert features(Encoder()).end_of_piece(tokens, 2) == 2
    assert features(Encoder()).start_of_piece(tokens, 2) == 2


def test_images_take_the_places_of_their_placeholders_in_order() -> None:
    one, two = image(1), image(2, tiles=2)
    tokens = [5, *[IMAGE_TOKEN] * one.tokens, 6, *[IMAGE_TOKEN] * two.tokens, 7]
    placed = place_images(tokens, [one, two], IMAGE_TOKEN)
    assert placed == [5, *image_ids(one), 6, *image_ids(two), 7]
    assert without_images(placed) == [5, 6, 7]
    assert without_images([5, 6]) == [5, 6]


@pytest.mark.parametrize("count", [0, TILE_TOKENS - 1, TILE_TOKENS + 1])
def test_another_number_of_placeholders_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} placeholder tokens"):
        place_images([IMAGE_TOKEN] * count, [image(1)], IMAGE_TOKEN)


@pytest.mark.parametrize("tokens", [0, MAX_TOKENS + 1])
def test_an_image_of_no_or_too_many_tokens_is_refused(tokens: int) -> None:
    class Odd:
        sha256, pixel_values, grid = "00" * 32, np.zeros((1, 3, 2, 2), np.float32), None

        def __init__(self) -> None:
            self.tokens = tokens

    with pytest.raises(ValueError, match=f"an image has {tokens} tokens"):
        image_ids(Odd())


def test_an_image_is_encoded_once_and_when_it_is_first_fed() -> None:
    encoder, one = Encoder(), image(1)
    kept = features(encoder)
    kept.add([one])
    assert encoder.calls == 0
    ids = image_ids(one)
    rows = kept.rows([ids[3], ids[0]])
    assert rows[:, 1].tolist() == [3, 0]
    assert np.allclose(rows[:, 0], one.pixel_values.mean())
    kept.add([Image(one.pixel_values.copy())])  # the same image in the next turn
    kept.rows(ids)
    assert encoder.calls == 1


def test_tokens_are_taken_as_a_graph_has_them() -> None:
    one, kept = image(1), features(Encoder())
    kept.add([one])
    assert kept.take([1, 2]) is None
    found = kept.take([7, *image_ids(one), 8])
    assert found is not None
    assert found.tokens.tolist() == [7, *[0] * TILE_TOKENS, 8]
    assert found.places == list(range(1, TILE_TOKENS + 1))
    assert found.features.shape == (TILE_TOKENS, HIDDEN)


def test_tiles_are_encoded_as_far_as_they_are_fed() -> None:
    encoder, two = Encoder(), image(2, tiles=3)
    kept = features(encoder)
    kept.add([two])
    ids = image_ids(two)
    assert kept.rows(ids[: TILE_TOKENS + 1])[-1, 1] == 0  # the first row of the second tile
    assert encoder.calls == 2
    rows = kept.rows(ids)
    assert encoder.calls == 3
    assert np.allclose(rows[::TILE_TOKENS, 0], two.pixel_values.mean(axis=(1, 2, 3)))


class Tiles:
    """An image in a tile and a smaller one. tokens: of the prompt, whatever rows the tiles become."""

    sha256, grid = "01" * 32, None

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.pixel_values = [np.full((3, 8, 8), 1, np.float32), np.full((3, 8, 4), 2, np.float32)]


class Unequal:
    """A row for each 16 pixels."""

    def encode(self, pixel_values: np.ndarray) -> np.ndarray:
        assert pixel_values.shape[:3] == (1, 3, 8)
        return np.full((pixel_values[0, 0].size // 16, HIDDEN), pixel_values.mean(), np.float32)


def test_tiles_of_several_sizes_become_rows_one_behind_the_other() -> None:
    one, kept = Tiles(6), ImageFeatures(Unequal)
    kept.add([one])
    ids = image_ids(one)
    assert kept.rows(ids[:4])[:, 0].tolist() == [1] * 4
    assert kept.rows(ids)[:, 0].tolist() == [1] * 4 + [2] * 2


@pytest.mark.parametrize(("tokens", "made"), [(3, "4 and more"), (4, "4 and more"), (5, "6"), (7, "6")])
def test_tiles_of_several_sizes_that_become_other_numbers_of_rows_are_refused(tokens: int, made: str) -> None:
    one, kept = Tiles(tokens), ImageFeatures(Unequal)
    kept.add([one])
    with pytest.raises(ValueError, match=f"{tokens} tokens in the prompt, and its pixels become {made}:"):
        kept.rows(image_ids(one))


def test_encoding_is_stopped_between_two_tiles_and_goes_on_later() -> None:
    encoder, two = Encoder(), image(2, tiles=3)
    kept = features(encoder)
    kept.add([two])
    with pytest.raises(Interrupted):
        kept.rows(image_ids(two), lambda: encoder.calls == 2)
    assert encoder.calls == 2
    assert len(kept.rows(image_ids(two))) == two.tokens
    assert encoder.calls == 3


def test_an_image_that_is_gone_is_named_as_such() -> None:
    one, kept = image(1), features(Encoder())
    kept.add([one])
    ids = image_ids(one)
    assert ids[0] in kept
    assert ids[0] + TILE_TOKENS not in kept  # behind its last row
    del one
    gc.collect()
    assert ids[0] not in kept
    with pytest.raises(ValueError, match="no longer there"):
        kept.rows(ids)


def test_features_used_least_recently_go_first() -> None:
    encoder, images = Encoder(), [image(seed) for seed in range(3)]
    kept = features(encoder, budget_bytes=2 * TILE_TOKENS * HIDDEN * 4)
    kept.add(images)
    for at in (0, 1, 0, 2, 0):  # 2 takes the room of 1
        kept.rows(image_ids(images[at]))
    assert encoder.calls == 3
    kept.rows(image_ids(images[1]))
    assert encoder.calls == 4


def test_pixels_that_become_another_number_of_rows_are_refused() -> None:
    class Longer(Image):
        @property
        def tokens(self) -> int:
            return 2 * TILE_TOKENS

    odd, kept = Longer(image(1).pixel_values), features(Encoder())
    kept.add([odd])
    with pytest.raises(
        ValueError, match=f"{2 * TILE_TOKENS} tokens in the prompt, and its pixels become {TILE_TOKENS}"
    ):
        kept.rows(image_ids(odd))


@pytest.mark.parametrize("shape", [(1, 3, 32, 31), (3, 32, 32), (0, 3, 32, 32), (2, 3, 32, 32), (1, 1, 32, 32)])
def test_a_tile_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    vision = describe(Config({**SMOLVLM, "model_type": "smolvlm"})).vision
    assert isinstance(vision, Vision)
    with pytest.raises(ValueError, match=r"expected \[1, 3, 32, 32\]"):
        check_tile(vision, np.zeros(shape, np.float32))
