"""The devices that take images, and what a model computes there of prompts with images of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import embedllm
from embedllm import Cancel, Model
from embedllm.backends.base import FeedsAll
from embedllm.backends.images import ImageFeatures, image_ids, images_of, place_images
from embedllm.errors import DeviceUnavailable
from tests.support.dynamic_vision import IMAGE_TOKEN, DynamicImage, dynamic_prompt
from tests.support.vision import Image

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

    from embedllm.generation.request import Request


@dataclass(frozen=True)
class Case:
    """A device in one precision."""

    device: str
    exact: bool = True
    tolerance: float = 1e-4  # of the spread


DEVICES = ("cpu", "openvino")


def cases(*, exact: float = 1e-4, half: float = 0.06) -> tuple[ParameterSet, ...]:
    """All devices. Tolerances are of the spread: exact where all compute in float32, half where all is float16.

    half: measured 0.011 to 0.025 of logits on lavapipe, up to 0.051 on an H200 (4e-6 in float32).
    """
    return (
        *(pytest.param(Case(device, tolerance=exact), id=device) for device in DEVICES),
        pytest.param(Case("webgpu", tolerance=exact), id="webgpu, float32", marks=pytest.mark.webgpu),
        pytest.param(Case("webgpu", exact=False, tolerance=half), id="webgpu, float16", marks=pytest.mark.webgpu),
        pytest.param(Case("cuda", exact=False, tolerance=half), id="cuda", marks=pytest.mark.gpu),
    )


@contextmanager
def loaded(package: Path, case: Case) -> Iterator[Model]:
    """Skips the test where there is no such device."""
    try:
        opened = embedllm.load(package, device=case.device, exact=case.exact)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def case_fixture(found: Sequence[ParameterSet]) -> Callable[..., Case]:
    """A module's fixture `case`: these devices, on which `llm` (tests/backends/conftest.py) is its `package`."""

    @pytest.fixture(scope="module", params=found)
    def case(request: pytest.FixtureRequest) -> Case:
        assert isinstance(request.param, Case)
        return request.param

    return case


def features(llm: Model) -> ImageFeatures:
    found = images_of(llm.runner.engine)
    assert found is not None
    return found


def rows(llm: Model, image: DynamicImage | Image) -> np.ndarray:
    """The features of an image, whoever gave it before."""
    features(llm).add([image])
    return llm.runner.call(lambda: features(llm).rows(image_ids(image)))


def fed(llm: Model, ids: list[int], *, step: int = 0) -> np.ndarray:
    """The logits of a new sequence. step: tokens fed at once, or more, up to the end of an image; 0: all."""

    def feed() -> np.ndarray:
        session, images = llm.runner.engine.open(), features(llm)
        assert isinstance(session, FeedsAll)
        found: list[np.ndarray] = []
        while (at := session.position) < len(ids):
            found.append(session.feed_all(ids[at : images.end_of_piece(ids, at + (step or len(ids)))]))
        session.close()
        return np.concatenate(found)

    return llm.runner.call(feed)


def prompt(llm: Model, *parts: DynamicImage | list[int]) -> list[int]:
    tokens, images = dynamic_prompt(*parts)
    features(llm).add(images)
    return place_images(tokens, images, IMAGE_TOKEN)


def asked(llm: Model, *parts: DynamicImage | list[int], tokens: int = 8) -> Request:
    """A greedy request."""
    plain = llm.request([5], temperature=0, max_tokens=tokens, stop_tokens=[])
    made = replace(plain, prompt=prompt(llm, *parts), images=dynamic_prompt(*parts)[1])
    llm.runner.check(made)
    return made


def replied(llm: Model, request: Request) -> list[int | None]:
    return [chunk.token for chunk in llm.runner.stream(request, Cancel())]


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """tolerance: of the spread."""
    assert expected.std() > 0.1  # else a part could be missing unseen
    assert np.abs(found - expected).max() <= tolerance * expected.std()
