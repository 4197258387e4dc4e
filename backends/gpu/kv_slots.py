"""Which sequence has which slot of a pool of KV, and where they go so that a step finds its rows side by side.

A step covers the slots from 0 to before its width. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")
# of steps. Not 2 and 16: MatMulNBits takes longer for them than for 4 and 32 rows (docs/cuda.md)
WIDTHS = (1, 4, 8, 32, 64)


def padded_width(count: int, limit: int) -> int:
    """How many rows a step of that many is padded to, at most `limit`."""
    return min(next(width for width in WIDTHS if width >= count), limit)


def runs(places: Sequence[int], step: int = 1) -> list[tuple[int, int]]:
    """Where places follow each other by `step`: the first index, and the one behind the last, of each such run."""
    ends = [at for at in range(1, len(places)) if places[at] != places[at - 1] + step]
    return list(zip([0, *ends], [*ends, len(places)], strict=True))


@dataclass(frozen=True, slots=True)
class Move:
    """What lies in one slot goes to another, in which nothing is held."""

    source: int
    to: int


class SlotTable(Generic[S]):
    """The owners of slots. An owner that does not step keeps its slot, also within the width of others' steps."""

    def __init__(self) -> None:
        self._owners: list[S | None] = []
        self._slots: dict[S, int] = {}

    def __len__(self) -> int:
        """Slots up to the last one that is taken."""
        return len(self._owners)

    def __contains__(self, owner: S) -> bool:
        return owner in self._slots

    def slot(self, owner: S) -> int:
        return self._slots[owner]

    def owners(self, width: int) -> Sequence[S | None]:
        """By slot, those below the width; None: a free one."""
        return [*self._owners[:width], *[None] * (width - len(self._owners))]

    def take(self, owner: S) -> int:
        """Gives it the first free slot."""
        slot = self._free_from(0)
        self._put(owner, slot)
        return slot

    def release(self, owner: S) -> None:
        self._owners[self._slots.pop(owner)] = None
        while self._owners and self._owners[-1] is None:
            self._owners.pop()

    def arrange(self, stepping: Sequence[S], width: int, *, may_wait: Callable[[S], bool]) -> list[Move]:
        """Moves, one after the other, that bring all that step below the width, at least their number.

        may_wait: whether an owner that does not step may stay there: the step writes one token behind what it holds.
        """
        chosen, moves = set(stepping), []
        outside = [owner for owner in stepping if self._slots[owner] >= width]
        inside = self.owners(width)
        free = [slot for slot, owner in enumerate(inside) if owner is None]
        waiting = [owner for owner in inside if owner is not None and owner not in chosen]
        leaving = [owner for owner in waiting if not may_wait(owner)]
        staying = [owner for owner in waiting if may_wait(owner)]
        while len(free) + len(leaving) < len(outside):
            leaving.append(staying.pop())
        for owner in leaving:
            slot = self._slots[owner]
            moves.append(self._move(owner, self._free_from(width)))
            free.append(slot)
        moves += [self._move(owner, slot) for owner, slot in zip(outside, free, strict=False)]
        return moves

    def undo(self, moves: Sequence[Move]) -> None:
        """Takes back what arrange() did."""
        for move in reversed(moves):
            owner = self._owners[move.to]
            assert owner is not None  # it was moved there
            self._move(owner, move.source)

    def _free_from(self, first: int) -> int:
        return next((slot for slot in range(first, len(self._owners)) if self._owners[slot] is None),
                    max(first, len(self._owners)))  # fmt: skip

    def _put(self, owner: S, slot: int) -> None:
        self._owners += [None] * (slot + 1 - len(self._owners))
        self._owners[slot], self._slots[owner] = owner, slot

    def _move(self, owner: S, to: int) -> Move:
        source = self._slots[owner]
        self.release(owner)
        self._put(owner, to)
        return Move(source, to)
