"""What a scheduler has to do at one moment, for metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedllm.generation.job import Job
from embedllm.generation.scheduler import Scheduler
from embedllm.kv_cache.sequence_pool import SequencePool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """What a scheduler has to do at one moment."""

    running: int  # requests
    waiting: int
    preempted: int  # times a request was, since the model was loaded
    kv_usage: float  # share of the KV cache that sequences hold, 0 to 1
    running_adapters: tuple[str, ...]  # names, of the requests that run
    waiting_adapters: tuple[str, ...]


def scheduler_statistics(scheduler: Scheduler, pool: SequencePool) -> SchedulerStatistics:
    """From any thread: what it has to do now; pool: of its sequences."""
    running, waiting = [*scheduler.running], [*scheduler.waiting]
    return SchedulerStatistics(
        running=len(running),
        waiting=len(waiting),
        preempted=scheduler.preempted,
        kv_usage=pool.kv_usage(scheduler.max_running),
        running_adapters=_adapter_names(running),
        waiting_adapters=_adapter_names(waiting),
    )


def _adapter_names(jobs: Sequence[Job]) -> tuple[str, ...]:
    return tuple(sorted({job.adapter.name for job in jobs if job.adapter is not None}))
