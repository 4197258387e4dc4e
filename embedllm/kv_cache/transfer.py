"""Exports the KV of a session for other sessions of its engine, for memory and for disk.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from embedllm.backends.base import MovesState, MovesStored

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues, Span


def exported(session: MovesState, start: int, stop: int) -> KeyValues:
    """A copy of the KV of the tokens from `start` to before `stop`, stored as the session stores it where it can."""
    return export_spans(session, [(start, stop)])[0]


def export_spans(session: MovesState, spans: Sequence[Span]) -> list[KeyValues]:
    """As `exported`, of spans in order, at least one; none of them keeps the memory of another."""
    if isinstance(session, MovesStored):
        return session.export_stored(spans)
    first = spans[0][0]
    state = session.export_state(first, spans[-1][1])  # in one call: some sessions copy all that they hold for it
    if len(spans) == 1:
        return [state]
    return [
        [(key[:, start - first : stop - first].copy(), value[:, start - first : stop - first].copy())
         for key, value in state]
        for start, stop in spans
    ]  # fmt: skip
