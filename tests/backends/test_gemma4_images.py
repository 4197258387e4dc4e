"""Images of Gemma 4 on every device that takes them, against the NumPy reference.

On GPUs: .ci/lavapipe.sh pytest -m webgpu tests/backends/test_gemma4_images.py
On one of NVIDIA's: pytest -m gpu tests/backends/test_gemma4_images.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

import embedllm
from embedllm import Model
from embedllm.export import Recipe, convert
from tests.images.test_chat import asked as message
from tests.images.test_chat import picture
from tests.support.dynamic_vision import DynamicImage, dynamic_image
from tests.support.gemma4 import gemma4_checkpoint, gemma4_config
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

DEVICES = cases(half=0.1)  # of the spread; in float16 0.06 on lavapipe, of text too
CASES = {  # config.json
    # E2B and E4B: causal, per-layer embeddings, KV that layers share
    "small": gemma4_config("small", {"sliding_window": 8}),
    # 26B-A4B and 31B: tokens of an image attend to one another in layers with a window
    "large": gemma4_config("large"),
    # 12B: a matrix and norms in place of an encoder
    "unified": gemma4_config("unified"),
    # 31B with images longer than the window, and KV that layers share
    "narrow": gemma4_config("large", {"sliding_window": 8, "num_kv_shared_layers": 3}),
}
WIDE, TALL, SMALL = dynamic_image(1, 3, 5), dynamic_image(2, 5, 2), dynamic_image(3, 1, 1)
PROMPT: tuple[DynamicImage | list[int], ...] = ([5, 6], WIDE, [7], TALL, SMALL, [8, 9, 10])


@pytest.fixture(scope="module", params=CASES)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gemma4")
    return convert(
        gemma4_checkpoint(root / "checkpoint", config=CASES[request.param]), root / "package", Recipe(bits=32)
    )


case = case_fixture(DEVICES)


@pytest.mark.parametrize("image", [WIDE, TALL, SMALL], ids=["wide", "tall", "small"])
def test_features_follow_the_reference(llm: Model, reference: Model, case: Case, image: DynamicImage) -> None:
    assert_close(rows(llm, image), rows(reference, image), case.tolerance)


def test_logits_follow_the_reference_in_pieces_too(llm: Model, reference: Model, case: Case) -> None:
    expected, ids = fed(reference, prompt(reference, *PROMPT)), prompt(llm, *PROMPT)
    for step in (0, 1, 5):  # cuts in the middle of images, where their tokens do not attend to one another
        assert_close(fed(llm, ids, step=step), expected, case.tolerance)


def test_several_at_once_get_what_each_gets_alone(llm: Model) -> None:
    requests = [asked(llm, [5 + seed], dynamic_image(30 + seed, 2 + seed, 3), [6]) for seed in range(3)]
    requests.append(llm.request([5, 6, 7], temperature=0, max_tokens=8, stop_tokens=[]))
    alone = [replied(llm, request) for request in requests]
    assert [[chunk.token for chunk in chunks] for chunks in llm.runner.run_all(requests, embedllm.Cancel())] == alone


def test_text_is_what_it_is_without_images(llm: Model, reference: Model) -> None:
    def text(model: Model) -> list[int]:
        return list(model.generate([5, 6, 7], temperature=0, max_tokens=8, stop_tokens=[]).tokens)

    before = text(llm)
    replied(llm, asked(llm, *PROMPT))
    assert text(llm) == before == text(reference)


def test_greedy_tokens_follow_the_reference(llm: Model, reference: Model, case: Case) -> None:
    if not case.exact:
        pytest.skip("random weights in float16 choose others: nothing divides the scores of attention")
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
