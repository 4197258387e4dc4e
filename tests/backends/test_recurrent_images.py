"""Images in models with states of fixed size (Qwen 3.5, LFM2-VL): whole, in pieces, rewound; against the reference.

On GPUs: .ci/lavapipe.sh pytest -m webgpu tests/backends/test_recurrent_images.py
On one of NVIDIA's: pytest -m gpu tests/backends/test_recurrent_images.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedllm import Cancel, Model
from embedllm.backends.base import FeedsAll
from embedllm.backends.images import IMAGE_IS_GONE
from embedllm.export import Recipe, convert
from tests.backends.test_mrope import PROMPT, TALL, WIDE
from tests.images.test_chat import asked as message
from tests.images.test_chat import picture
from tests.support.dynamic_vision import DynamicImage, dynamic_chat_checkpoint, dynamic_image
from tests.support.image_devices import (
    Case,
    asked,
    assert_close,
    case_fixture,
    cases,
    fed,
    prompt,
    replied,
    rows,
)

# of the spread: where all compute in float32 the rounding of a state adds up over the tokens; and of float16
CASES = cases(exact=3e-4, half=0.1)  # measured on lavapipe: 0.051 at most


@pytest.fixture(scope="module", params=["qwen3_5", "lfm2_vl"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recurrent")
    return convert(dynamic_chat_checkpoint(root / "checkpoint", request.param), root / "package", Recipe(bits=32))


case = case_fixture(CASES)


@pytest.mark.parametrize("image", [WIDE, TALL, dynamic_image(3, 1, 1)], ids=["wide", "tall", "small"])
def test_features_follow_the_reference(llm: Model, reference: Model, case: Case, image: DynamicImage) -> None:
    assert_close(rows(llm, image), rows(reference, image), case.tolerance)


def test_logits_follow_the_reference_in_pieces_too(llm: Model, reference: Model, case: Case) -> None:
    expected = fed(reference, prompt(reference, *PROMPT))
    ids = prompt(llm, *PROMPT)
    for step in (0, 1, 5):  # cuts in the middle of images
        assert_close(fed(llm, ids, step=step), expected, case.tolerance)


def test_an_image_moves_what_follows(llm: Model) -> None:
    """By its rows and columns: its positions are those of M-RoPE, or learned ones."""
    values = np.zeros((1, 3, 16, 48), np.float32)  # the same pixels in another order
    images = DynamicImage(values), DynamicImage(values.reshape(1, 3, 48, 16) + np.float32(1e-7))
    first, second = (fed(llm, prompt(llm, [5], image, [6]))[-1] for image in images)
    assert np.abs(first - second).max() > 1e-3 * first.std()


@pytest.mark.parametrize("cut", [1, 5, 10, 13], ids=["before", "in the first", "between", "in the second"])
def test_a_sequence_that_was_rewound_goes_on_as_a_new_one(llm: Model, case: Case, cut: int) -> None:
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

    expected = np.concatenate([fed(llm, other)[cut:], fed(llm, ids)[cut:]])
    assert_close(llm.runner.call(feed), expected, case.tolerance)


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


def test_a_prefix_with_an_image_is_taken_from_another_sequence_and_from_memory(llm: Model) -> None:
    text = [5 + place % 90 for place in range(40)]
    requests = [asked(llm, text, WIDE, [6 + seed, 7, 8]) for seed in range(3)]
    expected = []
    for request in requests:
        llm.release()
        expected.append(replied(llm, request))
    llm.release()
    replies = [list(chunks) for chunks in llm.runner.run_all(requests, Cancel())]
    assert [[chunk.token for chunk in chunks] for chunks in replies] == expected
    assert all(chunks[-1].statistics.cached_tokens > len(text) for chunks in replies[1:])
    replied(llm, asked(llm, [9] * 50))
    assert [replied(llm, request) for request in requests] == expected


def test_an_image_that_is_gone_is_named(llm: Model) -> None:
    ids = prompt(llm, [5], dynamic_image(77, 2, 2), [6])
    with pytest.raises(ValueError, match=IMAGE_IS_GONE[:20]):
        fed(llm, [*ids[:-1], ids[1] + (1 << 40), 7])


def test_steps_are_captured_where_those_of_text_models_are(llm: Model) -> None:
    """Inputs of images that nothing is bound to must not stand in the way."""
    assert getattr(llm.runner.engine, "captures", True)


def test_greedy_tokens_follow_the_reference(llm: Model, reference: Model, case: Case) -> None:
    if not case.exact:
        pytest.skip("random weights in float16 may choose others")
    assert replied(llm, asked(llm, *PROMPT)) == replied(reference, asked(reference, *PROMPT))


def test_a_chat_sees_images_of_odd_sizes(llm: Model, reference: Model, case: Case) -> None:
    parts = [{"type": "image", "image": picture(1, 50, 21)}, "and", {"type": "image", "image": picture(2, 9, 64)}]
    found, expected = (
        each.chat(message(*parts), temperature=0, max_tokens=6, stop_tokens=[]) for each in (llm, reference)
    )
    assert found.statistics.prompt_tokens == expected.statistics.prompt_tokens
    assert len(found.tokens) == 6
    if case.exact:
        assert found.tokens == expected.tokens
