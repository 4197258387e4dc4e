"""Which tokens' KV the layers with sliding windows keep, so that their memory does not grow with the sequence.

A token sees `window` tokens, itself among them. So a sequence can go on from a position if its windows' tokens before
that position are kept. With PROMPT before the end of the last prompt P, and NEWEST before the end E:

    position   0 ...... FIRST ................ P-PROMPT ... P ............... E-NEWEST ...... E
    go on from [==========]                    [===========]                 [===============]
    kept rows  [==========]             [==================]          [=====================]
                                        |<- window - 1 ->|            |<- window - 1 ->|
    freed                  ~~~~~~~~~~~~~                    ~~~~~~~~~~

Layers without a window keep everything. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

# in tokens
FIRST = 512  # at the beginning: instructions, which other sequences begin with, too
NEWEST = 256  # at the end: guesses, and what a template writes in another way the next time
PROMPT = 32  # before the end of the last prompt, from where a reply is made once more
STEP = 256  # more than NEWEST after which something is forgotten: each time costs some calls of the system

Rows = tuple[int, int]  # the first, and the one behind the last


class WindowedKvRetention:
    """The rows of one sequence that are kept."""

    def __init__(self, windows: Mapping[str, int]) -> None:
        """windows: by the name of what is held in a layer; what has no window is not in there."""
        self.keeps_all = False  # from now on
        self._windows = windows
        self._places: tuple[Rows, ...] = ((0, 0),)  # to go on from, both ends included; the last go on to the end
        self._prompt = 0  # where the last one ended

    def is_windowed(self, name: str) -> bool:
        return name in self._windows

    def of(self, name: str, length: int) -> list[Rows]:
        """The rows that are kept, in order, without touching each other."""
        window = self._windows.get(name)
        return [(0, length)] if window is None else self._rows(window, length)

    def gone(self, name: str, length: int) -> list[Rows]:
        """The rows between those."""
        rows = [(0, 0), *self.of(name, length), (length, length)]
        between = ((end, start) for (_, end), (start, _) in pairwise(rows))
        return [(start, end) for start, end in between if start < end]

    def whole(self, length: int) -> int:
        """How many tokens at the beginning are kept in every layer."""
        return min((self._rows(window, length)[0][1] for window in self._windows.values()), default=length)

    def has(self, start: int, stop: int, length: int) -> bool:
        """Whether those are kept in every layer."""
        return start == stop or all(
            any(first <= start and stop <= end for first, end in self._rows(window, length))
            for window in set(self._windows.values())
        )

    def back(self, position: int) -> int:
        """The last place at or before this one that the sequence can go on from."""
        return max(min(position, last) if is_older else position
                   for (first, last), is_older in self._marked() if first <= position)  # fmt: skip

    def rewind(self, position: int) -> None:
        """The sequence goes on from there, where it can."""
        self._places = tuple((first, min(last, position)) for first, last in self._places if first <= position)
        self._prompt = min(self._prompt, position)

    def end_prompt(self, position: int) -> None:
        """A reply begins here."""
        self._prompt = position

    def may_forget(self, length: int) -> bool:
        """Whether keeping less is worth it."""
        if self.keeps_all or not self._windows:
            return False
        behind = min(self._windows.values()) - 1  # a place
        return length - NEWEST - behind - max(self._places[-1][0] - behind, FIRST) >= STEP

    def forget(self, length: int) -> dict[str, list[tuple[Rows, Rows]]]:
        """Keeps less. By name: rows that are gone, one after the other, and those of them that were kept until now."""
        before = {name: self.of(name, length) for name in self._windows}
        self._keep_less(length)
        return {
            name: [
                (rows, (max(start, rows[0]), min(stop, rows[1])))
                for rows in self.gone(name, length)
                for start, stop in old_rows
                if start < rows[1] and rows[0] < stop
            ]
            for name, old_rows in before.items()
        }

    def _keep_less(self, length: int) -> None:
        start = length - NEWEST
        targets = [(0, FIRST), (max(self._prompt - PROMPT, 0), self._prompt), (start, length)]
        had = [(first, last if is_older else length) for (first, last), is_older in self._marked()]
        overlaps = sorted(
            (max(a, first), min(b, last)) for a, b in targets for first, last in had if max(a, first) <= min(b, last)
        )
        places: list[Rows] = []
        for first, last in overlaps:
            if places and first <= places[-1][1]:
                first, last = places[-1][0], max(last, places.pop()[1])
            places.append((first, last))
        self._places = tuple(places)

    def _marked(self) -> list[tuple[Rows, bool]]:
        """The places, and whether newer ones follow."""
        places = self._places
        return [(rows, index < len(places) - 1) for index, rows in enumerate(places)]

    def _rows(self, window: int, length: int) -> list[Rows]:
        rows: list[Rows] = []
        for (first, last), is_older in self._marked():
            start, end = max(first - window + 1, 0), last if is_older else length
            if rows and start <= rows[-1][1]:
                start, end = rows[-1][0], max(end, rows.pop()[1])
            rows.append((start, end))
        return rows


def most_rows(window: int, tokens: int, fed: int) -> int:
    """The most tokens that a layer with a window keeps. fed: tokens at once."""
    return min(tokens, FIRST + PROMPT + NEWEST + STEP + 2 * window + fed)
