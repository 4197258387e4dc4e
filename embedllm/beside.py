"""Work that blocks, in a thread beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from embedllm.decode import Cancel

T = TypeVar("T")


async def beside(work: Callable[[Cancel], T], cancel: Cancel | None = None) -> T:
    """What the work gives. When the task is cancelled, so is the work, and its end is awaited.

    work: is given a switch of its own to look at, which `cancel` switches too.
    """
    import asyncio  # a third of the import time of the whole package, and only asynchronous callers need it

    own = Cancel()

    def pass_on(stop: bool) -> None:
        if stop:
            own.cancel()

    with (cancel or Cancel()).watching(pass_on):
        # no task: a closing event loop would cancel that too, and the work would go on unseen
        working = asyncio.get_running_loop().run_in_executor(None, work, own)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            own.cancel()
            while not working.done():
                with suppress(asyncio.CancelledError):  # cancelled again
                    await asyncio.wait([working])
            if not working.cancelled():
                working.exception()  # nobody asks for it any more
            raise
