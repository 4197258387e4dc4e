"""Hands on a real LibreOffice, for tests: run by a Python that has uno, told what to do by JSON lines on stdin.

python3 tests/support/libreoffice_driver.py PROFILE_FOLDER EXTENSION.oxt

Each line is {"do": NAME, ...arguments}, each answer a line {"value": ...} or {"error": text}. LibreOffice runs without
a display, with a profile of its own, and ends with this process.
"""

# ruff: noqa: ANN401, N802
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# uno comes with the system's Python, not with ours; types are made at run time, methods named in its way.

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uno
import unohelper
from com.sun.star.beans import PropertyValue
from com.sun.star.connection import NoConnectException
from com.sun.star.frame import XDispatchResultListener, XStatusListener
from com.sun.star.task import XInteractionHandler
from com.sun.star.ucb import XCommandEnvironment
from com.sun.star.util import URL

_PATIENCE_S = 120.0  # only ever waited for by a test that fails


class Office:
    """A headless soffice and a connection to it."""

    def __init__(self, profile: Path) -> None:
        name = f"embedllm-test-{os.getpid()}"
        self._process = subprocess.Popen(
            ["soffice", "--headless", "--norestore", "--nologo", "--nodefault", "--nofirststartwizard",
             f"--accept=pipe,name={name};urp;", f"-env:UserInstallation={profile.as_uri()}"],
            env=_environment(), stdin=subprocess.DEVNULL, stdout=2, start_new_session=True,
        )  # fmt: skip
        local = uno.getComponentContext()
        resolver = local.ServiceManager.createInstanceWithContext("com.sun.star.bridge.UnoUrlResolver", local)
        address = f"uno:pipe,name={name};urp;StarOffice.ComponentContext"
        self.context = _until(lambda: resolver.resolve(address), NoConnectException)

    def service(self, name: str) -> Any:
        return self.context.ServiceManager.createInstanceWithContext(name, self.context)

    def install(self, extension: Path) -> str:
        """Adds an extension for this user; the identifier that it then has."""
        extensions = self.context.getValueByName("/singletons/com.sun.star.deployment.ExtensionManager")
        return extensions.addExtension(extension.as_uri(), (), "user", None, Approving()).getIdentifier().Value

    def end(self) -> None:
        try:
            self.service("com.sun.star.frame.Desktop").terminate()
        finally:
            self._process.wait(_PATIENCE_S)


class Approving(unohelper.Base, XCommandEnvironment, XInteractionHandler):
    """Says yes to what an installation asks, and shows no progress."""

    def getInteractionHandler(self) -> Any:
        return self

    def getProgressHandler(self) -> None:
        return None

    def handle(self, request: Any) -> None:
        approve = uno.getTypeByName("com.sun.star.task.XInteractionApprove")
        for continuation in request.getContinuations():
            yes = continuation.queryInterface(approve)
            if yes is not None:
                yes.select()


class Finished(unohelper.Base, XDispatchResultListener):
    """Waits for the end of a command."""

    def __init__(self) -> None:
        self.event: Any = None
        self.is_there = threading.Event()

    def dispatchFinished(self, event: Any) -> None:
        self.event = event
        self.is_there.set()

    def disposing(self, source: Any) -> None:
        pass


class Status(unohelper.Base, XStatusListener):
    """Keeps whether a command can be chosen."""

    def __init__(self) -> None:
        self.is_enabled: Any = None

    def statusChanged(self, event: Any) -> None:
        self.is_enabled = event.IsEnabled

    def disposing(self, source: Any) -> None:
        pass


