"""One page whose worker keeps the software GPU's shaders, for the tests of a process: they take most of the time.

ONNX Runtime gives its GPU up, and the shaders with it, with the last session of a worker. So one model stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S
from tests.web.support.probes import probed
from tests.web.support.server import WebServer

SOFTWARE = pytest.param("webgpu-software", marks=[pytest.mark.slow, pytest.mark.software_gpu])  # a device of tests
CLEAR = """
const { session, loaded, held } = globalThis;
session?.close();
if (loaded !== held) loaded?.engine.close();
Object.assign(globalThis, { session: null, loaded: null });
"""


class SoftwareGpu:
    """A page at /tests/blank.html; what it runs in the worker "scratch", and on its `keptWorker`, has the shaders."""

    def __init__(self, browser: Browser, server: WebServer, model: Path, *, load: str, urls: Mapping[str, str]) -> None:
        """model: the folder that stays; load: what puts globalThis.loaded in place, given {url, device, urls}."""
        self._context = browser.context()
        self.page = self._context.page(f"{server.url}/tests/blank.html")
        given = {"url": server.serve("/models/held", model) + "/", "device": "webgpu-software", "urls": urls}
        self.page.in_worker(load, probed(self.page, given), patience_s=LONG_S)
        self.page.in_worker('globalThis.held = loaded; await import("/src/worker.js");')
        self.page.evaluate('() => { globalThis.keptWorker = workerOf("scratch"); }')
        self.clear()
        browser.kept.add(self._context.id)  # not before: what fails above is closed with the test

    def clear(self) -> None:
        """Closes what a test opened. Raises if the page has not got over it."""
        self.page.evaluate("() => { globalThis.llm?.close(); delete globalThis.llm; }")
        self.page.in_worker(CLEAR)

    def close(self) -> None:
        self._context.browser.kept.discard(self._context.id)
        self._context.close()
