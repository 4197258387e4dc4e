"""Sessions that are awaited, on the desktop: by the runner, and over a bridge that is Python here."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import embedllm
from embedllm import Cancel, Sampling
from embedllm.errors import ContextFull, DeviceError, DeviceUnavailable, PackageError, TemplateError
from embedllm.generation.request import Request
from embedllm.generation.runner import Runner
from tests.support.fakes import Bytes, FakeEngine, FakeLogits, FakeSession, peaked


class AwaitedSession(FakeSession):
    """A FakeSession that must be awaited."""

    def feed(self, tokens: Sequence[int]) -> FakeLogits:
        raise AssertionError("this session is awaited")

    async def afeed(self, tokens: Sequence[int]) -> FakeLogits:
        await asyncio.sleep(0)
        return super().feed(tokens)


class AwaitedEngine(FakeEngine):
    def open(self, capacity: int = 0) -> FakeSession:
        self.sessions.append(AwaitedSession(self))
        return self.sessions[-1]


def request(prompt: Sequence[int], **options: Any) -> Request:  # noqa: ANN401  # of any field
    fields = {"sampling": Sampling(temperature=0), "max_tokens": 5, "stop": (), "stop_tokens": frozenset(),
              "top_count": 0}  # fmt: skip
    return Request(prompt=prompt, **{**fields, **options})


def test_a_session_that_can_be_awaited_is_and_no_thread_is_made() -> None:
    engine = AwaitedEngine()
    runner = Runner(engine, Bytes(), is_direct=True)

    async def texts() -> list[str]:
        return [chunk.text async for chunk in runner.astream(request([1, 2, 3] * 10), Cancel())]

    assert "".join(asyncio.run(texts())) == "efghi"
    assert [len(fed) for fed in engine.sessions[0].fed] == [16, 14, 1, 1, 1, 1]
    assert [thread for thread in threading.enumerate() if thread.name == f"embedllm-{engine.device.name}"] == []


def test_a_closed_runner_ends_an_awaited_request() -> None:
    runner = Runner(AwaitedEngine(), Bytes(), is_direct=True)

    async def reasons() -> list[str | None]:
        found = []
        async for chunk in runner.astream(request([1]), Cancel()):
            found.append(chunk.finish_reason)
            runner.close()
        return found

    assert asyncio.run(reasons()) == [None, "cancelled"]


# --- over a bridge that is Python


class JsError(Exception):
    """An Error of JavaScript's."""

    def __init__(self, name: str, message: str, **values: object) -> None:
        super().__init__(message)
        self.name, self.message = name, message
        self.__dict__.update(values)


class JsArray(list[float]):
    """An array of JavaScript's."""

    def to_py(self) -> list[float]:
        return list(self)


class JsRow:
    """A row of JavaScript's, over a list."""

    def __init__(self, logits: FakeLogits) -> None:
        self.size = logits.size
        self._logits = logits
        self.logsumexp, self.draw = logits.logsumexp, logits.draw

    def values(self, tokens: Sequence[int]) -> JsArray:
        return JsArray(self._logits.values(tokens))

    def top(self, count: int) -> SimpleNamespace:
        best = self._logits.top(count)
        return SimpleNamespace(tokens=JsArray(best.tokens), logits=JsArray(best.logits))


class JsSession:
    """A session of JavaScript's; `gate` is awaited in each feed."""

    def __init__(self) -> None:
        self.position, self.capacity = 0, 64
        self.stopped, self.closed, self.is_feeding = asyncio.Event(), False, False
        self.gate: Callable[[JsSession], Awaitable[object]] = lambda session: asyncio.sleep(0)
        self.rewound: list[int] = []

    async def feed(self, tokens: Sequence[int]) -> JsRow:
        self.is_feeding = True
        try:
            await self.gate(self)
            if self.stopped.is_set():
                raise JsError("Interrupted", "stopped")
        finally:
            self.is_feeding = False
        self.position += len(tokens)
        return JsRow(peaked(97 + self.position % 26))

    def rewind(self, position: int) -> None:
        self.rewound.append(position)
        self.position = position

    def interrupt(self, stop: bool) -> None:
        if stop:
            self.stopped.set()
        else:
            self.stopped.clear()

    def close(self) -> None:
        assert not self.is_feeding
        self.closed = True


