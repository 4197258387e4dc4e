"""Whether a graph that another exporter has written can be fed in pieces: found out by feeding it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from embedllm.backends.base import Engine, FeedsAll, Session

if TYPE_CHECKING:
    from typing import Protocol

    from embedllm.package.external_graph import ExternalGraph

    class _Tried(Session, FeedsAll, Protocol): ...


_SEED = 20261122
_TOKENS = 6  # of the prompt
CANNOT_BE_FED = (
    "gives other logits for a prompt that is fed at once than for the same one in pieces, so its replies would "
    "be wrong. Export its checkpoint with this library: embedllm export SOURCE OUT."
)


def difference(engine: Engine, external_graph: ExternalGraph) -> float:
    """How far logits of a prompt that is fed at once are from those after a rewind, fed again; of the largest logit."""
    count = min(_TOKENS, external_graph.context)
    tokens = np.random.default_rng(_SEED).integers(0, external_graph.vocabulary, count).tolist()
    session = cast("_Tried", engine.open())  # sessions of these engines feed all
    try:
        whole = session.feed_all(tokens)
        session.rewind(count // 3)
        again = session.feed_all(tokens[count // 3 :])
    finally:
        session.close()
    return float(np.abs(again - whole[count // 3 :]).max() / np.abs(whole).max())
