"""The two buffers of each state, where a device's floats are not the host's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.ort.recurrent_state import HostStateMemory, States
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from tests.support.tiny_recurrent import tiny_lfm2


class HalfMemory(HostStateMemory):
    """As a GPU's that runs float16 graphs."""

    dtype = np.float16


@pytest.fixture
def states(tmp_path: Path) -> States:
    config = json.loads((tiny_lfm2(tmp_path) / "config.json").read_text())
    return States(describe(Config(config)), HalfMemory())


def test_what_was_put_is_read_back_in_float32_until_a_reset(states: States) -> None:
    values = np.arange(128, dtype=np.float32).reshape(2, 64) + np.float32(0.5)
    states.put({"conv.0": values})
    found = states.copied()["conv.0"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)
    states.reset()
    assert not states.copied()["conv.0"].any()
    np.testing.assert_array_equal(found, values)  # a copy


def test_a_step_takes_the_other_buffer_and_a_reset_changes_only_the_one_it_reads(states: States) -> None:
    values = np.ones((2, 64), np.float32)
    states.put({"conv.0": values})
    states.advance()
    assert not states.copied()["conv.0"].any()
    states.reset()
    states.advance()
    np.testing.assert_array_equal(states.copied()["conv.0"], values)
