"""What a pool of models gives and tells: a model that stays loaded, that none is free, and how it is with each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from embedllm.errors import EmbedError

if TYPE_CHECKING:
    from embedllm.model.model import Model

State: TypeAlias = Literal["asleep", "loading", "loaded", "unloading", "failed"]


class PoolBusy(EmbedError):
    """A request has not got its model in time; nothing was begun, and it can be made again.

    retry_after: seconds after which that may go better.
    """

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A model that stays loaded as long as this is held."""

    model: Model
    """Loaded."""
    adapter: str | None
    """The LoRA adapter that was asked for."""
    name: str
    """The served model's name; with an adapter "name:adapter"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """How it is with a model."""

    name: str
    """What clients write."""
    aliases: tuple[str, ...]
    """Other names."""
    adapters: tuple[str, ...]
    """LoRA adapters: each is "name:adapter"."""
    state: State
    """"failed": its last load did; a request tries again."""
    memory_bytes: int | None
    """What it takes when loaded, as estimated; None: not known yet."""
    requests: int
    """That use it now."""
    waiting: int
    """Requests that wait for it."""
    idle_s: float | None
    """Seconds since the last request; None: there was none yet, or one runs."""
    pinned: bool
    """Never unloaded."""
    error: str = ""
    """Of the last load, where it failed."""
