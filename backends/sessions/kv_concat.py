"""KV states as arrays: several in a row as one."""

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
