"""What rows of logits say of a text, and how far they are from those of a base, token by token.

Exponentials are taken in float32, as the logits are, and summed in float64: a divergence is wrong by about 1e-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import DeviceError
from embedllm.evaluation.results import Divergence, TextScore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32

_BLOCK = 1 << 19  # logits per block: a few MB of scratch memory for any vocabulary


class Record:
    """What was measured of one model, an array for each call of measure()."""

    def __init__(self) -> None:
        self.losses: list[NDArray[np.float64]] = []  # -ln p(token), of each token that was foretold
        self.divergences: list[NDArray[np.float64]] = []  # from the base, of each row
        self.same: list[NDArray[np.bool_]] = []  # whether the base's best token is the best one, of each row


@dataclass(frozen=True, slots=True)
class _Softmax:
    """Of some rows [R, V]."""

    logits: F32
    weights: F32  # exp(logit - best)
    total: NDArray[np.float64]  # [R], their sum
    logsumexp: NDArray[np.float64]  # [R]


def measure(rows: Sequence[F32], targets: Sequence[int], records: Sequence[Record], *, has_base: bool) -> None:
    """Adds to the record of each model what its logits [T, V] say.

    targets: the tokens that came after the first of the T, T of them, or fewer where the text ends.
    has_base: the first of the models is what the others are compared with.
    Raises DeviceError for logits that are not finite.
    """
    target_ids = np.asarray(targets, dtype=np.int64)
    step = max(1, _BLOCK // rows[0].shape[1])
    for start in range(0, rows[0].shape[0], step):
        base: _Softmax | None = None
        for logits, record in zip(rows, records, strict=True):
            softmax = _softmax(logits[start : start + step])
            record.losses.append(_losses(softmax, target_ids[start : start + step]))
            if base is not None:
                record.divergences.append(_divergence(base, softmax))
                record.same.append(base.logits.argmax(axis=1) == softmax.logits.argmax(axis=1))
            elif has_base:
                base = softmax


def score(record: Record, base: Record | None = None) -> TextScore:
    """What all that was measured comes to. base: None where there is none, or the record is the base's."""
    loss = np.concatenate(record.losses).mean()
    divergence = None
    if base is not None:
        kl = np.concatenate(record.divergences)
        high, higher = np.percentile(kl, [95, 99])  # of all tokens together, not of each window
        divergence = Divergence(
            perplexity_ratio=float(np.exp(loss - np.concatenate(base.losses).mean())),
            mean_kl=float(kl.mean()),
            kl_95=float(high),
            kl_99=float(higher),
            same_top=float(np.concatenate(record.same).mean()),
        )
    return TextScore(perplexity=float(np.exp(loss)), divergence=divergence)


def _softmax(logits: F32) -> _Softmax:
    if not (np.isfinite(logits.max()) and np.isfinite(logits.min())):
        raise DeviceError(
            "logits of the model are not finite numbers. A model run in float16 may have overflowed, or its file is "
            "damaged; try another device or a wider type."
        )
    best = logits.max(axis=1, keepdims=True)
    weights = logits - best
    np.exp(weights, out=weights)
    total = weights.sum(axis=1, dtype=np.float64)
    return _Softmax(logits, weights, total, best[:, 0] + np.log(total))


def _losses(softmax: _Softmax, targets: NDArray[np.int64]) -> NDArray[np.float64]:
    count = targets.size
    return softmax.logsumexp[:count] - softmax.logits[np.arange(count), targets]


def _divergence(base: _Softmax, other: _Softmax) -> NDArray[np.float64]:
    """KL(base || other) of each row: sum of p * (ln p - ln q)."""
    terms = base.logits - other.logits
    terms *= base.weights
    kl = terms.sum(axis=1, dtype=np.float64) / base.total - base.logsumexp + other.logsumexp
    return np.maximum(kl, 0)  # it is not negative; a difference of nearly equal sums can round to that
