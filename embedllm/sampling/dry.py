"""DRY, "don't repeat yourself": what would extend a repetition of several tokens becomes less probable.

Standard library only. When the last n tokens were there before, the token that came after them then loses
multiplier * base ** (n - allowed_length) from its logit, where n is at least the allowed length and the longest of all
places where that token came next. No match reaches across a breaker, and breakers themselves lose nothing.

Source: P. E. Weidmann 2024, github.com/oobabooga/text-generation-webui pull request 5677, whose breakers are single
tokens. Here a token breaks when its text has one of the given texts in it.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from embedllm.types import Logits

if TYPE_CHECKING:
    from embedllm.sampling.options import Sampling

_MOST = 60.0  # log of base ** (n - allowed_length): a logit less e^60 is a probability of 0, and still a float32


class Dry:
    """The repetitions that one sequence is in.

    A match is a place of an earlier token and how many tokens up to it are the same as up to the last one. Matches are
    brought up to date token by token, at the cost of how often the new token was there before.
    """

    __slots__ = ("_breakers", "_decode", "_longest", "_matches", "_places", "_sampling", "_tokens")

    def __init__(
        self,
        sampling: Sampling,
        prompt_tokens: Sequence[int] = (),
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        if decode is None and sampling.dry_breakers:
            raise ValueError("dry_breakers are texts and there is no tokenizer; dry_breakers=() does without them")
        self._sampling = sampling
        self._decode = decode or (lambda tokens: "")
        self._breakers: dict[int, bool] = {}  # of the tokens that were looked at
        growth = math.log(sampling.dry_base)
        self._longest = sampling.dry_allowed_length + (int(_MOST / growth) if growth else 0)  # more changes nothing
        self._tokens = list(prompt_tokens)
        self._places: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        for place, token in enumerate(self._tokens):
            self._places[token].append(place)
        self._matches = self._search()

    def note(self, token: int) -> None:
        """Take a token of the reply."""
        before, places = self._matches, self._places[token]
        self._matches = {} if self._is_breaker(token) else {place: before.get(place - 1, 0) + 1 for place in places}
        places.append(len(self._tokens))
        self._tokens.append(token)

    def applied(self, logits: Logits) -> Logits:
        """The changed logits; the same ones when nothing repeats."""
        options, tokens = self._sampling, self._tokens
        first = max(0, len(tokens) - options.dry_range) if options.dry_range else 0
        longest: dict[int, int] = {}
        for place, length in self._matches.items():
            reach = min(length, place + 1 - first, self._longest)
            following = tokens[place + 1]
            if reach >= options.dry_allowed_length and reach > longest.get(following, 0):
                longest[following] = reach
        repeated = [token for token in longest if not self._is_breaker(token)]
        if not repeated:
            return logits
        excess = [longest[token] - options.dry_allowed_length for token in repeated]
        subtracted = array("f", [options.dry_multiplier * options.dry_base**more for more in excess])
        count = len(repeated)
        return logits.penalized(
            array("q", repeated),
            biases=array("f", bytes(4 * count)),
            divisors=array("f", [1.0]) * count,
            subtracted=subtracted,
        )

    def _search(self) -> dict[int, int]:
        """The matches of the last token, found in the whole sequence."""
        tokens = self._tokens
        if not tokens or self._is_breaker(tokens[-1]):
            return {}
        last = len(tokens) - 1
        return {place: self._shared(place, last) for place in self._places[tokens[-1]] if place != last}

    def _shared(self, place: int, last: int) -> int:
        """How many tokens up to `place` are the same as up to `last`, as far as that matters; both are the same."""
        tokens, length = self._tokens, 1
        while length < min(self._longest, place + 1):
            token = tokens[place - length]
            if token != tokens[last - length] or self._is_breaker(token):
                break
            length += 1
        return length

    def _is_breaker(self, token: int) -> bool:
        if token not in self._breakers:
            text = self._decode([token])
            self._breakers[token] = any(breaker in text for breaker in self._sampling.dry_breakers)
        return self._breakers[token]
