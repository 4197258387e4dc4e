"""Models read a text side by side, piece by piece, so that only a piece's logits are held of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import FeedsAll
from embedllm.evaluation.measures import Record, measure

if TYPE_CHECKING:
    from embedllm.backends.base import Session
    from embedllm.generation.runner import Runner
    from embedllm.text.windows import Windows
    from embedllm.types import F32

PIECE = 64  # tokens per feed, so that most of what is attended to comes out of the KV cache


def read_text(models: Sequence[Runner], windows: Windows, *, has_base: bool, done: Callable[[], None]) -> list[Record]:
    """What each model's logits say of a text. has_base: the first is what the others are compared with.

    done: called after each window. Raises DeviceError.
    """
    records = [Record() for _ in models]
    with ExitStack() as stack:
        sessions: list[tuple[Runner, Session]] = []
        for model in models:
            session = model.call(partial(model.engine.open, windows.size))
            sessions.append((model, session))
            stack.callback(model.call, session.close)
        for window in windows.pieces:
            for model, session in sessions:
                model.call(partial(session.rewind, 0))
            for at in range(0, windows.size, PIECE):
                piece = window[at : at + PIECE]
                rows = [model.call(partial(_logits, session, piece)) for model, session in sessions]
                measure(rows, window[at + 1 : at + 1 + PIECE], records, has_base=has_base)
            done()
    return records


def _logits(session: Session, tokens: Sequence[int]) -> F32:
    """After each token, [T, V]. A device that gives one row at a time is fed one token at a time."""
    if isinstance(session, FeedsAll):
        return session.feed_all(tokens)
    rows = []
    for token in tokens:
        logits = session.feed([token])
        rows.append(np.asarray(logits.values(range(logits.size)), dtype=np.float32))
    return np.stack(rows)
