"""Images in models with states of fixed size (Qwen 3.5, LFM2-VL): whole, in pieces, rewound; against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import embedllm
from embedllm import Cancel, Model
from embedllm.backends.base import FeedsAll
from embedllm.backends.images import IMAGE_IS_GONE
from embedllm.export import Recipe, convert
from tests.backends.test_mrope import PROMPT, TALL, WIDE, asked, fed, prompt, replied
from tests.support.dynamic_vision import DynamicImage, dynamic_checkpoint, dynamic_image

TOLERANCE = 3e-4  # of the spread: the rounding of a state adds up over the tokens


@pytest.fixture(scope="module", params=["qwen3_5", "lfm2_vl"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recurrent")
    return convert(dynamic_checkpoint(root / "checkpoint", request.param), root / "package", Recipe(bits=32))


@pytest.fixture(scope="module", params=["cpu", "openvino"])
def llm(request: pytest.FixtureRequest, package: Path) -> Iterator[Model]:
    with embedllm.load(package, device=request.param, exact=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(package: Path) -> Iterator[Model]:
    with embedllm.load(package, device="reference") as opened:
        yield opened


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert expected.std() > 0.1  # else a part could be missing unseen
    assert np.abs(found - expected).max() <= TOLERANCE * expected.std()


def test_logits_follow_the_reference_in_pieces_too(llm: Model, reference: Model) -> None:
    expected = fed(reference, prompt(reference, *PROMPT))
    ids = prompt(llm, *PROMPT)
    for step in (0, 1, 5):  # cuts in the middle of images
        assert_close(fed(llm, ids, step=step), expected)


def test_an_image_moves_what_follows(llm: Model) -> None:
    """By its rows and columns: its positions are those of M-RoPE, or learned ones."""
    values = np.zeros((1, 3, 16, 48), np.float32)  # the same pixels in another order
    images = DynamicImage(values), DynamicImage(values.reshape(1, 3, 48, 16) + np.float32(1e-7))
    first, second = (fed(llm, prompt(llm, [5], image, [6]))[-1] for image in images)
    assert np.abs(first - second).max() > 1e-3 * first.std()


@pytest.mark.parametrize("cut", [1, 5, 10, 13], ids=["before", "in the first", "between", "in the second"])
def test_a_sequence_that_was_rewound_goes_on_as_a_new_one(llm: Model, cut: int) -> None:
    """Tokens from the last copy of its states on are fed again, those of images among them."""
    ids = prompt(llm, *PROMPT)
    other = [*ids[:cut], 11, 12]

    def feed() -> np.ndarray:
        session = llm.runner.engine.open()
        assert isinstance(session, FeedsAll)
        for at in range(0, len(ids), 4):
            session.feed_all(ids[at : at + 4])
        session.rewind(cut)
        found = [session.feed_all(other[cut:])]
        session.rewind(cut)
        found.append(session.feed_all(ids[cut:]))
        session.close()
        return np.concatenate(found)

    assert_close(llm.runner.call(feed), np.concatenate([fed(llm, other)[cut:], fed(llm, ids)[cut:]]))


def test_turns_of_a_conversation_get_the_replies_of_new_sequences(llm: Model) -> None:
    """The second one takes up the first one's sequence, and the third one goes back behind its first image."""
    turns = [(asked(llm, [5], WIDE, [6, 7])), asked(llm, [5], WIDE, [6, 7], TALL, [8]), asked(llm, [5], WIDE, [9])]
    expected = []
    for turn in turns:
        llm.release()
        expected.append(replied(llm, turn))
    llm.release()
    assert [replied(llm, turn) for turn in turns] == expected


def test_several_at_once_get_what_each_gets_alone(llm: Model) -> None:
    requests = [asked(llm, [5 + seed], dynamic_image(30 + seed, 2 + seed, 3), [6]) for seed in range(3)]
    requests += [llm.request([5, 6, 7 + seed], temperature=0, max_tokens=8, stop_tokens=[]) for seed in range(2)]
    alone = [replied(llm, request) for request in requests]
    assert [[chunk.token for chunk in chunks] for chunks in llm.runner.run_all(requests, Cancel())] == alone


def test_an_image_that_is_gone_is_named(llm: Model) -> None:
    ids = prompt(llm, [5], dynamic_image(77, 2, 2), [6])
    with pytest.raises(ValueError, match=IMAGE_IS_GONE[:20]):
        fed(llm, [*ids[:-1], ids[1] + (1 << 40), 7])
