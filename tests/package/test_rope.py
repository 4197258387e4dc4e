"""Rotary tables: worked by hand, and equal to what transformers turns by."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.package.architecture.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    Rope,
    RopeScaling,
    YarnScaling,
)
from embedllm.package.rope import tables
from tests.support.tiny import tiny_config

if TYPE_CHECKING:
    from embedllm.types import F32

LLAMA3 = Llama3Scaling(factor=8, low_frequency_factor=1, high_frequency_factor=4, original_context=1024)
YARN = YarnScaling(factor=4, original_context=64, beta_fast=4, beta_slow=1.5, attention_factor=1.25, truncate=True)


def angles(rope: Rope, context: int) -> F32:
    """The angles behind the tables, in radians; each below pi in the tests that ask."""
    cos, sin = tables(rope, context)
    return np.arctan2(sin, cos)


def test_plain_tables_by_hand() -> None:
    """Base 10000 and 4 dimensions: the first pair turns by 1 a token, the second by 10000**-0.5 = 0.01."""
    cos, sin = tables(Rope(base=10_000, rotary_dim=4), 101)
    assert cos.shape == sin.shape == (101, 2)
    assert cos.dtype == sin.dtype == np.float32
    assert cos[0].tolist() == [1, 1]
    assert sin[0].tolist() == [0, 0]
    assert cos[1] == pytest.approx([0.54030231, 0.99995000], abs=1e-7)
    assert sin[1] == pytest.approx([0.84147098, 0.00999983], abs=1e-7)
    assert cos[100] == pytest.approx([0.86231887, 0.54030231], abs=1e-5)


def test_linear_scaling_divides_the_positions() -> None:
    plain = tables(Rope(base=10_000, rotary_dim=8), 25)
    scaled = tables(Rope(base=10_000, rotary_dim=8, scaling=LinearScaling(factor=4)), 100)
    assert np.array_equal(np.stack(scaled)[:, ::4], np.stack(plain))


def test_llama3_scaling_by_hand() -> None:
    """Frequencies 1, 0.01 and 0.0001 have wavelengths of 6.28, 628 and 62832 tokens.

    Below 1024/4 one is kept, above 1024/1 divided by 8. Between them the share that is kept is
    (1024/628.3 - 1) / (4 - 1) = 0.20992: 0.01 * (0.20992 + 0.79008 / 8) = 0.0030868.
    """
    turned = angles(Rope(base=1e6, rotary_dim=6, scaling=LLAMA3), 2)[1]
    assert turned == pytest.approx([1, 0.0030868, 0.0000125], rel=1e-4)


def test_yarn_scaling_by_hand() -> None:
    """Frequencies 1, 1/2, 1/4, 1/8; the ramp goes from dimension 1 to 3.

    8 * ln(64 / (2 pi * 4)) / (2 ln 16) = 1.35 and 8 * ln(64 / (2 pi * 1.5)) / (2 ln 16) = 2.76, rounded down and up.
    So the first two are kept, the third is half way between 1/4 and 1/16, the last is 1/8 divided by 4.
    """
    cos, sin = tables(Rope(base=16, rotary_dim=8, scaling=YARN), 2)
    assert cos[0] == pytest.approx([1.25] * 4)
    assert np.arctan2(sin, cos)[1] == pytest.approx([1, 0.5, 0.15625, 0.03125], rel=1e-6)
    assert np.hypot(sin, cos) == pytest.approx(np.full((2, 4), 1.25))


def test_yarn_without_rounding_begins_and_ends_between_dimensions() -> None:
    """The third: (2 - 1.348) / (2.763 - 1.348) = 0.4608 of the way: 1/16 * 0.4608 + 1/4 * 0.5392."""
    turned = angles(Rope(base=16, rotary_dim=8, scaling=dataclasses.replace(YARN, truncate=False)), 2)[1]
    assert turned == pytest.approx([1, 0.5, 0.1636, 0.03125], rel=1e-3)


def test_dynamic_scaling_by_hand() -> None:
    """At twice the trained length: the base is 10000 * (2 * 2 - 1) ** (4 / 2) = 90000, its root 300."""
    scaling = DynamicScaling(factor=2, original_context=16)
    cos, sin = tables(Rope(base=10_000, rotary_dim=4, scaling=scaling), 32)
    plain = tables(Rope(base=10_000, rotary_dim=4), 32)
    assert np.array_equal(np.stack((cos, sin))[:, :16], np.stack(plain)[:, :16])
    assert np.arctan2(sin, cos)[31, 1] == pytest.approx(31 / 300, rel=1e-5)
    assert np.arctan2(sin, cos)[16, 1] == pytest.approx(16 / (100 * (2 * 17 / 16 - 1)), rel=1e-5)


SCALINGS = [None, LinearScaling(factor=3), DynamicScaling(factor=2, original_context=50), LLAMA3, YARN]


@given(
    st.sampled_from(SCALINGS), st.sampled_from((4, 16, 64, 128)), st.sampled_from((1e4, 1e6)), st.integers(1, 200),
    st.integers(1, 200),
)  # fmt: skip
def test_a_shorter_context_has_the_first_rows_of_a_longer_one(
    scaling: RopeScaling | None, rotated: int, base: float, context: int, more: int
) -> None:
    """So that what a model says does not depend on the context that it was exported with."""
    rope = Rope(base=base, rotary_dim=rotated, scaling=scaling)
    short, long = np.stack(tables(rope, context)), np.stack(tables(rope, context + more))
    assert short.shape == (2, context, rotated // 2)
    assert np.array_equal(long[:, :context], short)
    assert np.array_equal(np.stack(tables(rope, context + more, context)), long[:, context:])  # the rest, by itself
    assert np.abs(np.hypot(*long) - np.hypot(*long)[0, 0]).max() <= 1e-6
    if isinstance(scaling, YarnScaling):
        assert long[0, 0, 0] == np.float32(scaling.attention_factor)


# Against transformers

HUGE = {"max_position_embeddings": 4096, "head_dim": 128}
LLAMA_3_1 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "plain, base 1e6": {"rope_theta": 1e6},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama 3.1": {"rope_theta": 5e5, "rope_scaling": {**LLAMA_3_1, "original_max_position_embeddings": 1024}},
    "llama 3.2": {
        "rope_theta": 5e5,
        "rope_scaling": {**LLAMA_3_1, "factor": 32.0, "original_max_position_embeddings": 2048},
    },
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
    "yarn of the trained length": {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn, other betas": {
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512,
                         "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.3},
    },
    "yarn whose ramp ends beyond the last pair": {
        "rope_theta": 100.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    },
    "yarn, untruncated": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
                         "truncate": False},
    },
    "yarn of DeepSeek": {
        "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 1024,
                         "mscale": 0.7, "mscale_all_dim": 1.0},
    },
}  # fmt: skip


@pytest.mark.peer
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("head_dim", [16, 128])
def test_frequencies_equal_those_of_transformers(case: str, head_dim: int) -> None:
    """By position 1, whose angles are the frequencies; and the factor of cos and sin by position 0.

    NumPy's powers and torch's differ by a last bit (6e-8); where Llama 3 begins to blend, a factor of 32 makes eleven
    times as much of it.
    """
    torch, init = pytest.importorskip("torch"), pytest.importorskip("transformers.modeling_rope_utils")
    config = {**tiny_config("llama", **HUGE), **CASES[case], "head_dim": head_dim}
    theirs, kind = their_config(config)
    if kind == "default":
        embedding = pytest.importorskip("transformers.models.llama.modeling_llama").LlamaRotaryEmbedding
        frequencies, factor = embedding.compute_default_rope_parameters(theirs)
    else:
        frequencies, factor = init.ROPE_INIT_FUNCTIONS[kind](theirs, torch.device("cpu"))
    rope = describe(Config(config)).rope
    cos, sin = (np.asarray(table, np.float64) for table in tables(rope, 2))
    assert cos[0] == pytest.approx([factor] * (head_dim // 2), rel=1e-7)
    assert np.arctan2(sin[1], cos[1]) == pytest.approx(frequencies.numpy(), rel=7e-7 if kind == "llama3" else 3e-7)


@pytest.mark.peer
@pytest.mark.parametrize("case", CASES)
def test_tables_equal_those_of_transformers(case: str) -> None:
    """A frequency that differs by its last bit differs the more, the further it has turned."""
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = {**tiny_config("llama", **HUGE), **CASES[case]}
    embedding = llama.LlamaRotaryEmbedding(their_config(config)[0])
    with torch.no_grad():
        theirs = embedding(torch.zeros(1), torch.arange(4096)[None])
    ours = tables(describe(Config(config)).rope, 4096)
    turned = np.arange(4096)[:, None]  # at most, in radians
    for table, other in zip(ours, theirs, strict=True):
        gap = np.abs(table - other[0, :, :64].numpy())
        assert np.all(gap <= 3e-7 + 3e-7 * turned)


@pytest.mark.peer
@pytest.mark.parametrize("length", [4096, 4097, 5000, 8192])
def test_dynamic_tables_beyond_the_trained_length_equal_those_of_transformers(length: int) -> None:
    """transformers turns a token by the length that its sequence has reached with it."""
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = {**tiny_config("llama", **HUGE), **CASES["dynamic"]}
    embedding = llama.LlamaRotaryEmbedding(their_config(config)[0])
    with torch.no_grad():
        theirs = embedding(torch.zeros(1), torch.tensor([[length - 1]]))
    rope = describe(Config(config)).rope
    for table, other in zip(tables(rope, 8192), theirs, strict=True):
        turned = length * np.float64(rope.base) ** (-np.arange(64) / 64)  # radians
        assert np.all(np.abs(table[length - 1] - other[0, 0, :64].numpy()) <= 1e-6 + 5e-7 * turned)


def their_config(config: dict[str, object]) -> tuple[object, str]:
    """The configuration of transformers and its rope type."""
    made = pytest.importorskip("transformers").LlamaConfig(**config)
    assert math.isclose(made.rope_parameters["rope_theta"], float(str(config["rope_theta"])))
    return made, made.rope_parameters["rope_type"]
