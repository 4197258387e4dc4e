"""Buckets of distances and slopes against transformers, and against the numbers of the ALiBi paper."""

from __future__ import annotations

import numpy as np
import pytest

from embedllm.package.architecture.position_bias import DisentangledAttention, RelativePositionBias
from embedllm.package.architecture.weights import Linear
from embedllm.package.position_bias import alibi_slopes, buckets

LONGEST = 2048


def table(rows: int) -> Linear:
    return Linear(name="position_bias", source="table", rows=rows, columns=4)


@pytest.mark.peer
def test_buckets_of_mpnet_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    mpnet = pytest.importorskip("transformers.models.mpnet.modeling_mpnet")
    keys_behind = -torch.arange(1 - LONGEST, LONGEST)  # relative_position there is of the key to the query
    expected = mpnet.MPNetEncoder.relative_position_bucket(keys_behind, num_buckets=32, max_distance=128)
    found = buckets(RelativePositionBias(table=table(32), max_distance=128), LONGEST)
    assert np.array_equal(found, expected.numpy())


@pytest.mark.peer
@pytest.mark.parametrize(("count", "longest"), [(256, 512), (8, 130), (16, 40), (7, 512)])
def test_buckets_of_deberta_are_those_of_transformers(count: int, longest: int) -> None:
    torch = pytest.importorskip("torch")
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distances = torch.arange(1 - LONGEST, LONGEST)
    place = deberta.make_log_bucket_position(distances, count, longest).to(torch.long) + count
    bias = DisentangledAttention(table=table(2 * count), norm=None, buckets=count, max_distance=longest)
    assert np.array_equal(buckets(bias, LONGEST), place.clamp(0, 2 * count - 1).numpy())


def test_distances_without_buckets_are_clamped_to_the_table() -> None:
    bias = DisentangledAttention(table=table(6), norm=None, buckets=3, max_distance=0)
    assert buckets(bias, 5).tolist() == [0, 0, 1, 2, 3, 4, 5, 5, 5]


def test_slopes_are_those_of_the_paper() -> None:
    assert alibi_slopes(8, 8.0).tolist() == [2.0**-power for power in range(1, 9)]
    assert np.allclose(alibi_slopes(3, 8.0), [2**-4, 2**-8, 2**-2])
