"""What bias and penalties do to the logits, before anything is drawn.

Standard library only.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.sampling.options import Sampling


class Penalties:
    """The bias and penalties of one sequence: an entry for every token that is biased or was seen.

    Kept as parallel arrays and brought up to date token by token: a step counts none again, and the logits, which apply
    them, read the arrays as they lie.
    """

    __slots__ = ("_biases", "_counts", "_divisors", "_highest", "_places", "_sampling", "_subtracted", "_tokens")

    def __init__(self, sampling: Sampling, prompt_tokens: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._counts: Counter[int] = Counter()
        self._places: dict[int, int] = {}
        self._highest = -1  # of the tokens
        self._tokens = array("q")
        self._biases = array("f")
        self._divisors = array("f")
        self._subtracted = array("f")
        for token, bias in dict(sampling.logit_bias).items():
            self._biases[self._place(token)] = bias
        if sampling.repetition_penalty != 1:
            for token in set(prompt_tokens):
                self._divisors[self._place(token)] = sampling.repetition_penalty

    def note(self, token: int) -> None:
        """Count a token of the reply."""
        options = self._sampling
        if options.repetition_penalty == 1 and not options.presence_penalty and not options.frequency_penalty:
            return
        self._counts[token] += 1
        place = self._place(token)
        self._divisors[place] = options.repetition_penalty
        self._subtracted[place] = options.presence_penalty + options.frequency_penalty * self._counts[token]

    def applied(self, logits: Logits) -> Logits:
        """The changed logits; the same ones when there is nothing to change."""
        if not self._tokens:
            return logits
        if self._highest >= logits.size:
            raise ValueError(
                f"token {self._highest} is biased or was seen, but the model's vocabulary has {logits.size}. "
                "Check logit_bias, and that prompt and model have the same tokenizer."
            )
        return logits.penalized(self._tokens, biases=self._biases, divisors=self._divisors, subtracted=self._subtracted)

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._tokens))
        if place == len(self._tokens):
            self._highest = max(self._highest, token)
            self._tokens.append(token)
            self._biases.append(0.0)
            self._divisors.append(1.0)
            self._subtracted.append(0.0)
        return place
