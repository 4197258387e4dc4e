"""What a pool knows of each of its models, and of who waits for one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedllm.server.lease import State
from embedllm.server.memory_need import MemoryNeed
from embedllm.server.model_names import ServedModel

if TYPE_CHECKING:
    from embedllm.model.model import Model


@dataclass(slots=True, eq=False)
class Slot:
    """A model and how it is with it."""

    served: ServedModel
    state: State = "asleep"
    model: Model | None = None
    need: MemoryNeed | None = None  # None: not known yet
    users: int = 0
    is_unserved: bool = False  # loaded, and no request has had it yet
    promised_until: float = 0.0  # whoever was told to come again shall find it
    admitted_at: float = 0.0  # the last request
    released_at: float | None = None
    loaded_at: float = 0.0
    load_s: float = 5.0  # the last load took; before the first a guess
    error: BaseException | None = None

    @property
    def takes_memory(self) -> bool:
        return self.need is not None and self.state in ("loading", "loaded", "unloading")


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for its model."""

    slot: Slot
    ready: asyncio.Future[None]
    is_admitted: bool = False
