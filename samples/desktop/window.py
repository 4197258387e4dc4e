"""The window: joins the panes to the model's thread. It waits for nothing; what happens comes as events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from PySide6.QtCore import QByteArray, QObject, QSettings, Qt, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QMainWindow, QSplitter, QTabWidget, QVBoxLayout, QWidget

import embedllm
from embedllm.export import Progress

from . import theme
from .banner import Banner
from .chat_pane import ChatPane
from .events import Answered, Ended, Filled, Found, Listed, Loaded, Notice, Opened, Question, Ran, Spoken, Turn
from .picker import AUTO, DEMO, Picker
from .session import Session
from .sidebar import Sidebar
from .status import Status
from .store import Entry, Store
from .structured_pane import StructuredPane
from .tools_pane import ToolsPane

_MESSAGE_MS = 2000
_REPLIES = ("reply", "fill", "tools")  # jobs that stop() ends


class _Bridge(QObject):
    """Brings events from the model's thread: a signal that crosses threads is queued, and taken by the event loop."""

    told = Signal(object)


class Window(QMainWindow):
    """store: where conversations are kept. settings: what is remembered beside them.

    model, device: in place of what was used last. first: what is said when the model is ready.
    ended is emitted when the window is closed and the thread is over.
    """

    ended = Signal()

    def __init__(
        self, store: Store, settings: QSettings, *, model: str = "", device: str = "", first: str = ""
    ) -> None:
        super().__init__()
        self.setWindowTitle("embedllm chat")
        self._settings = settings
        self._jobs: Counter[str] = Counter()  # that were asked for and are not done
        self._loaded: Loaded | None = None
        self._first = first
        self._at = ""  # the conversation that chunks are of
        self._is_closing = self._has_ended = False
        self.picker, self.sidebar, self.banner, self.tabs = Picker(), Sidebar(), Banner(), QTabWidget()
        self.chat, self.structured, self.tools = ChatPane(), StructuredPane(), ToolsPane()
        self.status = Status()
        self._lay_out()
        self._restore(model, device)
        self._bridge = _Bridge()
        self._bridge.told.connect(self._take, Qt.ConnectionType.QueuedConnection)
        self._session = Session(store, self._bridge.told.emit)
        self._jobs["begin"] += 1
        self._connect()
        self.sidebar.begin(Entry())
        self._load(self.picker.model(), self.picker.device())
        self._ask("find", self._session.find_devices)  # after the model, which is waited for

    def join(self) -> None:
        """Waits for the model's thread; after `ended` it has nothing more to do."""
        self._session.join()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 # Qt's name
        """The window goes at once. A model that is being loaded and a turn that runs end behind it."""
        if self._has_ended:
            self.ended.emit()
            return
        event.ignore()
        if not self._is_closing:
            self._is_closing = True
            self._keep_settings()
            self.hide()
            self._session.close()

    def _take(self, event: object) -> None:
        """Something happened in the model's thread."""
        match event:
            case embedllm.Chunk():
                self._take_chunk(event)
            case Filled(chunk):
                self.structured.take(chunk)
                self.status.show_statistics(chunk.statistics)
            case Spoken(chunk):
                self.tools.take(chunk)
            case Question():
                self.tools.ask(event)
            case Ran(outcome):
                self.tools.take_outcome(outcome)
            case Answered(completion):
                self.tools.take_answer(completion)
                self.status.show_statistics(completion.statistics)
            case Turn(entry):
                self._end_turn(entry)
            case Ended(job):
                self._end_job(job)
            case Exception():
                self.banner.tell(str(event))
            case None:
                self._end()
            case _:
                self._take_news(event)

    def _take_news(self, event: object) -> None:
        """What is told at the beginning, and when a model or a conversation is there."""
        match event:
            case Loaded():
                self._loaded = event
                self.chat.transcript.speaker = event.name
                self.status.show_loaded(event)
            case Opened(name):
                self._at = name
            case Listed(entries):
                self.sidebar.show_entries(entries)
            case Found(devices):
                self.picker.show_devices(devices, self.picker.device())
            case Notice(text):
                self.banner.tell(text)
            case Progress():
                self.status.show_progress(event)

    def _take_chunk(self, chunk: embedllm.Chunk) -> None:
        if self._at == self.chat.shown.id:  # otherwise of a conversation that was left
            self.chat.take(chunk)
            self.status.show_statistics(chunk.statistics)

    def _end_turn(self, entry: Entry) -> None:
        self.sidebar.end_turn(entry)
        if entry.id == self.chat.shown.id:
            self.chat.end_turn(entry)

    def _end_job(self, job: str) -> None:
        self._jobs[job] -= 1
        if job == "tools":
            self.tools.end()
        self._show_state()
        if self._first and self.chat.send.isEnabled():
            first, self._first = self._first, ""
            self.chat.composer.setPlainText(first)
            self.chat.send.click()

    def _end(self) -> None:
        """The thread is over. When nobody closed the window, a mistake in this program ended it."""
        self._has_ended = True
        if self._is_closing:
            self.ended.emit()
            return
        self._loaded = None
        self._jobs.clear()
        self._show_state()
        self.banner.tell("The model's thread ended by an error, which stands on stderr. Start the program again.")

    def _load(self, model: str, device: str) -> None:
        self._loaded = None
        self._session.stop()
        self.status.show_loading(model)
        self._ask("load", lambda: self._session.load(model, None if device == AUTO else device))

    def _open(self, entry: Entry) -> None:
        """Another conversation: its history is shown at once, its KV comes back in the thread."""
        if entry.id != self.chat.shown.id:
            self._session.stop()
            self.chat.show_entry(entry)
            self.status.speed.clear()
            self._ask("open", lambda: self._session.open(entry))

    def _say(self, text: str) -> None:
        self.sidebar.begin_turn(self.chat.shown.id)
        self._ask("reply", lambda: self._session.say(text))

    def _delete(self, entry: Entry) -> None:
        def delete() -> None:
            self._session.stop()
            self.sidebar.remove(entry.id)
            self._ask("delete", lambda: self._session.delete(entry.id))

        if entry.messages:
            self.banner.ask(f"Delete the conversation “{entry.title}”?", "Delete", delete)
        else:
            delete()

    def _ask(self, job: str, ask: Callable[[], object]) -> None:
        """Asks the thread for a job, and counts it until it is done."""
        self._jobs[job] += 1
        ask()
        self._show_state()

    def _show_state(self) -> None:
        """What can be done now, by what is under way."""
        is_busy = any(self._jobs[job] > 0 for job in ("load", *_REPLIES))
        is_ready = self._loaded is not None and not is_busy
        is_replying = any(self._jobs[job] > 0 for job in _REPLIES)
        for pane in (self.chat, self.structured, self.tools):
            pane.set_state(is_ready=is_ready, is_replying=is_replying)
        self.status.progress.setVisible(is_busy)
        if self._loaded is None and not is_busy:
            self.status.show_nothing()

    def _connect(self) -> None:
        """What the user does becomes a job of the thread."""
        session = self._session
        self.sidebar.chosen.connect(self._open)
        self.sidebar.renamed.connect(lambda entry: self._ask("rename", lambda: session.rename(entry)))
        self.sidebar.deleting.connect(self._delete)
        self.picker.chosen.connect(self._load)
        self.picker.shaded.connect(self._shade)
        self.chat.transcript.copied.connect(lambda text: self.status.showMessage("Copied", _MESSAGE_MS))
        self.chat.asked.connect(self._say)
        self.chat.again.connect(lambda: self._ask("reply", session.regenerate))
        self.structured.asked.connect(lambda text, schema: self._ask("fill", lambda: session.fill(text, schema)))
        self.tools.asked.connect(lambda text: self._ask("tools", lambda: session.use_tools(text)))
        for pane in (self.chat, self.structured, self.tools):
            pane.stopped.connect(session.stop)
        QShortcut(QKeySequence(Qt.Key.Key_Escape), self).activated.connect(session.stop)
        self.tabs.currentChanged.connect(lambda place: self.banner.hide())

    def _shade(self, name: str) -> None:
        self._settings.setValue("theme", name)
        if isinstance(application := QApplication.instance(), QApplication):
            theme.apply(application, name)

    def _lay_out(self) -> None:
        for pane, name in ((self.chat, "Chat"), (self.structured, "JSON reply"), (self.tools, "Tools")):
            self.tabs.addTab(pane, name)
        self.tabs.setDocumentMode(True)
        right, column = QWidget(), QVBoxLayout()
        for part in (self.picker, self.banner, self.tabs):
            column.addWidget(part)
        right.setLayout(column)
        self.splitter = QSplitter()
        self.splitter.addWidget(self.sidebar)
        self.splitter.addWidget(right)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.setSizes([240, 720])
        self.setCentralWidget(self.splitter)
        self.setStatusBar(self.status)
        self.resize(980, 680)

    def _restore(self, model: str, device: str) -> None:
        """As it was when it was closed."""
        settings = self._settings
        for name, restore in (("geometry", self.restoreGeometry), ("splitter", self.splitter.restoreState)):
            if isinstance(value := settings.value(name), QByteArray):
                restore(value)
        folders = settings.value("folders", [], list)
        folders = [str(path) for path in folders] if isinstance(folders, list) else []
        self.picker.show_models(folders, model or str(settings.value("model", DEMO)))
        self.picker.show_devices((), device or str(settings.value("device", AUTO)))

    def _keep_settings(self) -> None:
        picker = self.picker
        chosen = {"folders": picker.folders(), "model": picker.model(), "device": picker.device()}
        placed = {"geometry": self.saveGeometry(), "splitter": self.splitter.saveState()}
        for name, value in {**chosen, **placed}.items():
            self._settings.setValue(name, value)
        self._settings.sync()
