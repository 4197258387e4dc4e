"""The UNO component: what the menu and the toolbar call. Commands: rewrite, summarise, continue, cancel, settings."""

# ruff: noqa: ANN401, N802
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# The office brings uno with its own Python; types are made at run time, methods named in its way.

from __future__ import annotations

import gc
import queue
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uno
import unohelper
from com.sun.star.awt import XCallback
from com.sun.star.frame import DispatchResultEvent, FeatureStateEvent, XDispatchProvider, XNotifyingDispatch
from com.sun.star.frame.DispatchResultState import FAILURE, SUCCESS
from com.sun.star.frame.InfobarType import DANGER, WARNING
from com.sun.star.lang import XInitialization, XServiceInfo
from com.sun.star.system.SystemShellExecuteFlags import URIS_ONLY
from com.sun.star.uno import Exception as UnoException
from embedllm_actions import ACTIONS
from embedllm_asking import FAILED, Asking, Outcome
from embedllm_document import Passage, Reply, Unsuitable
from embedllm_settings import SettingsError, read_settings
from embedllm_task import Task
from embedllm_worker import Worker

PROTOCOL = "org.embedllm.writer:"
IMPLEMENTATION = "org.embedllm.writer.ProtocolHandler"
SETTINGS_FILE = "embedllm_writer.json"
_INFOBAR = "embedllm"


class Office:
    """What all windows share: the worker, the task that runs, and the way into the main thread."""

    worker = Worker()
    task: Task | None = None
    end: Any = None  # of the task: called with its Outcome
    listeners: list[tuple[Any, Any]] = []  # noqa: RUF012  # (listener, URL) of menus and toolbars; one office a process
    commands: queue.Queue[Callable[[], None]] = queue.Queue()
    _bell: Any = None

    @classmethod
    def open(cls, context: Any) -> None:
        if cls._bell is None:
            cls._bell = context.ServiceManager.createInstanceWithContext("com.sun.star.awt.AsyncCallback", context)

    @classmethod
    def ring(cls) -> None:
        """Has the main thread look at commands and task, soon; from any thread."""
        cls._bell.addCallback(_CALLBACK, None)

    @classmethod
    def look(cls) -> None:
        """In the main thread, which alone may touch documents and windows."""
        with suppress(queue.Empty):
            while True:
                cls.commands.get_nowait()()
        outcome = cls.task and cls.task.take()
        if outcome is not None:
            end, cls.task, cls.end = cls.end, None, None
            try:
                end(outcome)
            finally:
                gc.collect()  # here, and not in a thread: see embedllm_asking
                gc.enable()


class Callback(unohelper.Base, XCallback):
    """What the main thread calls."""

    def notify(self, data: object) -> None:
        try:
            Office.look()
        except Exception:
            traceback.print_exc()  # the office drops it without a word
            raise


_CALLBACK = Callback()