@pytest.fixture
def pyodide(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module embedllm.backends.browser.engine over a Pyodide that is Python."""
    ffi = SimpleNamespace(JsException=JsError, JsProxy=JsArray, can_run_sync=lambda: False, run_sync=None,
                          create_proxy=None, to_js=list)  # fmt: skip
    monkeypatch.setitem(sys.modules, "pyodide", SimpleNamespace(ffi=ffi))
    monkeypatch.setitem(sys.modules, "pyodide.ffi", ffi)
    monkeypatch.setitem(sys.modules, "js", SimpleNamespace(Int32Array=SimpleNamespace(of=lambda *numbers: numbers)))
    from embedllm.backends import browser
    from embedllm.backends.browser import engine as web

    yield web
    for name in ("javascript", "logits", "engine"):
        del sys.modules[f"{browser.__name__}.{name}"]
        delattr(browser, name)


@pytest.fixture
def opened(pyodide: ModuleType) -> tuple[Any, JsSession]:
    """A session, and JavaScript's."""
    device = SimpleNamespace(name="webgpu", backend="test", available=True)
    inner = JsSession()
    engine = SimpleNamespace(device=device, context=60, chunk=16, open=lambda capacity: inner, close=lambda: None)
    package = SimpleNamespace(decoder=SimpleNamespace(vocabulary=257), larger_context="export it again")
    return pyodide.WebEngine(package, engine).open(), inner


def test_a_feed_is_awaited_and_a_rewind_follows_with_the_next_one(opened: tuple[Any, JsSession]) -> None:
    session, inner = opened

    async def scenario() -> list[int]:
        first = await session.afeed([1, 2, 3])
        tokens = [first.top(1).tokens[0]]
        session.rewind(1)
        assert inner.position == 3
        second = await session.afeed([4])
        with pytest.raises(ValueError, match="these logits are gone"):
            first.draw(1.0, 0.5)
        return [*tokens, second.top(1).tokens[0]]

    assert asyncio.run(scenario()) == [100, 99]
    assert (session.position, inner.rewound) == (2, [1])


def test_a_cancelled_task_stops_the_feed_and_waits_for_it(opened: tuple[Any, JsSession]) -> None:
    session, inner = opened
    inner.gate = lambda js: js.stopped.wait()

    async def scenario() -> None:
        task = asyncio.ensure_future(session.afeed([1, 2]))
        await asyncio.sleep(0.01)
        session.close()
        assert not inner.closed  # while it feeds
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert inner.closed
    assert session.position == 0


def test_a_synchronous_feed_says_what_to_await(opened: tuple[Any, JsSession]) -> None:
    with pytest.raises(ValueError, match=r"JSPI.*await llm.agenerate"):
        opened[0].feed([1])


def test_what_does_not_fit_is_refused_before_javascript_is_asked(opened: tuple[Any, JsSession]) -> None:
    session, inner = opened
    with pytest.raises(ContextFull, match="61 more were given; 60 can be held"):
        asyncio.run(session.afeed([1] * 61))
    with pytest.raises(ValueError, match="token id 257 is outside"):
        asyncio.run(session.afeed([257]))
    assert inner.position == 0


@pytest.mark.parametrize(
    ("thrown", "kind", "text"),
    [
        (JsError("PackageError", "damaged"), PackageError, "damaged"),
        (JsError("TemplateError", "refused"), TemplateError, "refused"),
        (JsError("DeviceError", "lost"), DeviceError, "lost"),
        (JsError("DeviceUnavailable", "none", tried=[["webgpu", "no", None]]), DeviceUnavailable, "none"),
        (JsError("ContextFull", "full", tokens=9, limit=8), ContextFull, "full"),
        (JsError("RangeError", "slip"), ValueError, "slip"),
        (JsError("TypeError", "odd"), DeviceError, "the browser failed: TypeError: odd"),
    ],
)
def test_errors_of_javascript_become_those_of_this_library(
    pyodide: ModuleType, thrown: JsError, kind: type[Exception], text: str
) -> None:
    from embedllm.backends.browser.javascript import translated

    found = translated(thrown)
    assert (type(found), str(found)) == (kind, text)
    assert getattr(found, "tokens", 9) == 9
    assert getattr(found, "tried", ()) in ((), (("webgpu", "no", ""),))


# --- embedllm.aload() on the desktop


def test_aload_on_the_desktop_is_load_beside_the_event_loop(tiny_package: Callable[..., Path]) -> None:
    async def loaded() -> tuple[list[int], int]:
        turns = 0
        task = asyncio.ensure_future(embedllm.aload(tiny_package("llama"), device="cpu"))
        while not task.done():
            turns += 1
            await asyncio.sleep(0.001)
        with task.result() as llm:
            completion = await llm.agenerate("hello", max_tokens=3)
        return list(completion.tokens), turns

    tokens, turns = asyncio.run(loaded())
    with embedllm.load(tiny_package("llama"), device="cpu") as llm:
        assert tokens == list(llm.generate("hello", max_tokens=3).tokens)
    assert turns > 1


def test_aload_raises_what_load_does(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"has no embedllm.json"):
        asyncio.run(embedllm.aload(tmp_path))


def test_adevices_are_the_devices() -> None:
    assert [device.name for device in asyncio.run(embedllm.adevices())] == [
        device.name for device in embedllm.devices()
    ]
