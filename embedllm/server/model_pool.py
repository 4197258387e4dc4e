"""ModelPool: the models of a server, loaded when a request needs them and unloaded to make room.

The rules: a request in flight is never ended by a load. Waiting is first come, first served: the first request that
waits for room says which models have to go, and these take no new requests until it has its turn. Each load serves a
request before it may be undone, unless all who asked for it have gone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from embedllm.backends.system.host_memory import trim_heap
from embedllm.errors import DeviceUnavailable
from embedllm.loading.load import open_model
from embedllm.loading.options import LoadOptions
from embedllm.server.lease import Lease, ModelStatus, PoolBusy
from embedllm.server.memory_need import HOST, MemoryNeed, host_budget, memory_need
from embedllm.server.model_names import ModelNames, ServedModel
from embedllm.server.model_names import UnknownModel as UnknownModel
from embedllm.server.model_slot import Slot, Waiter

if TYPE_CHECKING:
    from embedllm.model.model import Model

T = TypeVar("T")

MAX_WAIT_S = 120.0  # of a request for its model, the load among it
MAX_WAITING = 256  # requests
_MAX_RETRY_S = 60
_log = logging.getLogger("embedllm")


class ModelPool:
    """Models by name. For one event loop; loads and unloads run in threads."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        load: Callable[[str, LoadOptions], Model] = open_model,
        memory: int | None = None,
        idle_seconds: float | None = None,
        max_wait: float = MAX_WAIT_S,
        max_waiting: int = MAX_WAITING,
        need: Callable[[ServedModel], MemoryNeed] = memory_need,
    ) -> None:
        """models: the first one answers requests that name none.

        load: opens a model, as embedllm.load() does; need: what it will take.
        memory: bytes of the host's memory that all of them may take together; None: nine tenths of what is free when
        the first one is loaded. A model that needs more is refused.
        idle_seconds: unload a model after that time without a request; None: only to make room.
        max_wait: seconds that a request waits for its model at most, its load among them. max_waiting: requests.
        Raises ValueError for names that are empty or given twice, and for values out of range.
        """
        for name, value in (("memory", memory), ("idle_seconds", idle_seconds), ("max_wait", max_wait)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}; expected more than 0.")
        self._names = ModelNames(models)
        self._slots = {model.name: Slot(model) for model in models}
        self._load, self._need = load, need
        self._memory, self._idle_s = memory, idle_seconds
        self._max_wait, self._max_waiting = max_wait, max_waiting
        self._waiting: list[Waiter] = []  # in the order of their arrival
        self._free: int | None = None  # of the host's memory, at the first load
        self._is_budget_known = False
        self._working: set[asyncio.Future[Any]] = set()  # loads and unloads
        self._wake: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Loads the pinned models. Raises what a load raises."""
        for slot in self._slots.values():
            if slot.served.pinned:
                async with self._hold(slot, None):
                    pass

    async def aclose(self) -> None:
        """Unloads all; requests that wait get PoolBusy. A reply that still runs ends as cancelled, at its next step."""
        self._is_closed = True
        if self._wake is not None:
            self._wake.cancel()
        for waiter in self._waiting:
            if not waiter.ready.done():
                waiter.ready.set_exception(self._closing())
        while self._working:
            await asyncio.wait([*self._working])
        for slot in self._slots.values():
            if slot.state == "loaded":
                self._unload(slot)
        while self._working:
            await asyncio.wait([*self._working])

    async def __aenter__(self) -> ModelPool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Lease]:
        """The model that a client names, for one request; it stays loaded until the end of the block.

        name: see ModelNames.find(); None and "": the first model.
        Raises UnknownModel, PoolBusy, and what load() raises, to all who waited for that load.
        """
        served, adapter = self._names.find(name)
        slot = self._slots[served.name]
        async with self._hold(slot, self._max_wait) as model:
            whole = served.name if adapter is None else f"{served.name}:{adapter}"
            yield Lease(model=model, adapter=adapter, name=whole)

    def listed(self) -> list[ModelStatus]:
        """All models, those that sleep, too."""
        now = _now()
        return [
            ModelStatus(
                name=slot.served.name,
                aliases=slot.served.aliases,
                adapters=slot.served.adapters,
                state=slot.state,
                memory_bytes=None if slot.need is None else slot.need.bytes,
                requests=slot.users,
                waiting=len(self._of(slot)),
                idle_s=None if slot.users or slot.released_at is None else now - slot.released_at,
                pinned=slot.served.pinned,
                error="" if slot.error is None else str(slot.error),
            )
            for slot in self._slots.values()
        ]

    @property
    def loaded(self) -> Mapping[str, Model]:
        """Those that are loaded now, by name, to look at: one of them may be unloaded at any await."""
        return {name: slot.model for name, slot in self._slots.items() if slot.model is not None}

    @property
    def waiting(self) -> int:
        """Requests that wait for a model."""
        return len(self._waiting)

    @asynccontextmanager
    async def _hold(self, slot: Slot, max_wait: float | None) -> AsyncIterator[Model]:
        waiter = Waiter(slot, asyncio.get_running_loop().create_future())
        if self._is_closed:
            raise self._closing()
        if len(self._waiting) >= self._max_waiting:
            raise self._busy(slot, f"{len(self._waiting)} requests wait for models already")
        self._waiting.append(waiter)
        try:
            self._pump()
            try:
                async with asyncio.timeout(max_wait):
                    await waiter.ready
            except TimeoutError:
                slot.promised_until = _now() + 2 * self._retry_after(slot)
                raise self._busy(slot, f"'{slot.served.name}' was not ready within {max_wait:g} s") from None
            assert slot.model is not None
            yield slot.model
        finally:
            if waiter.ready.done() and not waiter.ready.cancelled():
                waiter.ready.exception()  # it may have come too late for a task that was cancelled
            if waiter.is_admitted:
                slot.users -= 1
                slot.released_at = _now()
            else:
                self._waiting.remove(waiter)
            self._pump()

    def _pump(self) -> None:
        """Admits whom it can, and begins the loads and unloads that the first of the others needs."""
        if self._is_closed:
            return
        draining: list[Slot] = []
        blocked: set[str] = set()  # memories that somebody waits for
        for waiter in [*self._waiting]:
            slot = waiter.slot
            if waiter.ready.done():  # it has given up, and leaves the queue when it runs
                continue
            if slot.state == "loaded" and slot not in draining:
                self._admit(waiter)
            elif slot.state in ("asleep", "failed"):
                if slot.need is None:
                    self._measure(slot)
                elif slot.need.place not in blocked and not self._is_too_large(slot, slot.need):
                    missing = self._missing(slot, slot.need)
                    if missing <= 0:
                        self._begin_load(slot)
                    else:
                        blocked.add(slot.need.place)
                        draining += self._make_room(slot.need.place, missing)
        self._unload_idle()

    def _admit(self, waiter: Waiter) -> None:
        slot = waiter.slot
        slot.users += 1
        slot.admitted_at, slot.is_unserved, slot.promised_until = _now(), False, 0.0
        waiter.is_admitted = True
        self._waiting.remove(waiter)
        waiter.ready.set_result(None)

    def _budget(self, need: MemoryNeed) -> float:
        """Bytes that all models may take of a memory."""
        if need.place != HOST:
            return math.inf if need.limit is None else need.limit
        if self._memory is None and not self._is_budget_known:
            self._free, self._is_budget_known = host_budget(), True
        capacity = self._free if self._memory is None else self._memory
        return math.inf if capacity is None else capacity

    def _others(self, slot: Slot, place: str) -> list[Slot]:
        """Those that take some of a memory, or are about to give it back."""
        return [
            other
            for other in self._slots.values()
            if other is not slot and other.takes_memory and other.need is not None and other.need.place == place
        ]

    def _is_too_large(self, slot: Slot, need: MemoryNeed) -> bool:
        """Whether it can never fit into a budget that was set, which is said to all who wait for it."""
        if self._memory is None or need.place != HOST:
            return False
        pinned = sum(_bytes(other) for other in self._others(slot, need.place) if other.served.pinned)
        if need.bytes + pinned <= self._memory:
            return False
        rest = f", of which pinned models take {pinned / 2**20:,.0f}" if pinned else ""
        self._fail(
            slot,
            DeviceUnavailable(
                f"'{slot.served.name}' needs about {need.bytes / 2**20:,.0f} MiB; the models' memory budget is "
                f"{self._memory / 2**20:,.0f} MiB{rest}. Raise the budget, or serve a smaller model."
            ),
        )
        return True

    def _missing(self, slot: Slot, need: MemoryNeed) -> float:
        """Bytes to free first. What is more than a budget that nobody has set is loaded alone: load() judges it."""
        budget, others = self._budget(need), self._others(slot, need.place)
        pinned = sum(_bytes(other) for other in others if other.served.pinned)
        return min(need.bytes, budget - pinned) - (budget - sum(map(_bytes, others))) if budget < math.inf else 0

    def _make_room(self, place: str, missing: float) -> list[Slot]:
        """Unloads models as soon as nobody uses any of those that have to go; until then they take no new requests."""
        now = _now()
        taking = [slot for slot in self._slots.values() if slot.takes_memory and slot.need is not None]
        missing -= sum(_bytes(slot) for slot in taking if slot.state == "unloading" and _place(slot) == place)
        loaded = [slot for slot in taking if slot.state == "loaded" and _place(slot) == place]
        choice = [slot for slot in loaded if not slot.served.pinned and not self._is_owed(slot, now)]
        choice.sort(key=lambda slot: (slot.users > 0, slot.admitted_at))
        victims: list[Slot] = []
        for slot in choice:
            if sum(map(_bytes, victims)) < missing:
                victims.append(slot)
        for slot in [*victims]:  # small ones that a later, larger one made needless
            if sum(map(_bytes, victims)) - _bytes(slot) >= missing:
                victims.remove(slot)
        if sum(map(_bytes, victims)) < missing:
            return []  # a load that goes on has to serve first
        if not any(slot.users for slot in victims):
            for slot in victims:
                self._unload(slot)
        return victims

    def _is_owed(self, slot: Slot, now: float) -> bool:
        """Whether a load has still to serve somebody."""
        return slot.is_unserved and (now < slot.promised_until or any(not one.ready.done() for one in self._of(slot)))

    def _unload_idle(self) -> None:
        """Unloads what nobody has used for long, and sees to it that this is looked at again in time."""
        now, later = _now(), math.inf
        for slot in self._slots.values():
            if slot.state != "loaded" or slot.served.pinned or slot.users:
                continue
            if slot.is_unserved and now < slot.promised_until:
                later = min(later, slot.promised_until)
            elif self._idle_s is not None and not self._of(slot):
                due = max(slot.released_at or 0.0, slot.loaded_at) + self._idle_s
                if due <= now:
                    self._unload(slot)
                else:
                    later = min(later, due)
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None if later == math.inf else asyncio.get_running_loop().call_at(later, self._pump)

    def _measure(self, slot: Slot) -> None:
        slot.state = "loading"
        self._run(partial(self._need, slot.served), partial(self._measured, slot))

    def _measured(self, slot: Slot, future: asyncio.Future[MemoryNeed]) -> None:
        if (error := _error_of(future)) is not None:
            self._fail(slot, error)
        else:
            slot.state, slot.need = "asleep", future.result()

    def _begin_load(self, slot: Slot) -> None:
        slot.state, slot.error = "loading", None
        self._run(partial(self._load, slot.served.path, slot.served.options), partial(self._loaded, slot, _now()))

    def _loaded(self, slot: Slot, began: float, future: asyncio.Future[Model]) -> None:
        if (error := _error_of(future)) is not None:
            self._fail(slot, error)
            return
        slot.state, slot.model, slot.is_unserved, slot.loaded_at = "loaded", future.result(), True, _now()
        slot.load_s = slot.loaded_at - began
        for waiter in self._of(slot):  # all of them, those behind a request for another model, too: a load less
            if not waiter.ready.done():
                self._admit(waiter)
        _log.info("loaded '%s' in %.1f s", slot.served.name, slot.load_s)

    def _unload(self, slot: Slot) -> None:
        model, slot.model, slot.state = slot.model, None, "unloading"
        assert model is not None
        self._run(partial(_close, model), partial(self._unloaded, slot))

    def _unloaded(self, slot: Slot, done: asyncio.Future[None]) -> None:
        slot.state = "asleep"
        if (error := _error_of(done)) is not None:
            _log.warning("unloading '%s' failed: %s", slot.served.name, error)
        _log.info("unloaded '%s'", slot.served.name)

    def _fail(self, slot: Slot, error: BaseException) -> None:
        """Says it to all who wait for the model; the next request tries again."""
        slot.state, slot.error, slot.need = "failed", error, None
        _log.warning("loading '%s' failed: %s", slot.served.name, error)
        for waiter in self._of(slot):
            if not waiter.ready.done():
                waiter.ready.set_exception(error)

    def _run(self, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]) -> None:
        """Work in a thread, and what follows in the event loop."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._working.add(future)

        def finish(future: asyncio.Future[T]) -> None:
            self._working.discard(future)
            done(future)
            self._pump()

        future.add_done_callback(finish)

    def _of(self, slot: Slot) -> list[Waiter]:
        return [waiter for waiter in self._waiting if waiter.slot is slot]

    def _busy(self, slot: Slot, reason: str) -> PoolBusy:
        return PoolBusy(f"{reason}; other models are in use. Try again later.", retry_after=self._retry_after(slot))

    def _retry_after(self, slot: Slot) -> int:
        """Seconds: what the loads of those that wait took the last time."""
        pending = {id(one.slot): one.slot for one in self._waiting} | {id(slot): slot}
        return min(max(math.ceil(sum(one.load_s for one in pending.values())), 1), _MAX_RETRY_S)

    def _closing(self) -> PoolBusy:
        return PoolBusy("the server is closing.", retry_after=_MAX_RETRY_S)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _bytes(slot: Slot) -> int:
    return 0 if slot.need is None else slot.need.bytes


def _place(slot: Slot) -> str:
    return HOST if slot.need is None else slot.need.place


def _error_of(done: asyncio.Future[T]) -> BaseException | None:
    return asyncio.CancelledError("the event loop is closing") if done.cancelled() else done.exception()


def _close(model: Model) -> None:
    """Frees it, and gives what the heap keeps of it back to the system."""
    model.close()
    gc.collect()
    trim_heap()
