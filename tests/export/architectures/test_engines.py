"""Every family as a folder, on ONNX Runtime and on OpenVINO, against transformers.

Packed matrices are tested field by field against the reference: tests/backends/{ort,openvino}/test_families.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from embedllm import Sampling, load
from embedllm.backends.devices.registry import devices, open_engine
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.support.families import FAMILIES, WINDOW, make_checkpoint

if TYPE_CHECKING:
    from torch.nn import Module

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

PROMPT, STEPS, GREEDY = 3 * WINDOW, 4, 12  # tokens
STOP = 2  # as tests/support/families.py has it
CONTEXT = 64
TOLERANCE = 1e-3  # of the spread of the logits
ENGINES = ("cpu", "openvino")


class Made:
    """A case's checkpoint, its model in transformers, and the folder exported of it, which has its very weights."""

    def __init__(self, folder: Path, name: str) -> None:
        self.model = make_checkpoint(folder / "checkpoint", FAMILIES[name])
        self.package = convert(folder / "checkpoint", folder / "package", Recipe(bits=16, context=CONTEXT))
        self.tokens: list[int] = np.random.default_rng(1).integers(0, 300, PROMPT + STEPS).tolist()

    def logits(self, device: str) -> np.ndarray:
        """Of the prompt at once, of more that is forgotten again, and of the rest one by one."""
        found = {each.name: each for each in devices()}
        engine = open_engine(open_package(self.package), found[device], exact=True)
        session = engine.open()
        prompt = session.feed_all(self.tokens[:PROMPT])  # type: ignore[attr-defined]  # all of these have it
        session.feed([1, 2, 3])
        session.rewind(PROMPT)
        steps = [np.array(session.feed([token]).values(range(307)), np.float32)[None] for token in self.tokens[PROMPT:]]
        engine.close()
        return np.concatenate([prompt, *steps])


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("family"), request.param)


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= TOLERANCE * expected.std())


@pytest.mark.parametrize("device", ENGINES)
def test_sixteen_bits_follow_transformers(made: Made, device: str) -> None:
    with torch.no_grad():
        expected = made.model(torch.tensor([made.tokens])).logits[0].numpy()
    assert near(made.logits(device), expected)


def test_replies_alone_and_together_are_those_of_transformers(made: Made) -> None:
    """Greedy, of prompts of different lengths."""
    prompts = [made.tokens[:PROMPT], made.tokens[3:9], made.tokens[1:20]]
    expected = [_greedy(made.model, prompt) for prompt in prompts]
    with load(made.package, device="cpu", exact=True, prefix_cache=0) as llm:

        def reply(prompt: Sequence[int]) -> list[int]:
            chunks = llm.stream(prompt, Sampling(temperature=0), max_tokens=GREEDY, stop_tokens=[STOP])
            return [chunk.token for chunk in chunks if chunk.token is not None]

        assert [reply(prompt) for prompt in prompts] == expected
        with ThreadPoolExecutor(len(prompts)) as pool:
            assert list(pool.map(reply, prompts)) == expected


def _greedy(model: Module, prompt: Sequence[int]) -> list[int]:
    """The likeliest tokens up to a stop token, one after the other, each by a pass over all that is before."""
    tokens = list(prompt)
    with torch.no_grad():
        while len(tokens) < len(prompt) + GREEDY and tokens[-1] != STOP:
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]
