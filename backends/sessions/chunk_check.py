"""Whether a graph that another exporter has written can be fed in pieces: found out by feeding it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from embedllm.backends.base import Engine, FeedsAll, Session
from embedllm.errors import DeviceError

if TYPE_CHECKING:
    from typing import Protocol

    from embedllm.package.external_graph import ExternalGraph
    from embedllm.types import F32

    class _Tried(Session, FeedsAll, Protocol): ...


_SEED = 20261122
_TOKENS = 6  # of the prompt
CANNOT_BE_FED = (
    "gives other logits for a prompt that is fed at once than for the same one in pieces, so its replies would "
    "be wrong. Export its checkpoint with this library: embedllm export SOURCE OUT."
)


def difference(engine: Engine, external_graph: ExternalGraph) -> float:
    """How far logits of a prompt that is fed at once are from those after a rewind, fed again; of the largest logit.

    Raises DeviceError when what the graph gives is no row of logits for each token.
    """
    count = min(_TOKENS, external_graph.context)
    tokens = np.random.default_rng(_SEED).integers(0, external_graph.vocabulary, count).tolist()
    session = cast("_Tried", engine.open())  # sessions of these engines feed all
    try:
        whole = session.feed_all(tokens)
        _check(whole, count, external_graph.vocabulary)
        session.rewind(count // 3)
        again = session.feed_all(tokens[count // 3 :])
    finally:
        session.close()
    return float(np.abs(again - whole[count // 3 :]).max() / np.abs(whole).max())


def _check(logits: F32, count: int, vocabulary: int) -> None:
    """Raises DeviceError for what cannot be the logits of a prompt of that many tokens."""
    if logits.ndim != 2 or len(logits) != count or logits.shape[1] < vocabulary:
        problem = f"logits of the shape {list(logits.shape)} for {count} tokens; expected [{count}, {vocabulary}]"
    elif not np.isfinite(logits).all():
        problem = f"logits that are not finite numbers: {logits[~np.isfinite(logits)][0]}"
    elif not logits.any():
        problem = "zero for every logit"
    else:
        return
    raise DeviceError(
        f"the graph gives {problem}. Its file is damaged, or it is no decoder's. Fetch it again, or export its "
        "checkpoint with this library: embedllm export SOURCE OUT."
    )
