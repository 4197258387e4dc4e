"""What tests read of a session's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.backends.base import Session
    from embedllm.types import Logits


def values(logits: Logits) -> np.ndarray:
    """The whole row."""
    return np.array(logits.values(range(logits.size)))


def best(logits: Logits) -> int:
    return int(logits.top(1).tokens[0])


def greedy(session: Session, tokens: list[int], count: int) -> list[int]:
    """That many tokens behind these."""
    found: list[int] = []
    for _ in range(count):
        found.append(best(session.feed(tokens)))
        tokens = found[-1:]
    return found
