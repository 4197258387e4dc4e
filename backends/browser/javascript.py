"""What Pyodide gives to call JavaScript: values that go over, waiting, errors that come back. Importable in it only."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import ParamSpec, Protocol, TypeAlias, TypeVar, cast

from js import Int32Array  # pyright: ignore[reportMissingImports]  # this and the next exist in a browser only
from pyodide.ffi import (  # pyright: ignore[reportMissingImports]
    JsException,
    JsProxy,
    can_run_sync,
    create_proxy,
    run_sync,
    to_js,
)

from embedllm import errors
from embedllm.backends.base import Interrupted

JsValue: TypeAlias = object  # whatever JavaScript has: its objects have no types here

P = ParamSpec("P")
T = TypeVar("T")

_FEW = 12  # numbers that go over faster as arguments: 1.4 us for one, 2.5 by way of a buffer
_SAME = {name: getattr(errors, name) for name in ("PackageError", "TemplateError", "DeviceError", "EmbedError")}
_SLIPS = ("ValueError", "RangeError")  # a caller's, here and there
_NO_WAITING = (
    "this call waits for the model, and a synchronous call cannot wait here: that needs a browser with JSPI "
    "(JavaScript Promise Integration), and a program that runPythonAsync or another asynchronous call has started. "
    "Await instead: {}."
)


class Buffer(Protocol):
    """An array of numbers of JavaScript's."""

    def to_py(self) -> Sequence[float]: ...


def check_can_wait(instead: str) -> None:
    """Raises ValueError where no synchronous call can wait for JavaScript. instead: the call to await."""
    if not can_run_sync():
        raise ValueError(_NO_WAITING.format(instead))


def wait(promise: Awaitable[T]) -> T:
    """Its result, while the event loop goes on: see check_can_wait()."""
    return run_sync(promise)


def whole_numbers(values: Sequence[int]) -> JsValue:
    """An Int32Array of token ids."""
    if len(values) < _FEW:
        return Int32Array.of(*values)
    return to_js(array("i", values))


def large_numbers(values: Sequence[int]) -> JsValue:
    """A Float64Array of whole numbers."""
    return to_js(array("d", values))


def real_numbers(values: Sequence[float]) -> JsValue:
    """A Float32Array."""
    return to_js(values if isinstance(values, array) and values.typecode == "f" else array("f", values))


def words(bits: object) -> JsValue:
    """An Int32Array of what holds bits, in words of 32; what is JavaScript's already stays as it is."""
    if isinstance(bits, JsProxy):
        return bits
    return to_js(array("i", memoryview(cast("bytes", bits)).cast("B").tobytes()))


def options(values: Mapping[str, JsValue]) -> JsValue:
    """An object of JavaScript's with these entries."""
    from js import Object  # pyright: ignore[reportMissingImports]

    return to_js(dict(values), dict_converter=Object.fromEntries)


def integers(numbers: Buffer) -> list[int]:
    """A list out of an array that holds whole numbers, of whichever type."""
    return [int(number) for number in numbers.to_py()]


def floats(numbers: Buffer) -> list[float]:
    return list(numbers.to_py())


def text_or_none(value: JsValue) -> str | None:
    """A string, or None for the two nothings that JavaScript has."""
    return value if isinstance(value, str) else None


def started(promise: Awaitable[T]) -> asyncio.Future[T]:
    """A promise as a future, which Pyodide makes of most by itself."""
    return asyncio.ensure_future(promise)


async def settled(promise: asyncio.Future[T]) -> None:
    """Waits for a promise, whatever comes; a task that is cancelled meanwhile leaves it as it is.

    Not asyncio.shield(), which reports the error of a promise that nobody waits for any more.
    """
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    promise.add_done_callback(wake)
    await waiter


async def end_of(promise: asyncio.Future[T]) -> T | None:
    """What a promise gives in the end, however often this is cancelled meanwhile; None when it fails."""
    while not promise.done():
        with suppress(asyncio.CancelledError):
            await settled(promise)
    return None if promise.cancelled() or promise.exception() is not None else promise.result()


async def import_module(address: str) -> JsValue:
    """A module of JavaScript's. A page whose policy forbids eval registers it with Pyodide instead."""
    from pyodide.code import run_js  # pyright: ignore[reportMissingImports]

    return await run_js("(address) => import(address)")(address)


def publish(text: str) -> str:
    """An address of a module's text, in this page."""
    from js import URL, Blob  # pyright: ignore[reportMissingImports]

    return URL.createObjectURL(Blob.new(to_js([text]), options({"type": "text/javascript"})))


@contextmanager
def callback(function: Callable[[JsValue], None]) -> Iterator[JsValue]:
    """A function that JavaScript may call within the block, from wherever it likes."""
    proxy = create_proxy(function)
    try:
        yield proxy
    finally:
        proxy.destroy()


class Abort(Protocol):
    """An AbortController of JavaScript's."""

    signal: JsValue

    def abort(self) -> None: ...


def abort_controller() -> Abort:
    from js import AbortController  # pyright: ignore[reportMissingImports]

    return AbortController.new()


def js_list(values: Sequence[str]) -> JsValue:
    """An Array of texts."""
    return to_js(list(values))


def call(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """The result of a synchronous function of JavaScript's; its errors are those of this library."""
    try:
        return function(*arguments, **keywords)
    except JsException as error:
        raise translated(error) from error


@contextmanager
def translating() -> Iterator[None]:
    """Within the block, errors that JavaScript threw become those of this library."""
    try:
        yield
    except JsException as error:
        raise translated(error) from error


def translated(error: BaseException) -> Exception:
    """The error of this library that JavaScript's stands for, by its name; DeviceError for one that has none here."""
    name = str(getattr(error, "name", "") or type(error).__name__)
    message = str(getattr(error, "message", "") or error)
    if name in _SAME:
        return _SAME[name](message)
    if name == "ContextFull":
        return errors.ContextFull(
            message, tokens=int(getattr(error, "tokens", 0)), limit=int(getattr(error, "limit", 0))
        )
    if name == "DeviceUnavailable":
        return errors.DeviceUnavailable(message, _tried(error))
    if name == "Interrupted":
        return Interrupted()
    if name in _SLIPS:
        return ValueError(message)
    return errors.DeviceError(f"the browser failed: {name}: {message}")


def _tried(error: BaseException) -> list[tuple[str, str, str]]:
    tried = getattr(error, "tried", None)
    if tried is None:
        return []
    entries = cast("Sequence[Sequence[object]]", tried.to_py() if hasattr(tried, "to_py") else tried)
    return [(str(device), str(reason or ""), str(remedy or "")) for device, reason, remedy in entries]
