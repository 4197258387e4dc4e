"""Which tokens may not come next: stop tokens too early, the ends of bad words and of n-grams that were there.

Standard library only.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.sampling.options import Sampling


class BannedTokens:
    """What one sequence may not go on with.

    stop_tokens: not before the reply has min_tokens. bad_words have to be token ids. What is not in the vocabulary
    cannot come and is left out.
    """

    __slots__ = ("_early", "_followers", "_ngram", "_reply", "_stop_tokens", "_tokens", "_words")

    def __init__(
        self,
        sampling: Sampling,
        prompt_tokens: Sequence[int] = (),
        *,
        stop_tokens: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self._stop_tokens = tuple(stop_tokens)
        self._early = min_tokens  # how many tokens the reply still lacks
        self._words = [tuple(_ids(word)) for word in sampling.bad_words]
        self._ngram = sampling.no_repeat_ngram
        self._followers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)  # of each run of n - 1 tokens
        self._reply = 0  # where it begins in the tokens
        self._tokens: list[int] = []
        for token in prompt_tokens:
            self._append(token)
        self._reply = len(self._tokens)

    def note(self, token: int) -> None:
        """Take a token of the reply."""
        self._early -= 1
        self._append(token)

    def applied(self, logits: Logits) -> Logits:
        """The logits with -inf for what is forbidden; the same ones when nothing is."""
        tokens = self._tokens
        token_ids = set(self._stop_tokens) if self._early > 0 else set[int]()
        for word in self._words:
            begun = len(word) - 1
            if begun <= len(tokens) - self._reply and tokens[len(tokens) - begun :] == list(word[:-1]):
                token_ids.add(word[-1])
        if self._ngram and len(tokens) >= self._ngram - 1:
            token_ids |= self._followers.get(self._last(self._ngram - 1), set())
        inside = array("q", sorted(token for token in token_ids if token < logits.size))
        if not inside:
            return logits
        count = len(inside)
        return logits.penalized(
            inside,
            biases=array("f", [-inf]) * count,
            divisors=array("f", [1.0]) * count,
            subtracted=array("f", bytes(4 * count)),
        )

    def _append(self, token: int) -> None:
        if self._ngram and len(self._tokens) >= self._ngram - 1:
            self._followers[self._last(self._ngram - 1)].add(token)
        self._tokens.append(token)

    def _last(self, count: int) -> tuple[int, ...]:
        return tuple(self._tokens[len(self._tokens) - count :])


def spelled(sampling: Sampling, encode: Callable[[str], Sequence[int]]) -> Sampling:
    """The same options with bad words as token ids: each text as it is, and as a word of its own after a space.

    Other ways to spell the same text in tokens are not found.
    Source: vLLM 0.22, SamplingParams.update_from_tokenizer, which takes the two alike.
    """
    if not any(isinstance(word, str) for word in sampling.bad_words):
        return sampling
    words: dict[tuple[int, ...], None] = {}
    for word in sampling.bad_words:
        if isinstance(word, str):
            words |= dict.fromkeys(tuple(encode(text)) for text in (word, " " + word.lstrip()))
        else:
            words[tuple(word)] = None
    return replace(sampling, bad_words=tuple(words))


def _ids(word: str | Sequence[int]) -> Sequence[int]:
    if isinstance(word, str):
        raise ValueError(f"the bad word {word!r} is a text; give its token ids, or go through a Model")
    return word
