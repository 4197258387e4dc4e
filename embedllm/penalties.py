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
    from embedllm.sampling import Sampling


class Penalties:
    """The bias and penalties of one sequence: an entry for every token that is biased or was seen.

    Kept as parallel lists and brought up to date token by token: a step over thousands of seen tokens counts none anew.
    """

    __slots__ = ("_biases", "_counts", "_divisors", "_places", "_sampling", "_subtracted", "_tokens")

    def __init__(self, sampling: Sampling, prompt_tokens: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._counts: Counter[int] = Counter()
        self._places: dict[int, int] = {}
        self._tokens = array("q")  # which numpy reads without a loop in Python
        self._biases: list[float] = []
        self._divisors: list[float] = []
        self._subtracted: list[float] = []
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
        if max(self._tokens) >= logits.size:
            raise ValueError(
                f"token {max(self._tokens)} is biased or was seen, but the model's vocabulary has {logits.size}. "
                "Check logit_bias, and that prompt and model have the same tokenizer."
            )
        values = penalized(
            logits.values(self._tokens), biases=self._biases, divisors=self._divisors, subtracted=self._subtracted
        )
        return logits.replaced(self._tokens, values)

    def _place(self, token: int) -> int:
        place = self._places.setdefault(token, len(self._tokens))
        if place == len(self._tokens):
            self._tokens.append(token)
            self._biases.append(0.0)
            self._divisors.append(1.0)
            self._subtracted.append(0.0)
        return place


def penalized(
    logits: Sequence[float], *, biases: Sequence[float], divisors: Sequence[float], subtracted: Sequence[float]
) -> list[float]:
    """logit + bias, over the divisor if positive and times it if not, less what is subtracted; for each token.

    Source of the middle step: Keskar et al. 2019, "CTRL", as transformers has it for negative logits.
    """
    return [
        (biased / divisor if (biased := logit + bias) > 0 else biased * divisor) - less
        for logit, bias, divisor, less in zip(logits, biases, divisors, subtracted, strict=True)
    ]
