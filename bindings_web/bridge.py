"""The JavaScript half, imported once: from the texts in this package, or from where a page has it."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol, cast

from embedllm.backends.browser.engine import JsDevice, JsEngine
from embedllm.backends.browser.javascript import JsValue, import_module, publish, translating
from embedllm.web.codec import JsCodec
from embedllm.web.modules import ENTRY, addresses, sources

REGISTERED = "embedllm_bridge"  # the name under which a page may have given the module to Pyodide


class JsTexts(Protocol):
    """A Map of texts of JavaScript's."""

    def keys(self) -> Iterable[str]: ...
    def get(self, name: str) -> str: ...


class JsLoaded(Protocol):
    """A loaded model, as JavaScript has it."""

    texts: JsTexts
    refused: Sequence[JsDevice]
    engine: JsEngine
    tokenizer: JsCodec


class JsBridge(Protocol):
    """The module bindings_web/src/worker/load_model.js."""

    def devices(self, options: JsValue) -> Awaitable[Sequence[JsDevice]]: ...
    def load(self, url: str, options: JsValue) -> Awaitable[JsLoaded]: ...


_loaded: dict[str, JsBridge] = {}  # by address; "": of this package


async def bridge(address: str = "") -> JsBridge:
    """The module at an address; without one, as the page registered it, else out of this package.

    Raises DeviceError when it cannot be imported.
    """
    if not address:
        with suppress(ModuleNotFoundError):
            return cast("JsBridge", importlib.import_module(REGISTERED))
    if address not in _loaded:
        with translating():
            place = address or addresses(sources(), ENTRY, publish=publish)[ENTRY]
            _loaded[address] = cast("JsBridge", await import_module(place))
    return _loaded[address]
