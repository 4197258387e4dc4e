"""Low-rank adapters (LoRA): what one adds to a model, and those that a model has at hand. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedllm.types import F32


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Adapter:
    """To the product of x with a matrix it adds x @ a @ b.

    factors: by the matrix's name, a [columns, rank] and b [rank, rows], with the scale in b.
    """

    name: str
    sha256: str  # of the factors: KV is shared by what has the same
    factors: Mapping[str, tuple[F32, F32]]

    @property
    def bytes(self) -> int:
        return sum(a.nbytes + b.nbytes for a, b in self.factors.values())


def is_same(one: Adapter | None, other: Adapter | None) -> bool:
    """Whether what was computed with one is what the other gives."""
    return one is other or (one is not None and other is not None and one.sha256 == other.sha256)


def present(adapters: Adapters | None) -> Adapters:
    """Raises ValueError when a model was loaded for none."""
    if adapters is None:
        raise ValueError("this model was loaded without adapters; load it with adapters={}, to add some later.")
    return adapters


class Adapters:
    """Those of a model, by the names that requests choose them by. May be used from several threads."""

    def __init__(self, adapters: Iterable[Adapter] = ()) -> None:
        self._by_name: dict[str, Adapter] = {adapter.name: adapter for adapter in adapters}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def add(self, adapter: Adapter) -> None:
        """Raises ValueError for a name that is taken."""
        if self._by_name.setdefault(adapter.name, adapter) is not adapter:
            raise ValueError(f"there is an adapter '{adapter.name}' already; remove it first, or choose another name.")

    def remove(self, name: str) -> None:
        """What runs with it goes on. Raises ValueError when there is none of that name."""
        if self._by_name.pop(name, None) is None:
            raise ValueError(self._unknown(name))

    def named(self, name: str) -> Adapter:
        """Raises ValueError when there is none of that name."""
        adapter = self._by_name.get(name)
        if adapter is None:
            raise ValueError(self._unknown(name))
        return adapter

    def computed(self, sha256: str | None) -> Adapter | None:
        """The one whose factors have this hash, whatever its name is; None when there is none."""
        return next((adapter for adapter in [*self._by_name.values()] if adapter.sha256 == sha256), None)

    def _unknown(self, name: object) -> str:
        return f"there is no adapter {name!r}; this model has: {', '.join(map(repr, self._by_name)) or 'none'}."
