"""Mirostat: a truncation that steers itself, so that the text keeps a given surprise. Standard library only.

Source: Basu et al. 2020, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", in tokens
instead of words and with the surprise of what was left after the truncation, as llama.cpp b10470 has it
(src/llama-sampling.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from embedllm.sampling.token_choice import FIRST_LOOK, SECOND_LOOK, temperature_of
from embedllm.sampling.truncation import Shortlist, above_probability, listed
from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.sampling.options import Sampling

_ESTIMATED = 100  # version 1: number of best tokens from which the Zipf exponent is estimated


class Mirostat:
    """The rule of one sequence, and the most surprise, in bits, that a token may have at its next step.

    `choose` chooses; `note` tells what entered the sequence, which moves the limit if it was chosen here.
    """

    __slots__ = ("_chosen", "_limit", "_sampling")

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._limit = 2 * sampling.mirostat_tau
        self._chosen: tuple[int, float] | None = None  # the last choice, and its surprise

    def choose(self, logits: Logits, sampling: Sampling, *, uniform: Callable[[], float]) -> int:
        """The next token, from what the limit leaves.

        uniform: gives numbers in [0, 1).
        """
        temperature = 0.0 if sampling.is_greedy else temperature_of(logits, sampling)
        if not temperature:
            shortlist = listed(logits.top(1), 1.0)
        elif sampling.mirostat == 1:
            shortlist = listed(logits.top(self._count(logits, temperature)), temperature)
        else:
            shortlist = self._probable(logits, temperature)
        token = shortlist.draw(uniform())
        share = shortlist.weights[shortlist.tokens.index(token)] / shortlist.total
        self._chosen = (token, -math.log2(share))
        return token

    def note(self, token: int) -> None:
        """Take a token of the reply."""
        if self._chosen is not None and self._chosen[0] == token:
            self._limit -= self._sampling.mirostat_eta * (self._chosen[1] - self._sampling.mirostat_tau)
        self._chosen = None

    def _probable(self, logits: Logits, temperature: float) -> Shortlist:
        """Version 2: the tokens that are no more surprising than the limit; at least one."""
        for look in (FIRST_LOOK, SECOND_LOOK, logits.size):
            logsumexp = logits.logsumexp(temperature) if look < logits.size else None
            shortlist = listed(logits.top(look), temperature, logsumexp=logsumexp)
            probable = above_probability(shortlist, 2**-self._limit)
            if probable is not None:
                return probable
        raise AssertionError("nothing is unlisted when the list has every token")

    def _count(self, logits: Logits, temperature: float) -> int:
        """Version 1: how many tokens to keep, if their probabilities fall by Zipf's law."""
        best = [logit for logit in logits.top(_ESTIMATED).logits if logit > -math.inf]
        falls = [(one - other) / temperature for one, other in pairwise(best)]
        ranks = [math.log((place + 2) / (place + 1)) for place in range(len(falls))]
        if not any(falls):
            return logits.size  # as probable as each other, so far as can be seen
        exponent = sum(t * b for t, b in zip(ranks, falls, strict=True)) / sum(t * t for t in ranks)
        excess, size = exponent - 1, logits.size
        # excess / (1 - size ** -excess), which goes to 1 / log(size) at 0
        scale = -excess / math.expm1(-excess * math.log(size)) if abs(excess) > 1e-9 else 1 / math.log(size)
        bits = (self._limit + math.log2(scale)) / exponent
        return max(1, min(int(2**bits), size)) if bits < math.log2(size) else size
