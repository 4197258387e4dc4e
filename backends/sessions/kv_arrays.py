"""KV states as arrays: several in a row as one, and those of a device on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues


def joined(states: Sequence[KeyValues]) -> KeyValues:
    """The state of all tokens, from those of their parts in order."""
    if len(states) == 1:
        return states[0]
    return [
        (np.concatenate([key for key, _ in layer], axis=1), np.concatenate([value for _, value in layer], axis=1))
        for layer in zip(*states, strict=True)
    ]


def is_on_device(state: KeyValues) -> bool:
    """Whether its arrays are in a device's own memory, where only its own engine joins them."""
    return bool(state) and getattr(state[0][0], "is_on_device", False)


def on_host(state: KeyValues) -> KeyValues:
    """The state in the host's memory."""
    if not is_on_device(state):
        return state
    return [(np.asarray(key), np.asarray(value)) for key, value in state]
