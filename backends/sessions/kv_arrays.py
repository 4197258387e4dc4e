"""KV states as arrays: several in a row as one, and those of a device on the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues


def joined(states: Sequence[KeyValues]) -> KeyValues:
    """The state of all tokens, from those of their parts in order."""
    if len(states) == 1:
        return states[0]
    if is_on_device(states[0]):
        return reduce(lambda before, state: before.with_next(state), states)  # type: ignore[attr-defined]  # DeviceState
    return [
        (np.concatenate([key for key, _ in layer], axis=1), np.concatenate([value for _, value in layer], axis=1))
        for layer in zip(*states, strict=True)
    ]


def is_on_device(state: KeyValues) -> bool:
    """Whether its arrays are in a device's own memory (backends/gpu/device_memory.py: DeviceState)."""
    return getattr(state, "is_on_device", False)


def can_join(state: KeyValues, following: KeyValues) -> bool:
    """Whether joined() takes them one behind the other: on a device, parts of the same arrays only."""
    if is_on_device(state) and is_on_device(following):
        return state.is_before(following)  # type: ignore[attr-defined]  # DeviceState
    return not is_on_device(state) and not is_on_device(following)


def on_host(state: KeyValues) -> KeyValues:
    """The state in the host's memory."""
    if not is_on_device(state):
        return state
    return [(np.asarray(key), np.asarray(value)) for key, value in state]