class Driver:
    """What a test can have done. One document is open at a time."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._document: Any = None
        self._running: dict[str, Finished] = {}
        self._states: dict[str, Status] = {}

    def open(self, text: str) -> None:
        """A new document with this text, in paragraphs, and an empty undo list."""
        if self._document is not None:
            self.close()
        desktop = self._office.service("com.sun.star.frame.Desktop")
        self._document = desktop.loadComponentFromURL("private:factory/swriter", "_blank", 0, ())
        body = self._document.Text
        body.insertString(body.createTextCursor(), text.replace("\n", "\r"), False)
        self._document.getUndoManager().clear()

    def close(self) -> None:
        self._document.close(True)
        self._document = None

    def select(self, text: str) -> str:
        """Selects where a text stands first; "" puts the cursor at the end."""
        body, controller = self._document.Text, self._document.getCurrentController()
        whole = body.getString()
        cursor = body.createTextCursor()
        if text:
            cursor.goRight(whole.index(text), False)
            cursor.goRight(len(text), True)
        else:
            cursor.gotoEnd(False)
        controller.select(cursor)
        return cursor.getString()

    def text(self) -> str:
        return self._document.Text.getString()

    def selected(self) -> str:
        return self._document.getCurrentController().getViewCursor().getString()

    def paragraphs(self) -> int:
        found, count = self._document.Text.createEnumeration(), 0
        while found.hasMoreElements():
            found.nextElement()
            count += 1
        return count

    def start(self, command: str) -> bool:
        """Chooses a command as a menu does; whether it is there."""
        dispatch, url = self._dispatch(command)
        if dispatch is None:
            return False
        self._choose(command, dispatch, url)
        return True

    def close_then_start(self, command: str) -> None:
        """Chooses a command of a window that was closed meanwhile, as a macro may."""
        dispatch, url = self._dispatch(command)
        self.close()
        self._choose(command, dispatch, url)

    def result(self, command: str) -> tuple[bool, str]:
        """Waits for the end: whether it was well, and what it says."""
        finished = self._running.pop(command)
        if not finished.is_there.wait(_PATIENCE_S):
            raise TimeoutError(f"'{command}' has not ended after {_PATIENCE_S} s")
        return finished.event.State == 1, finished.event.Result

    def longer(self, size: int) -> str:
        """Waits until the text has more than this many characters."""
        return _until(lambda: _more(self.text(), size), ValueError)

    def exists(self, path: str) -> None:
        """Waits for a file."""
        _until(lambda: Path(path).stat(), FileNotFoundError)

    def watch(self, command: str) -> bool:
        """Whether a command can be chosen now; enabled() says it later."""
        dispatch, url = self._dispatch(command)
        self._states[command] = Status()
        dispatch.addStatusListener(self._states[command], url)
        return self.enabled(command)

    def enabled(self, command: str) -> bool:
        return self._states[command].is_enabled

    def menu(self) -> dict[str, str]:
        """What the office's configuration has in the extension's menu: commands by title."""
        provider = self._office.service("com.sun.star.configuration.ConfigurationProvider")
        place = PropertyValue(Name="nodepath", Value="/org.openoffice.Office.Addons/AddonUI/OfficeMenuBar")
        access = "com.sun.star.configuration.ConfigurationAccess"
        menus = provider.createInstanceWithArguments(access, (place,))
        entries = menus.getByName("org.embedllm.writer.menu").getByName("Submenu")
        found = [entries.getByName(name) for name in sorted(entries.getElementNames())]
        return {entry.getByName("Title"): entry.getByName("URL") for entry in found}

    def has(self, command: str) -> bool:
        """Whether the office finds someone for a command."""
        return self._dispatch(command)[0] is not None

    def undo(self) -> None:
        self._document.getUndoManager().undo()

    def press_undo(self) -> None:
        """What Ctrl+Z does."""
        frame = self._document.getCurrentController().getFrame()
        self._office.service("com.sun.star.frame.DispatchHelper").executeDispatch(frame, ".uno:Undo", "", 0, ())

    def redo(self) -> None:
        self._document.getUndoManager().redo()

    def undo_titles(self) -> tuple[str, ...]:
        return self._document.getUndoManager().getAllUndoActionTitles()

    def complains(self) -> bool:
        """Whether the bar with an error is shown."""
        return self._document.getCurrentController().hasInfobar("embedllm")

    def _choose(self, command: str, dispatch: Any, url: Any) -> None:
        self._running[command] = Finished()
        dispatch.dispatchWithNotification(url, (), self._running[command])

    def _dispatch(self, command: str) -> tuple[Any, Any]:
        url = URL()
        url.Complete = f"org.embedllm.writer:{command}"
        _, url = self._office.service("com.sun.star.util.URLTransformer").parseStrict(url)
        frame = self._document.getCurrentController().getFrame()
        return frame.queryDispatch(url, "_self", 0), url


def _environment() -> dict[str, str]:
    """Ours, with the Python that runs this before any other.

    The Python inside the office takes its library from beside the first python3 in PATH. With that of an activated
    virtual environment of another Python, installing an extension throws std::bad_alloc (LibreOffice 7.4).
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path}


def _more(text: str, size: int) -> str:
    if len(text) <= size:
        raise ValueError(f"the text still has {len(text)} characters")
    return text


def _until(attempt: Callable[[], Any], error: Any) -> Any:
    """What an attempt gives, made again until it does not fail any more."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return attempt()
        except error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def main() -> None:
    profile, extension = Path(sys.argv[1]), Path(sys.argv[2])
    office = Office(profile)
    try:
        office.install(extension)
    finally:
        office.end()
    office = Office(profile)  # as a user would: menus and handlers are read at the start
    try:
        driver = Driver(office)
        sys.stdout.write('{"value": "ready"}\n')
        sys.stdout.flush()
        for line in sys.stdin:
            told = json.loads(line)
            try:
                answer = {"value": getattr(driver, told.pop("do"))(**told)}
            except Exception as error:  # noqa: BLE001  # the test is told
                answer = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        office.end()


main()
