"""Runs blocking work in a thread, outside the event loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from embedllm.cancel import Cancel, given_or_own

if TYPE_CHECKING:
    from asyncio import Future
    from concurrent.futures import ThreadPoolExecutor

T = TypeVar("T")


async def run_in_thread(work: Callable[[Cancel], T], cancel: Cancel | None = None) -> T:
    """The result of the work. When the task is cancelled, so is the work, and its end is awaited.

    work: is given a switch of its own to look at, which `cancel` switches too.
    """
    import asyncio  # a third of the import time of the whole package, and only asynchronous callers need it

    with given_or_own(cancel).passed_on() as own:
        return await await_cancellable(asyncio.get_running_loop().run_in_executor(None, work, own), own.cancel)


class OrderedThread:
    """A thread that does short work of coroutines, in the order in which they ask for it.

    None of the event loop's executor, whose threads may all wait for replies.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What the work gives. It has no other effect: when the task is cancelled, nobody waits for its end."""
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        if self._executor is None or self._process != os.getpid():  # a process that was forked is without its thread
            self._executor, self._process = ThreadPoolExecutor(1, "embedllm-requests"), os.getpid()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


async def await_cancellable(working: Future[T], stop: Callable[[], object]) -> T:
    """What an executor's work gives; when the task is cancelled, the work is stopped, and its end awaited.

    working: no task, which a closing event loop would cancel too, so that the work would go on unseen.
    """
    import asyncio

    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop()
        while not working.done():
            with suppress(asyncio.CancelledError):  # cancelled again; what it uses is of no use before its end
                await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # nobody asks for it any more
        raise
