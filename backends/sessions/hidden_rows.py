"""The hidden states of the newest tokens of a sequence, which a multi-token prediction head reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.types import F32

# Of a prompt's last tokens. The head begins with them: reading all of a prompt would cost more than what it lacks.
OF_PROMPT = 64
_KEPT = 256  # tokens at least, of those that were given: 1 MB for a hidden size of 1,024


class HiddenRows:
    """Rows of consecutive tokens, `first` to before `stop`; older ones are forgotten."""

    def __init__(self, size: int) -> None:
        """size: of a hidden state."""
        self.first = self.stop = 0
        self._rows = np.empty((2 * _KEPT, size), np.float32)

    def keep(self) -> None:
        """They are kept as it is: they come to the host with each run."""

    def put(self, stop: int, rows: F32) -> None:
        """The hidden states [T, size] of the last tokens before `stop`, in place of those from there on."""
        start = stop - len(rows)
        if not self.first <= start <= self.stop:
            self.first = start  # between what is kept and these, some are missing
        count = start - self.first
        if count + len(rows) > len(self._rows):
            dropped = count - max(0, _KEPT - len(rows))
            self._rows[: count - dropped] = self._rows[dropped:count].copy()
            self.first, count = self.first + dropped, count - dropped
        self._rows[count : count + len(rows)] = rows
        self.stop = stop

    def get(self, start: int, stop: int) -> F32:
        """Copies of those of the tokens from `start` to before `stop`, which are there."""
        assert self.first <= start <= stop <= self.stop
        return self._rows[start - self.first : stop - self.first].copy()

    def clear(self) -> None:
        """Forgets all: tokens come that nobody gives hidden states of."""
        self.first = self.stop = 0
