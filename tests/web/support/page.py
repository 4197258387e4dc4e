"""Profiles and tabs of a browser that is driven from a test."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.web.support.calls import PATIENCE_S, awaited

if TYPE_CHECKING:
    from tests.web.support.browser import Browser


class Context:
    """One profile of the browser."""

    def __init__(self, browser: Browser, id: int) -> None:
        self.browser, self.id = browser, id

    def page(self, url: str | None = None) -> Page:
        """A new page, at an address if one is given."""
        page = Page(self.browser, self.browser.call("page", context=self.id))
        if url is not None:
            page.goto(url)
        return page

    def pages(self) -> list[Page]:
        """All that are open, those that pages opened too."""
        return [Page(self.browser, id) for id in self.browser.call("pages", context=self.id)]

    def set_offline(self, is_offline: bool) -> None:
        self.browser.call("offline", context=self.id, **{"is": is_offline})

    def crash(self) -> None:
        """Kills the browser of a context with a folder where it stands, as if the machine went off."""
        self.browser.call("crash", context=self.id)
        self.browser.forget("crash")

    def close(self) -> None:
        self.browser.call("closeContext", context=self.id)


class Page:
    """A tab. Selectors are Playwright's. Code is an async function's text, JavaScript: "async (argument) => ..."."""

    def __init__(self, browser: Browser, id: int) -> None:
        self.browser, self.id = browser, id

    def _call(self, do: str, patience_s: float = PATIENCE_S, **given: object) -> Any:  # noqa: ANN401  # any JSON
        return self.browser.call(do, patience_s=patience_s, page=self.id, **given)

    def goto(self, url: str) -> None:
        """Loads an address, which must be there."""
        status = self._call("goto", url=url)
        assert status is None or status < 400, f"{url} answered {status}"

    def reload(self) -> None:
        self._call("reload")

    def close(self) -> None:
        """Ends it at once, whatever it is doing."""
        self._call("close")

    @property
    def url(self) -> str:
        return self._call("url")

    @property
    def console(self) -> list[str]:
        """What it wrote to its console: "warning: text"."""
        return self.browser.events("console", page=self.id)

    @property
    def errors(self) -> list[str]:
        """Its uncaught errors."""
        return self.browser.events("error", page=self.id)

    def evaluate(self, code: str, argument: object = None, *, patience_s: float = PATIENCE_S) -> Any:  # noqa: ANN401
        """What the async function gives, in the page; argument and result are JSON. Raises BrowserError."""
        return self._call("evaluate", patience_s, code=code, argument=argument)

    def until(self, code: str, argument: object = None, *, patience_s: float = PATIENCE_S) -> None:
        """Waits until the function gives something true."""
        self._call("until", patience_s + 5, code=code, argument=argument, timeout=patience_s * 1000)

    def start_in_worker(self, code: str, argument: object = None, *, worker: str = "scratch") -> Future[Any]:
        """As in_worker, but does not wait; awaited(future, ...) does."""
        given = {"worker": worker, "code": code, "argument": argument}
        run = """async ({worker, code, argument}) => {
            try { return {value: await inWorker(worker, code, argument)}; }
            catch (error) { return {error: {name: error.name, message: error.message, stack: error.stack,
                                            fields: error.fields ?? {}}}; }
        }"""
        return self.browser.start("evaluate", page=self.id, code=run, argument=given)

    def in_worker(
        self, code: str, argument: object = None, *, worker: str = "scratch", patience_s: float = PATIENCE_S
    ) -> Any:  # noqa: ANN401  # any JSON
        """What the body of an async function returns, run in a module worker of a page at /tests/blank.html.

        code has `argument` and `await import("/src/...")`; globalThis lasts from call to call of a worker.
        Raises BrowserError.
        """
        return awaited(self.start_in_worker(code, argument, worker=worker), f"the worker '{worker}'", patience_s)

    def end_worker(self, worker: str = "scratch") -> None:
        """Ends a worker at once, whatever it is doing."""
        self.evaluate("(name) => endWorker(name)", worker)

    def wait_for(self, selector: str, *, state: str = "visible", patience_s: float = PATIENCE_S) -> None:
        """Waits for an element to be "visible", "hidden", "attached" or "detached"."""
        self._call("waitFor", patience_s + 5, selector=selector, state=state, timeout=patience_s * 1000)

    def click(self, selector: str) -> None:
        self._call("click", selector=selector)

    def fill(self, selector: str, text: str) -> None:
        """Puts a text into a field at once."""
        self._call("fill", selector=selector, text=text)

    def type(self, selector: str, text: str) -> None:
        """Types a text, key by key."""
        self._call("type", selector=selector, text=text)

    def press(self, key: str, selector: str | None = None) -> None:
        """Presses a key ("Enter", "Control+A") on an element, or wherever the focus is."""
        self._call("press", selector=selector, key=key)

    def select(self, selector: str, value: str) -> None:
        self._call("select", selector=selector, value=value)

    def attach(self, selector: str, files: Sequence[Path]) -> None:
        """Chooses files in a file field."""
        self._call("attach", selector=selector, files=[str(file) for file in files])

    def text(self, selector: str) -> str:
        """What a reader sees of an element."""
        return self._call("text", selector=selector)

    def texts(self, selector: str) -> list[str]:
        return self._call("texts", selector=selector)

    def accessible(self, selector: str = "body") -> str:
        """What assistive software is told of an element, as Playwright's YAML."""
        return self._call("accessible", selector=selector)

    def set_viewport(self, width: int, height: int) -> None:
        self._call("viewport", width=width, height=height)

    def set_media(self, **options: str) -> None:
        """Playwright's emulateMedia: colorScheme="dark", reducedMotion="reduce", ..."""
        self._call("media", options=options)

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        """Writes a PNG; full: of the whole page, not of what is in view."""
        self._call("screenshot", path=str(path), full=full)

    def cdp(self, method: str, **params: object) -> Any:  # noqa: ANN401  # any JSON
        """Sends a command of the Chrome DevTools Protocol."""
        return self._call("cdp", method=method, params=params)
