"""Waiting for answers: of the driver, whose values come later or are errors of JavaScript, and for anything else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

PATIENCE_S = 120.0  # of what a browser does at once; machines are shared, and only a test that fails waits so long
LONG_S = 600.0  # what starts Pyodide, compiles shaders or computes in software: minutes on a busy machine


class BrowserError(Exception):
    """What went wrong in the browser. kind: the JavaScript error's name; fields: what else that error held."""

    def __init__(self, kind: str, message: str, stack: str, fields: Mapping[str, Any]) -> None:
        super().__init__(f"{kind}: {message}\n{stack}")
        self.kind, self.message, self.stack, self.fields = kind, message, stack, fields


def awaited(future: Future[Any], what: str, patience_s: float = PATIENCE_S) -> Any:  # noqa: ANN401  # any JSON
    """The result of what was started. Raises BrowserError, TimeoutError."""
    try:
        value = future.result(patience_s)
    except FutureTimeout:
        raise TimeoutError(f"{what} did not end within {patience_s} s in the browser") from None
    if isinstance(value, dict) and value.keys() == {"error"}:
        raise browser_error(value["error"])
    return value["value"] if isinstance(value, dict) and value.keys() == {"value"} else value


def browser_error(said: Mapping[str, Any]) -> BrowserError:
    return BrowserError(said["name"], said["message"], said["stack"], said.get("fields", {}))


def until(look: Callable[[], Any], *, patience_s: float = LONG_S) -> Any:  # noqa: ANN401  # what `look` gives
    """What `look` gives when that is something; the samples' policy allows no polling inside the page."""
    end = time.monotonic() + patience_s
    while not (found := look()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience_s} s")
        time.sleep(0.05)
    return found
