"""Heads that draft, in tests: their sessions, and drafts that cost nothing."""

from __future__ import annotations

import numpy as np
import pytest

from embedllm import Model
from embedllm.backends.sessions.draft_head import DraftHeadSession
from embedllm.generation.speculation.draft_head import HeadDrafter


def make_drafts_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are proposed whatever they cost: else the clock decides whether a test tests anything."""

    def worth(self: object, shares: object, *, each: float = 0.0) -> tuple[int, float]:
        return 3, 2.0

    monkeypatch.setattr("embedllm.generation.speculation.speculator.Speculator._worth", worth)


def opened_head(llm: Model, fed: list[int]) -> tuple[DraftHeadSession, object]:
    """A head's session beside a sequence that has read these tokens."""
    drafter = llm.runner.draft
    assert isinstance(drafter, HeadDrafter)
    target = llm.runner.engine.open()
    target.feed(fed)
    head = drafter._engine.open()  # pyright: ignore[reportPrivateUsage]
    assert isinstance(head, DraftHeadSession)
    head.follow(target)
    return head, target


def row(logits: object) -> np.ndarray:
    return logits._row  # type: ignore[attr-defined]  # of NumpyLogits
