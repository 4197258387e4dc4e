"""An event loop whose clock jumps to the next timer, and whose threads take the time that a test says."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Idle(selectors.SelectSelector):
    """Never waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: float | None = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.waited = timeout
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Work of executors is done at once, and its result comes `thread_s()` seconds later."""

    def __init__(self, thread_s: Callable[[], float]) -> None:
        self._idle = _Idle()
        self._now = 0.0
        self._thread_s = thread_s
        super().__init__(self._idle)

    def time(self) -> float:
        if self._idle.waited:
            self._now += self._idle.waited
            self._idle.waited = 0.0
        elif self._idle.waited is None:
            raise AssertionError("deadlock: nothing will ever happen")
        return self._now

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: object) -> asyncio.Future[T]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride] # no thread
        done: asyncio.Future[T] = self.create_future()
        try:
            found, error = func(*args), None
        except Exception as failure:  # noqa: BLE001 # what a thread would hand over
            found, error = None, failure

        def finish() -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(found)  # type: ignore[arg-type]

        self.call_later(self._thread_s(), finish)
        return done


def simulate(main: Callable[[], Coroutine[Any, Any, T]], thread_s: Callable[[], float] = lambda: 1.0) -> T:
    """Runs a coroutine in simulated time. Raises AssertionError where all wait for nothing."""
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(thread_s)) as runner:
        return runner.run(main())
