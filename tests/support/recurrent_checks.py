"""What a session of a recurrent model has to give on any device: logits of the reference, however it is fed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.reference.engine import ReferenceEngine

if TYPE_CHECKING:
    from embedllm.backends.base import Engine, FeedsAll, Session
    from embedllm.package.package import Package

TOKENS = np.random.default_rng(3).integers(3, 300, 120).tolist()


def differences(engine: Engine, package: Package) -> np.ndarray:
    """Of logits from the reference's, as shares of their spread: the largest of a row, fed whole, in parts, by steps.

    Rewinds lie between these, to the beginning and to the middle of what was fed at once.
    """
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    session = engine.open()
    whole = _all(session, TOKENS)
    session.rewind(0)
    parts = np.concatenate([_all(session, part) for part in (TOKENS[:50], TOKENS[50:51], TOKENS[51:])])
    session.rewind(60)
    session.feed(TOKENS[60:100])
    steps = [_row(session, token) for token in TOKENS[100:]]
    session.rewind(0)
    again = _row(session, TOKENS[0])
    session.close()
    found = np.concatenate([whole, parts, steps, again[None]])
    wanted = np.concatenate([expected, expected, expected[100:], expected[:1]])
    return np.abs(found - wanted).max(axis=1) / np.ptp(expected)


def _all(session: Session, tokens: list[int]) -> np.ndarray:
    feeds: FeedsAll = session  # type: ignore[assignment]  # all that are tried have it
    return feeds.feed_all(tokens)


def _row(session: Session, token: int) -> np.ndarray:
    logits = session.feed([token])
    return np.array(logits.values(range(logits.size)))
