"""The few numbers of a row of logits on a device that most sampling needs, reduced there.

Bringing 150,000 logits to the host and summing their exponentials there takes a quarter of a millisecond, a fifth of a
step of a small model on a fast GPU. So small graphs of their own (backends/gpu/heads, made by tools/make_heads.py)
run on the device over the logits where they are: the best token with the sum, or the best few hundred. What cannot be
answered from these brings the row over and asks `NumpyLogits`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.sessions.topk_logits import Best, ListedRow
from embedllm.sampling.numpy_logits import NumpyLogits

if TYPE_CHECKING:
    from embedllm.backends.ort.runtime import ort
    from embedllm.types import F32

HEADS = Path(__file__).parent / "heads"
# tokens that the list of the best has, one more than the sampler's first look, to see a tie at its end: CUDA's TopK
# takes 50 us for 256 of 150,000 and 870 for 257
LISTED = 256
LARGEST_VOCABULARY = 1 << 24  # token ids come as float32, exact up to here
_ROW, BEST, _LIST = "row", "best", "list"


class Head:
    """One small graph over the logits of one set of buffers; its result comes to the host."""

    def __init__(
        self,
        session: ort.InferenceSession,
        logits: ort.OrtValue,
        *,
        size: int,
        options: ort.RunOptions,
        place: Callable[[np.ndarray], ort.OrtValue],
        read: Callable[[ort.OrtValue], np.ndarray],
    ) -> None:
        """size: how many float32 numbers it gives."""
        self._session = session
        self._options = options
        self._read = read
        self._out = place(np.zeros(size, np.float32))
        self._binding = session.io_binding()
        self._binding.bind_ortvalue_input("logits", logits)
        self._binding.bind_ortvalue_output("out", self._out)

    def __call__(self) -> F32:
        """[size]"""
        self._session.run_with_iobinding(self._binding, self._options)
        return self._read(self._out)


def sizes(vocabulary: int) -> dict[str, int]:
    """How many numbers each head gives, by its name. A list longer than the vocabulary is none."""
    found = {_ROW: vocabulary, BEST: 3}
    return found | ({_LIST: 2 * LISTED + 1} if vocabulary >= LISTED else {})


def device_row(size: int, ask: Callable[[str], F32]) -> ListedRow:
    """A row of logits on a device.

    ask: runs a head by its name; raises ValueError when the logits are no longer there.
    """
    return ListedRow(
        size,
        listed=LISTED,
        ask_best=lambda: _one(ask(BEST)),
        ask_list=lambda: _several(ask(_LIST)),
        whole=lambda: NumpyLogits(ask(_ROW)),
    )


def _one(numbers: F32) -> Best:
    token, logit, logsumexp = numbers.tolist()
    return Best([int(token)], [logit], logsumexp)


def _several(numbers: F32) -> Best:
    tokens, logits, logsumexp = numbers[:LISTED], numbers[LISTED:-1], float(numbers[-1])
    order = np.lexsort((tokens, -logits))
    return Best(tokens[order].astype(np.int64).tolist(), logits[order].tolist(), logsumexp)
