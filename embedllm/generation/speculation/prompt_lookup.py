"""Prompt lookup: where the last tokens stood before, and what came after them there.

The index is that of LZ77 compressors: for each pair of tokens a chain of the places where it ended, the latest first.
Adding a token and finding the longest match take microseconds, whatever the length of the text. Source: Saxena 2023,
"Prompt Lookup Decoding"; chains as in RFC 1951, section 4. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 32  # tokens of a match that are counted
_PLACES = 16  # of a chain that are tried


class PromptLookup:
    """The tokens of a sequence, and what followed when their end was last seen."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.length = 0  # of the match, in tokens; 0: the last two tokens are new
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, int], int] = {}  # pair -> place of its second token
        self._earlier: list[int] = []  # by place: where the same pair ended before; -1: nowhere
        self._match = -1  # the place that is like the last one
        for token in tokens:
            self._add(token)
        self._find()

    def note(self, token: int) -> None:
        """Takes the next token."""
        self._add(token)
        self._find()

    def following(self, count: int) -> list[int]:
        """The tokens that followed the match; past the end it goes on with itself, as a repetition does."""
        if self._match < 0:
            return []
        start, end = self._match + 1, len(self._tokens)
        tokens = self._tokens[start : start + count]
        while len(tokens) < count:
            tokens += tokens[len(tokens) - (end - start) :][: count - len(tokens)]
        return tokens

    def _add(self, token: int) -> None:
        place = len(self._tokens)
        self._tokens.append(token)
        pair = (self._tokens[place - 1], token)
        self._earlier.append(self._latest.get(pair, -1) if place else -1)
        if place:
            self._latest[pair] = place

    def _find(self) -> None:
        """Takes the longest match, of equally long ones the latest."""
        last, going_on = len(self._tokens) - 1, self._match + 1
        self.length, self._match = 0, -1
        if last < 0:
            return
        place = self._earlier[last]
        for _ in range(_PLACES):
            if place < 0 or self.length == LONGEST:
                return
            self._try(place, last)
            place = self._earlier[place]
        if going_on and self._tokens[going_on] == self._tokens[last]:
            self._try(going_on, last)  # a long match of which the chain tells no more

    def _try(self, place: int, last: int) -> None:
        tokens = self._tokens
        most = min(LONGEST, place + 1)
        if self.length >= most or tokens[place - self.length] != tokens[last - self.length]:
            return
        length = next((count for count in range(most) if tokens[place - count] != tokens[last - count]), most)
        if length > self.length:
            self.length, self._match = length, place
