"""The hidden states of the newest tokens of a sequence, on a device: what a draft head there reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from embedllm.backends.gpu.device_memory import DeviceBlock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from embedllm.backends.gpu.device_memory import DeviceMemory

KEPT = 256  # rows


class HiddenSpan(NamedTuple):
    """Rows of consecutive tokens."""

    rows: DeviceHiddenRows
    start: int
    stop: int

    def copy(self, to: int) -> None:
        """Copies them to an address, one behind the other."""
        self.rows.copy(to, self.start, self.stop)


class DeviceHiddenRows:
    """A ring of rows, from that of the token `first` to the one before `stop`. Kept once a head follows."""

    def __init__(self, memory: DeviceMemory, lock: AbstractContextManager[object], row_bytes: int) -> None:
        """lock: held where memory is taken."""
        self.first = self.stop = 0
        self._memory, self._lock, self._row_bytes = memory, lock, row_bytes
        self._block: DeviceBlock | None = None

    def keep(self) -> None:
        """Raises DeviceError when memory is short."""
        if self._block is None:
            with self._lock:
                self._block = DeviceBlock(self._memory, KEPT * self._row_bytes)

    def put(self, stop: int, address: int, count: int) -> None:
        """Takes the rows of the `count` tokens before `stop`, which lie there, in place of those from there on."""
        if self._block is None:
            return
        start = stop - count
        if not self.first <= start <= self.stop:
            self.first = start  # between what is kept and these, some are missing
        row_count = min(count, KEPT)
        source = address + (count - row_count) * self._row_bytes
        for place, rows in _pieces(stop - row_count, stop):
            self._memory.copy(self._address(place), source, width=rows * self._row_bytes)
            source += rows * self._row_bytes
        self.first, self.stop = max(self.first, stop - KEPT), stop

    def get(self, start: int, stop: int) -> HiddenSpan:
        """Those of the tokens from `start` to before `stop`, which are there."""
        assert self.first <= start <= stop <= self.stop
        return HiddenSpan(self, start, stop)

    def copy(self, to: int, start: int, stop: int) -> None:
        """Copies rows to an address, one behind the other."""
        for place, rows in _pieces(start, stop):
            self._memory.copy(to, self._address(place), width=rows * self._row_bytes)
            to += rows * self._row_bytes

    def clear(self) -> None:
        """Forgets all: tokens come that nobody gives hidden states of."""
        self.first = self.stop = 0

    def _address(self, place: int) -> int:
        assert self._block is not None
        return self._block.address + place * self._row_bytes


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where the rows of tokens lie in the ring: the first place, and how many are side by side."""
    while start < stop:
        place = start % KEPT
        count = min(stop - start, KEPT - place)
        yield place, count
        start += count
