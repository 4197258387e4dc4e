"""Engine and session of a browser: what JavaScript does with onnxruntime-web, as the rule asks for it. Pyodide only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

from embedllm.backends.base import Device, Interrupted
from embedllm.backends.browser.javascript import (
    JsValue,
    call,
    check_can_wait,
    end_of,
    large_numbers,
    settled,
    started,
    text_or_none,
    translating,
    wait,
    whole_numbers,
)
from embedllm.backends.browser.logits import JsRow, listed_row
from embedllm.backends.checks import check_rewind, check_tokens
from embedllm.backends.images import FIRST_ID, ImageFeatures
from embedllm.backends.sessions.topk_logits import ListedRow
from embedllm.package.package import Package

_PAGE_FIRST_ID = 1 << 52  # FIRST_ID as JavaScript has it, whose whole numbers end at 2 ** 53
_AWAIT = "'await llm.agenerate(...)', 'async for chunk in llm.astream(...)' or 'await conversation.asay(...)'"


class JsDevice(Protocol):
    """A device, as JavaScript has it: bindings_web/src/engine/engine.js."""

    name: str
    backend: str
    available: bool


class JsSession(Protocol):
    """A session, as JavaScript has it: bindings_web/src/engine/session.js."""

    position: int
    capacity: int

    def feed(self, tokens: JsValue) -> Awaitable[JsRow]: ...
    def rewind(self, position: int) -> None: ...
    def interrupt(self, stop: bool) -> None: ...
    def close(self) -> None: ...


class JsEngine(Protocol):
    """An engine, as JavaScript has it: bindings_web/src/engine/engine.js."""

    device: JsDevice
    context: int
    chunk: int

    def open(self, capacity: int) -> JsSession: ...
    def close(self) -> None: ...


def device_of(device: JsDevice) -> Device:
    """A device of JavaScript's, which may lack what there is nothing to say of, or have null there."""
    memory = getattr(device, "memory", None)
    return Device(
        name=device.name,
        backend=device.backend,
        description=text_or_none(getattr(device, "description", None)) or "",
        available=device.available is True,
        reason=text_or_none(getattr(device, "reason", None)) or "",
        remedy=text_or_none(getattr(device, "remedy", None)) or "",
        memory=int(memory) if isinstance(memory, int | float) else 0,
    )


def page_id(token: int) -> int:
    """A token's id as JavaScript has it, where images have others (bindings_web/src/images/features.js)."""
    return token if token < FIRST_ID else token - FIRST_ID + _PAGE_FIRST_ID


def own_id(token: int) -> int:
    """The id that page_id() is of."""
    return token if token < _PAGE_FIRST_ID else token - _PAGE_FIRST_ID + FIRST_ID


class WebEngine:
    """A model that JavaScript has loaded."""

    def __init__(self, package: Package, engine: JsEngine) -> None:
        self.device = device_of(engine.device)
        self.context = engine.context
        self.chunk = engine.chunk
        self.remedy = package.larger_context
        self.vocabulary = package.decoder.vocabulary
        self.images: ImageFeatures | None = None  # where JavaScript encodes those of prompts
        self.feeding: set[WebSession] = set()  # their feeds are under way; what they use is not closed before
        self._engine: JsEngine | None = engine
        self._is_closed = False
        self._left: set[asyncio.Future[None]] = set()

    def open(self, capacity: int = 0) -> WebSession:
        if self._engine is None or self._is_closed:
            raise ValueError("this model was closed")
        return WebSession(self, call(self._engine.open, capacity))

    def close(self) -> None:
        self._is_closed = True
        self.settle()

    def left(self, waiting: asyncio.Future[None]) -> None:
        """Keeps what waits for the end of a feed that nobody awaits; an event loop keeps no task."""
        self._left.add(waiting)
        waiting.add_done_callback(self._left.discard)

    def settle(self) -> None:
        """Frees what was closed while feeds were under way, when none is any more."""
        if self._is_closed and not self.feeding and self._engine is not None:
            engine, self._engine = self._engine, None
            call(engine.close)


