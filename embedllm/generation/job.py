"""A request on its way through a scheduler, and the feeds that it waits for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from embedllm.generation.loop import Feed
from embedllm.kv_cache.sequence import CachedSequence

if TYPE_CHECKING:
    from embedllm.cancel import Cancel
    from embedllm.package.lora.adapter import Adapter
    from embedllm.types import Logits

# gives what goes to the caller; asks for a feed, and is sent its rows; or for several, and is sent a list of rows
Steps: TypeAlias = "Generator[object, Any, None]"
PRIORITY_S = 10.0  # one step of priority is worth this many seconds of waiting, so that none waits for ever


class Receiver(Protocol):
    """Where the items of a request go."""

    @property
    def is_full(self) -> bool:
        """Whether nobody reads them at present: the request pauses."""
        ...

    def flush(self) -> None:
        """Gives the reader what it was not woken for yet."""
        ...

    def put(self, item: Any) -> None: ...  # noqa: ANN401  # of the request's kind

    def end(self, error: BaseException | None = None) -> None: ...


@dataclass(slots=True, eq=False)
class Ask:
    """A feed that a request waits for."""

    job: Job
    feed: Feed
    sequence: CachedSequence  # the feed's
    fed: int = 0  # tokens of it, so far
    rows: Sequence[Logits] | None = None
    error: BaseException | None = None

    @property
    def left(self) -> int:
        return len(self.feed.tokens) - self.fed

    @property
    def is_answered(self) -> bool:
        return self.rows is not None or self.error is not None


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One request on its way through a scheduler."""

    begin: Callable[[Job], Steps]  # makes the generator, in the loop's thread, once the request is admitted
    outbox: Receiver
    cancel: Cancel  # of it alone
    unstarted: Callable[[Job], object]  # what the caller gets when it is cancelled before
    prompt: Sequence[int]  # one that another request may read for it, too
    tokens: int = 1  # whose KV needs memory
    priority: int = 0  # lower ones are served earlier
    timeout_s: float = math.inf  # after which it ends with "timeout"
    is_rejectable: bool = True  # by a full queue
    sequence: CachedSequence | None = None  # that it runs on, or will; None: it has several, or none yet
    adapter: Adapter | None = None
    submitted_s: float = field(default_factory=lambda: time.monotonic())
    queued_s: float = 0.0  # seconds it waited until it was admitted
    rank: float = field(init=False)  # lower ones are served earlier
    deadline_s: float = field(init=False)
    steps: Steps | None = None  # None: it waits
    asks: list[Ask] = field(default_factory=list)
    is_list: bool = False  # it asked for several at once
    after_recall: list[Ask] | None = None  # what it asked for, while KV that was taken away is computed again
    is_busy: bool = False  # its own code runs, which may have called the model again
    shared: dict[Job, int] = field(default_factory=dict)  # tokens that it takes from another one when they are read

    def __post_init__(self) -> None:
        self.rank = self.submitted_s + self.priority * PRIORITY_S
        self.deadline_s = self.submitted_s + self.timeout_s

    @property
    def is_active(self) -> bool:
        """Whether it can go on: its reader keeps up, and its own code does not run."""
        return not self.is_busy and not self.outbox.is_full

    @property
    def can_wait(self) -> bool:
        """Whether its KV can be taken away until there is room again: of one sequence, and of this model.

        Not while a draft model reads for it.
        """
        is_own = all(ask.sequence is self.sequence for ask in self.asks)
        return not self.is_busy and self.sequence is not None and self.after_recall is None and is_own

    def is_over(self, now_s: float) -> bool:
        return self.cancel.cancelled or now_s >= self.deadline_s