class Dispatch(unohelper.Base, XNotifyingDispatch):
    """Runs the commands for one window."""

    def __init__(self, context: Any, frame: Any) -> None:
        self._context = context
        self._frame = frame

    # XDispatch; a macro or another process may call from a thread of its own

    def dispatch(self, url: Any, arguments: Any) -> None:
        self.dispatchWithNotification(url, arguments, None)

    def dispatchWithNotification(self, url: Any, arguments: Any, listener: Any) -> None:
        Office.commands.put(lambda: self._begin(url.Path, lambda state, text: self._tell(listener, state, text)))
        Office.ring()

    def addStatusListener(self, listener: Any, url: Any) -> None:
        Office.listeners.append((listener, url))
        listener.statusChanged(self._state(url))

    def removeStatusListener(self, listener: Any, url: Any) -> None:
        Office.listeners = [entry for entry in Office.listeners if entry[0] != listener or entry[1].Path != url.Path]

    # in the main thread

    def _begin(self, command: str, tell: Callable[[int, str], None]) -> None:
        try:
            if command == "settings":
                tell(SUCCESS, self._open_settings())
            elif command == "cancel":
                if Office.task is not None:
                    Office.task.cancel()
                tell(SUCCESS, command)
            else:
                self._start(command, tell)
        except (Unsuitable, SettingsError, OSError) as error:
            self._refuse(str(error), tell)
        except UnoException as error:
            self._refuse(f"The office could not do it: {error.Message}", tell)

    def _refuse(self, text: str, tell: Callable[[int, str], None]) -> None:
        with suppress(UnoException):  # the window was closed meanwhile
            self._show(text, DANGER)
        tell(FAILURE, text)

    def _start(self, command: str, tell: Callable[[int, str], None]) -> None:
        if Office.task is not None:
            raise Unsuitable("A reply is being written. Wait for its end, or cancel it.")
        controller = self._frame.getController()
        if controller is None:
            raise Unsuitable("The window was closed.")
        action, file = ACTIONS[command], self._settings_file()
        passage = Passage(controller.getModel(), controller, action)
        reply, settings = Reply(passage, action), read_settings(file)
        self._clear()
        indicator = self._frame.createStatusIndicator()
        indicator.start(f"{action.title} ...", 0)

        def end(outcome: Outcome) -> None:
            with suppress(UnoException):  # the window was closed meanwhile
                indicator.end()
                if outcome.state == FAILED:
                    self._show(outcome.text, DANGER)
                elif outcome.notice:
                    self._show(outcome.notice, WARNING)
            self._show_states()
            tell(FAILURE if outcome.state == FAILED else SUCCESS, outcome.text or outcome.state)

        asking = Asking(Office.worker, action, passage.text, Office.ring)
        Office.task, Office.end = Task(asking, reply, indicator.setText), end
        gc.disable()  # until the end: threads must not free what is the office's
        asking.start(settings, file)
        self._show_states()

    def _open_settings(self) -> str:
        """Shows the file in the editor that the system has for it; its path."""
        file = self._settings_file()
        read_settings(file)  # writes it when there is none
        url = uno.systemPathToFileUrl(str(file))  # a path would be run as a program (LibreOffice 7.4 on Linux)
        try:
            self._service("com.sun.star.system.SystemShellExecute").execute(url, "", URIS_ONLY)
        except UnoException as error:
            raise Unsuitable(f"No program opens '{file}': {error.Message}. Open it in a text editor.") from error
        return str(file)

    def _settings_file(self) -> Path:
        folder = self._service("com.sun.star.util.PathSubstitution").getSubstituteVariableValue("$(user)")
        return Path(uno.fileUrlToSystemPath(folder)) / SETTINGS_FILE

    def _show(self, text: str, kind: int) -> None:
        """A bar above the document; a box would hold up the office."""
        self._clear()
        controller = self._frame.getController()
        if controller is not None:  # the window was not closed meanwhile
            controller.appendInfobar(_INFOBAR, "embedllm", text, kind, (), True)

    def _clear(self) -> None:
        controller = self._frame.getController()
        if controller is not None and controller.hasInfobar(_INFOBAR):
            controller.removeInfobar(_INFOBAR)

    def _tell(self, listener: Any, state: int, text: str) -> None:
        if listener is not None:
            with suppress(UnoException):  # whoever asked is gone
                listener.dispatchFinished(DispatchResultEvent(self, state, text))

    def _state(self, url: Any) -> Any:
        is_running = Office.task is not None
        event = FeatureStateEvent()
        event.FeatureURL = url
        event.IsEnabled = url.Path == "settings" or is_running == (url.Path == "cancel")
        event.Source = self
        return event

    def _show_states(self) -> None:
        for listener, url in list(Office.listeners):
            with suppress(UnoException):  # of a window that is closed
                listener.statusChanged(self._state(url))

    def _service(self, name: str) -> Any:
        return self._context.ServiceManager.createInstanceWithContext(name, self._context)


class ProtocolHandler(unohelper.Base, XDispatchProvider, XInitialization, XServiceInfo):
    """What the office asks for the commands of this extension; one a window."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._frame: Any = None
        Office.open(context)

    def initialize(self, arguments: Any) -> None:
        if arguments:
            self._frame = arguments[0]

    def queryDispatch(self, url: Any, target: str, flags: int) -> Any:
        is_ours = url.Protocol == PROTOCOL and url.Path in (*ACTIONS, "cancel", "settings")
        return Dispatch(self._context, self._frame) if is_ours else None

    def queryDispatches(self, requests: Any) -> Any:
        return tuple(self.queryDispatch(each.FeatureURL, each.FrameName, each.SearchFlags) for each in requests)

    def getImplementationName(self) -> str:
        return IMPLEMENTATION

    def supportsService(self, name: str) -> bool:
        return name in self.getSupportedServiceNames()

    def getSupportedServiceNames(self) -> tuple[str, ...]:
        return ("com.sun.star.frame.ProtocolHandler",)


g_ImplementationHelper = unohelper.ImplementationHelper()  # noqa: N816  # the office's Python loader looks for this name
g_ImplementationHelper.addImplementation(ProtocolHandler, IMPLEMENTATION, ("com.sun.star.frame.ProtocolHandler",))