class WebSession:
    """One sequence. JavaScript's own position follows this one's at the next feed, also after a feed that failed."""

    def __init__(self, engine: WebEngine, session: JsSession) -> None:
        self.position = 0
        self._engine = engine
        self._session: JsSession | None = session
        self._promise: asyncio.Future[JsRow] | None = None  # of the feed that is under way
        self._is_stopping = False
        self._is_closed = False
        self._fed = 0  # how often

    @property
    def capacity(self) -> int:
        return self._session.capacity if self._session is not None else 0

    @property
    def inner(self) -> JsSession:
        """JavaScript's own session, at this one's position. Raises ValueError once it was closed."""
        session = self._session
        if session is None or self._is_closed:
            raise ValueError("this session was closed")
        if session.position != self.position:
            call(session.rewind, self.position)
        return session

    def feed(self, tokens: Sequence[int]) -> ListedRow:
        """As in the protocol; raises ValueError where no synchronous call can wait."""
        check_can_wait(_AWAIT)
        if self._promise is not None:  # of a task that was dropped
            wait(self._ended(self._promise))
        promise = self._begin(tokens)
        try:
            with translating():
                row = wait(promise)
        finally:
            self._end(promise)
        return self._fed_row(row, len(tokens))

    async def afeed(self, tokens: Sequence[int]) -> ListedRow:
        if self._promise is not None:  # of a task that was dropped
            await self._ended(self._promise)
        promise = self._begin(tokens)
        try:
            with translating():
                await settled(promise)
                row = promise.result()
        except asyncio.CancelledError:
            self.interrupt()
            await self._ended(promise)
            raise
        except GeneratorExit:  # dropped: nothing can be awaited in here
            self.interrupt()
            self._engine.left(asyncio.ensure_future(self._ended(promise)))
            raise
        except BaseException:
            self._end(promise)
            raise
        self._end(promise)
        return self._fed_row(row, len(tokens))

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = position

    def interrupt(self, stop: bool = True) -> None:
        self._is_stopping = stop
        if self._session is not None:
            self._session.interrupt(stop)

    def close(self) -> None:
        self._is_closed = True
        self.position = 0
        self._fed += 1
        self._free()

    def _begin(self, tokens: Sequence[int]) -> asyncio.Future[JsRow]:
        """Starts a feed."""
        if self._session is None or self._is_closed:
            raise ValueError("this session was closed")
        engine = self._engine
        check_tokens(tokens, self.position, vocabulary=engine.vocabulary, limit=engine.context, remedy=engine.remedy,
                     images=engine.images)  # fmt: skip
        if self._is_stopping:
            raise Interrupted
        self._fed += 1
        session = self.inner
        with translating():
            ids = whole_numbers(tokens) if max(tokens) < FIRST_ID else large_numbers([*map(page_id, tokens)])
            self._promise = promise = started(session.feed(ids))
        engine.feeding.add(self)
        return promise

    async def _ended(self, promise: asyncio.Future[JsRow]) -> None:
        """Waits for the end of a feed, whatever it is, and however often this is cancelled."""
        await end_of(promise)
        self._end(promise)

    def _end(self, promise: asyncio.Future[JsRow]) -> None:
        """A feed is no longer under way; what was closed meanwhile is freed."""
        if self._promise is promise:
            self._promise = None
            self._engine.feeding.discard(self)
            self._free()
            self._engine.settle()

    def _free(self) -> None:
        if self._is_closed and self._promise is None and self._session is not None:
            session, self._session = self._session, None
            call(session.close)

    def _fed_row(self, row: JsRow, count: int) -> ListedRow:
        self.position += count
        fed = self._fed

        def alive() -> None:
            if self._fed != fed:
                raise ValueError("these logits are gone: their session was fed again, or closed.")

        return listed_row(row, alive)
