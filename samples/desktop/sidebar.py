"""The list of conversations: one is chosen, named again where it stands, deleted."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QDateTime, QLocale, QSize, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QHBoxLayout, QHeaderView, QPushButton, QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from .store import NO_TITLE, Entry

_ID = Qt.ItemDataRole.UserRole
_PADDING = 8  # pixels


class Sidebar(QWidget):
    """Titles and times, the last changed first."""

    chosen = Signal(object)  # an Entry
    renamed = Signal(object)  # an Entry with its new title
    deleting = Signal(object)  # an Entry

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: dict[str, Entry] = {}
        self._used: set[str] = set()  # of those without messages: where a first reply is coming
        self.list = QTreeWidget(columnCount=2)
        self.list.setHeaderHidden(True)
        self.list.setRootIsDecorated(False)
        self.list.setAccessibleName("Conversations")
        self.list.setEditTriggers(QTreeWidget.EditTrigger.EditKeyPressed | QTreeWidget.EditTrigger.DoubleClicked)
        self.list.header().setStretchLastSection(False)
        self.list.header().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.list.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        self.new, self.rename, self.delete = QPushButton("New"), QPushButton("Rename"), QPushButton("Delete")
        self._lay_out()
        self.list.currentItemChanged.connect(self._choose)
        self.list.itemChanged.connect(self._take_title)
        self.new.clicked.connect(lambda: self.begin(Entry()))
        self.rename.clicked.connect(lambda: self.list.editItem(self._item(self.current().id), 0))
        self.delete.clicked.connect(lambda: self.deleting.emit(self.current()))
        shortcut = QShortcut(QKeySequence(QKeySequence.StandardKey.Delete), self.list)
        shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
        shortcut.activated.connect(self.delete.click)

    def show_entries(self, entries: tuple[Entry, ...]) -> None:
        """Adds saved conversations below what is listed."""
        for entry in entries:
            self._add(self.list.topLevelItemCount(), entry)

    def begin(self, entry: Entry) -> None:
        """A new conversation at the top, chosen. An empty one that is there serves as well."""
        unused = (one for one in self._entries.values() if not one.messages and one.id not in self._used)
        empty = next(unused, None)
        if empty is None:
            self._add(0, entry)
        self.choose((empty or entry).id)

    def choose(self, name: str) -> None:
        self.list.setCurrentItem(self._item(name))

    def current(self) -> Entry:
        """The chosen one; there always is one, from the first begin() on."""
        return self._entries[self.list.currentIndex().siblingAtColumn(0).data(_ID)]

    def begin_turn(self, name: str) -> None:
        """Something is being said there."""
        self._used.add(name)

    def end_turn(self, entry: Entry) -> None:
        """More was said. One that was deleted meanwhile stays deleted, one that was named keeps its name."""
        self._used.discard(entry.id)
        if (before := self._entries.get(entry.id)) is not None:
            self._update(entry if before.title == NO_TITLE else replace(entry, title=before.title))

    def remove(self, name: str) -> None:
        """Takes one from the list; another is chosen, or a new one begun."""
        item = self._item(name)
        del self._entries[name]
        if not self._entries:
            self._add(0, Entry())
        self.list.takeTopLevelItem(self.list.indexOfTopLevelItem(item))

    def _lay_out(self) -> None:
        column, row = QVBoxLayout(self), QHBoxLayout()
        column.setContentsMargins(9, 9, 0, 0)
        for button in (self.new, self.rename, self.delete):
            row.addWidget(button)
        column.addWidget(self.list)
        column.addLayout(row)
        self.new.setToolTip("Begin a new conversation (Ctrl+N)")
        self.new.setShortcut(QKeySequence(QKeySequence.StandardKey.New))

    def _add(self, place: int, entry: Entry) -> None:
        self._entries[entry.id] = entry
        item = QTreeWidgetItem()
        item.setFlags(item.flags() | Qt.ItemFlag.ItemIsEditable)
        self._fill(item, entry)
        self.list.insertTopLevelItem(place, item)

    def _update(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        self._fill(self._item(entry.id), entry)

    def _fill(self, item: QTreeWidgetItem, entry: Entry) -> None:
        was = self.list.blockSignals(True)
        moment = QDateTime.fromSecsSinceEpoch(int(entry.changed))
        is_today = moment.date() == QDateTime.currentDateTime().date()
        when = moment.time() if is_today else moment.date()
        item.setData(0, _ID, entry.id)
        item.setText(0, entry.title)
        item.setText(1, QLocale().toString(when, QLocale.FormatType.ShortFormat))
        item.setToolTip(0, entry.title)
        # not by a style sheet, which would fix the colours
        item.setSizeHint(0, QSize(0, self.list.fontMetrics().height() + _PADDING))
        self.list.blockSignals(was)

    def _item(self, name: str) -> QTreeWidgetItem:
        items = (self.list.topLevelItem(place) for place in range(self.list.topLevelItemCount()))
        return next(item for item in items if item is not None and item.data(0, _ID) == name)

    def _choose(self, item: QTreeWidgetItem | None) -> None:
        if item is not None:
            self.chosen.emit(self._entries[item.data(0, _ID)])

    def _take_title(self, item: QTreeWidgetItem) -> None:
        entry = self._entries[item.data(0, _ID)]
        title = " ".join(item.text(0).split())
        if title and title != entry.title:
            entry = replace(entry, title=title)
            self.renamed.emit(entry)
        self._update(entry)
