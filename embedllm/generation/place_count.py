"""How many replies a model makes at once, and how many calls wait: what was asked for, or what there is memory for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedllm.backends.base import best_parallel
from embedllm.generation.admission import MOST_WAITING, USUAL, Places

if TYPE_CHECKING:
    from embedllm.backends.base import Engine
    from embedllm.loading.memory_estimate import Fit

_MOST = 256  # replies at once, where there is much memory


def check_places(most: int | None, most_waiting: int | None) -> None:
    """Raises ValueError for no place, fewer than none that wait, and what is no whole number."""
    for name, value, least in (("max_sequences", most, 1), ("max_waiting", most_waiting, 0)):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"{name} is {value!r}; expected a whole number from {least} on, or None.")


def places(memory: Fit | None, engine: Engine, most: int | None, most_waiting: int | None) -> Places:
    """Places for as many replies as were asked for; None: as many as have room for a whole context of KV.

    There are places for those that the engine runs in one step in any case.
    """
    if most is None:
        most = max(_fitting(memory), best_parallel(engine))
    return Places(most, MOST_WAITING if most_waiting is None else most_waiting)


def _fitting(memory: Fit | None) -> int:
    if memory is None or memory.free_bytes is None:
        return USUAL
    more = (memory.free_bytes - memory.needed_bytes) // max(memory.kv_bytes + memory.scratch_bytes, 1)
    return min(max(1 + more, USUAL), _MOST)
