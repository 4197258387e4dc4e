"""KV states as arrays: several in a row as one, and those of a device on the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from embedllm.backends.base import KeyValues


class DeviceKv(Sequence[tuple[Any, Any]], ABC):
    """Keys and values of some tokens, by layer, as a part of what lies on a device: to cut it costs nothing.

    Blocks of a prefix are cut and put together by the dozen, and each has two arrays a layer.
    """

    __slots__ = ("start", "stop", "values")
    is_on_device = True

    def __init__(self, values: list[Any], start: int, stop: int) -> None:
        """values: keys and values in turn, of the same tokens. The state has those from start to before stop."""
        self.values = values
        self.start = start
        self.stop = stop

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def part(self, start: int, stop: int) -> Self:
        """Other tokens of the same values."""
        ...

    @abstractmethod
    def array(self, value: Any) -> Any:  # noqa: ANN401 - whatever the device has
        """The tokens of this state, of one of the values: [kv heads, T, D]."""
        ...

    def __len__(self) -> int:
        return len(self.values) // 2

    def __getitem__(self, index: int) -> tuple[Any, Any]:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} layers; found {index}")
        at = 2 * (index % len(self))
        return self.array(self.values[at]), self.array(self.values[at + 1])

    def sliced(self, start: int, stop: int) -> Self:
        """The tokens from start to before stop of these."""
        return self.part(self.start + start, min(self.start + stop, self.stop))

    def is_before(self, other: DeviceKv) -> bool:
        """Whether the tokens of another one lie right behind these."""
        return self.values is other.values and self.stop == other.start

    def with_next(self, other: DeviceKv) -> Self:
        """These tokens and those of another one that lie right behind them."""
        return self.part(self.start, other.stop)


def joined(states: Sequence[KeyValues]) -> KeyValues:
    """The state of all tokens, from those of their parts in order."""
    if len(states) == 1:
        return states[0]
    if is_on_device(states[0]):
        return reduce(lambda before, state: before.with_next(state), states)  # type: ignore[attr-defined]  # DeviceKv
    return [
        (np.concatenate([key for key, _ in layer], axis=1), np.concatenate([value for _, value in layer], axis=1))
        for layer in zip(*states, strict=True)
    ]


def is_on_device(state: KeyValues) -> bool:
    """Whether its arrays are in a device's own memory (DeviceKv)."""
    return getattr(state, "is_on_device", False)


def can_join(state: KeyValues, following: KeyValues) -> bool:
    """Whether joined() takes them one behind the other: on a device, parts of the same arrays only."""
    if is_on_device(state) and is_on_device(following):
        return state.is_before(following)  # type: ignore[attr-defined]  # DeviceKv
    return not is_on_device(state) and not is_on_device(following)


def on_host(state: KeyValues) -> KeyValues:
    """The state in the host's memory."""
    if not is_on_device(state):
        return state
    return [(np.asarray(key), np.asarray(value)) for key, value in state]
