"""Which model, and on which device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QComboBox, QFileDialog, QHBoxLayout, QInputDialog, QLabel, QMenu, QToolButton, QWidget

import embedllm

from .theme import NAMES

DEMO = "demo"
_KEPT = 8  # folders
AUTO = "auto"


class Picker(QWidget):
    """The demo and the models that were chosen before; the devices."""

    chosen = Signal(str, str)  # a folder, a GGUF file, a name of the hub or "demo"; a device or "auto"
    shaded = Signal(str)  # a name of theme.NAMES

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.models, self.devices = QComboBox(), QComboBox()
        self.models.setAccessibleName("Model")
        self.devices.setAccessibleName("Device")
        self.models.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.open = QToolButton(popupMode=QToolButton.ToolButtonPopupMode.InstantPopup)
        self.open.setText("Open…")
        menu = QMenu(self.open)
        menu.addAction("Folder of a model…", lambda: self._ask(QFileDialog.FileMode.Directory))
        menu.addAction("GGUF file, or embedllm.json of a model…", lambda: self._ask(QFileDialog.FileMode.ExistingFile))
        menu.addAction("Model of the Hugging Face hub…", self._ask_name)
        self.open.setMenu(menu)
        self.themes = QToolButton(popupMode=QToolButton.ToolButtonPopupMode.InstantPopup)
        self.themes.setText("Theme")
        shades = QMenu(self.themes)
        for name, label in NAMES.items():
            shades.addAction(label, lambda name=name: self.shaded.emit(name))
        self.themes.setMenu(shades)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        for part in (QLabel("Model"), self.models, self.open, QLabel("on"), self.devices):
            row.addWidget(part)
        row.addStretch(1)
        row.addWidget(self.themes)
        self.models.activated.connect(self._emit)
        self.devices.activated.connect(self._emit)

    def model(self) -> str:
        return self.models.currentData() or DEMO

    def device(self) -> str:
        return self.devices.currentData() or AUTO

    def folders(self) -> list[str]:
        """What is listed beside the demo, to be kept for the next time."""
        paths = [self.models.itemData(place) for place in range(self.models.count())]
        return [path for path in paths if path != DEMO][:_KEPT]

    def show_models(self, folders: Sequence[str], current: str) -> None:
        self.models.clear()
        self.models.addItem("demo (comes with embedllm)", DEMO)
        for path in dict.fromkeys([*folders, current]):
            if path != DEMO:
                self._add(path)
        self.models.setCurrentIndex(self.models.findData(current))

    def show_devices(self, devices: Sequence[embedllm.Device], wished: str) -> None:
        """All of them; those that are missing can be read about, not chosen."""
        self.devices.clear()
        self.devices.addItem("best device", AUTO)
        for device in devices:
            self.devices.addItem(device.name, device.name)
            place = self.devices.count() - 1
            tip = device.description if device.available else f"{device.reason} {device.remedy}"
            self.devices.setItemData(place, tip, Qt.ItemDataRole.ToolTipRole)
            if not device.available:
                self.devices.setItemData(place, 0, Qt.ItemDataRole.UserRole - 1)  # Qt's own way of saying "disabled"
        if self.devices.findData(wished) < 0:
            self.devices.addItem(wished, wished)  # of an environment variable, or no longer there: loading says so
        self.devices.setCurrentIndex(self.devices.findData(wished))

    def choose(self, path: str) -> None:
        """A folder, or the manifest in it, a GGUF file, or org/name; it is listed, and asked to be loaded."""
        name = str(Path(path).parent) if Path(path).name == "embedllm.json" else path
        if self.models.findData(name) < 0:
            self._add(name)
        self.models.setCurrentIndex(self.models.findData(name))
        self._emit()

    def _add(self, path: str) -> None:
        self.models.addItem(Path(path).name if Path(path).exists() else path, path)
        self.models.setItemData(self.models.count() - 1, path, Qt.ItemDataRole.ToolTipRole)

    def _emit(self) -> None:
        self.chosen.emit(self.model(), self.device())

    def _ask(self, mode: QFileDialog.FileMode) -> None:
        """Comes back at once: a dialog that is waited for would stop the reply that is being shown."""
        dialog = QFileDialog(self.window(), "Open a model", fileMode=mode)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        if mode == QFileDialog.FileMode.Directory:
            dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        else:
            dialog.setNameFilter("Models (*.gguf embedllm.json)")
        dialog.fileSelected.connect(self.choose)
        dialog.open()

    def _ask_name(self) -> None:
        dialog = QInputDialog(self.window())
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setWindowTitle("Open a model of the hub")
        dialog.setLabelText("Name on huggingface.co. It is downloaded when it is first opened.")
        dialog.setTextValue("Qwen/Qwen3-0.6B")
        dialog.textValueSelected.connect(lambda name: self.choose(name.strip()) if name.strip() else None)
        dialog.open()
