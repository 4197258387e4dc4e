"""SparseMixer (Phi-MoE) against hand-made weights, and those of transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embedllm.backends.reference.math import expert_weights
from embedllm.package.architecture.mlp import Moe
from tests.support.mixtures import mixture


def sparse_mixer(epsilon: float, experts: int) -> Moe:
    moe = mixture(experts=experts).layers[0].mlp
    assert isinstance(moe, Moe)
    return replace(moe, scoring_func="sparsemixer", jitter_eps=epsilon)


@pytest.mark.parametrize(
    ("logits", "weights"),
    [
        # 1.9 is less than 2 by no more than 0.2 * 2; behind it nothing is near to 1.9
        ([2, 1, 1.9, -1], [1 / (1 + np.exp(-0.1)), 0, 1, 0]),
        # -8 is less than -7 by no more than 0.2 * 8, -9 by more than 0.2 * 9; both are near to each other
        ([-9, -7, -8, -80], [0, 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-1)), 0]),
        # alike: the first two are chosen, the first one by all, the second by those that are left
        ([1, 1, 1, 1], [1 / 4, 1 / 3, 0, 0]),
        ([0, 0, 0, 0], [1 / 4, 1 / 3, 0, 0]),
    ],
)
def test_an_expert_is_weighed_among_those_that_are_near(logits: list[float], weights: list[float]) -> None:
    found = expert_weights(sparse_mixer(0.1, 4), np.array([logits], np.float32), None)
    np.testing.assert_allclose(found, [weights], atol=1e-6)


@pytest.mark.peer
@pytest.mark.parametrize("epsilon", [0.01, 0.25])
def test_weights_are_those_of_transformers(epsilon: float) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.phimoe.modeling_phimoe")
    logits = np.random.default_rng(1).standard_normal((500, 16)).astype(np.float32) * np.float32(2)
    logits[:100] = np.round(logits[:100])  # of which many are alike
    weights, experts = theirs.sparsemixer(torch.from_numpy(logits), epsilon, training=False)
    expected = torch.zeros(logits.shape).scatter(1, experts, weights).numpy()
    np.testing.assert_allclose(expert_weights(sparse_mixer(epsilon, 16), logits, None), expected, atol=1e-6)
