"""Whether a reply is right: each of its tokens against a fresh session that computes prompt and reply alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import embedllm
from embedllm.backends.base import FeedsAll

# What the same tokens' log probabilities differ by when they are computed in other pieces, with activations rounded to
# int8 (docs/numerics.md): 0.37 was the most in 16,276 tokens of the demo model; of a wrong KV it is several.
TOLERANCE = 0.7


class Wrong(AssertionError):
    """A reply that is not what the model says."""


@dataclass(slots=True)
class Differences:
    """How far replies were from those computed alone."""

    tokens: int = 0
    worst: float = 0.0
    replies: int = 0
    same: int = 0  # greedy ones whose every token was the best alone, too
    greedy: int = 0


class Alone:
    """A model that computes one sequence at a time, each fresh, without a prefix cache."""

    def __init__(self, folder: str, device: str) -> None:
        self._llm = embedllm.load(folder, device=device, prefix_cache=0)
        self._lock = threading.Lock()
        self.differences = Differences()

    def check(self, prompt: Sequence[int], reply: embedllm.Completion, *, is_greedy: bool) -> None:
        """Raises Wrong when the model would not have said that with the probabilities that were told.

        is_greedy: the best token was to be chosen at each step, of all.
        """
        if len(reply.logprobs) != len(reply.tokens):
            raise Wrong(f"{len(reply.tokens)} tokens and {len(reply.logprobs)} log probabilities")
        if not reply.tokens:
            return
        logprobs = self._logprobs(prompt, reply.tokens)
        chosen = logprobs[np.arange(len(reply.tokens)), reply.tokens]
        told = np.array(reply.logprobs)
        off = np.abs(chosen - told)
        if off.max() > TOLERANCE:
            at = int(off.argmax())
            raise Wrong(f"token {at} of {len(told)} behind {len(prompt)} ({reply.statistics}): told {told[at]:.3f}, "
                        f"alone {chosen[at]:.3f}; all: {np.round(off, 2).tolist()}")  # fmt: skip
        behind = logprobs.max(axis=1) - chosen
        if is_greedy and behind.max() > 2 * TOLERANCE:
            raise Wrong(f"greedy, but token {int(behind.argmax())} of {len(told)} is not the best: {behind.max():.3f}")
        self._count(off, is_same=bool(behind.max() == 0), is_greedy=is_greedy)

    def close(self) -> None:
        self._llm.close()

    def _logprobs(self, prompt: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """Of every token after each but the last of the reply; [tokens, V]."""
        with self._lock:
            engine = self._llm.runner.engine
            session = engine.open(len(prompt) + len(tokens))
            try:
                assert isinstance(session, FeedsAll)
                for at in range(0, len(prompt) - 1, engine.chunk):
                    session.feed(prompt[at : min(at + engine.chunk, len(prompt) - 1)])
                logits = session.feed_all([prompt[-1], *tokens[:-1]]).astype(np.float64)
            finally:
                session.close()
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    def _count(self, off: np.ndarray, *, is_same: bool, is_greedy: bool) -> None:
        with self._lock:
            found = self.differences
            found.tokens += len(off)
            found.worst = max(found.worst, float(off.max()))
            found.replies += 1
            found.greedy += is_greedy
            found.same += is_greedy and is_same
