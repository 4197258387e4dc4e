"""The line below the window: which model on which device, and what the last reply took."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel, QProgressBar, QStatusBar, QWidget

import embedllm
from embedllm.export import Progress

from .events import Loaded


class Status(QStatusBar):
    """Model and device on the left, the reply on the right."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.device, self.speed, self.progress = QLabel(), QLabel(), QProgressBar(maximum=0)
        self.progress.setMaximumWidth(120)
        self.addWidget(self.device)
        self.addWidget(self.progress)
        self.addPermanentWidget(self.speed)

    def show_loaded(self, loaded: Loaded) -> None:
        device = loaded.device
        self.progress.setMaximum(0)
        self.device.setText(f"{loaded.name} on {device.name}, context {loaded.context:,} tokens")
        self.device.setToolTip(f"{device.description}, {device.backend}; memory {loaded.memory}")

    def show_loading(self, model: str) -> None:
        self.progress.setMaximum(0)  # it only says that something is under way
        self.device.setText(f"loading {model}…")

    def show_progress(self, progress: Progress) -> None:
        """What has to be done before a model can be loaded: a download, an export."""
        what = {"download": "downloading", "hash": "reading", "weights": "exporting"}.get(progress.stage, "exporting")
        self.progress.setMaximum(100)
        self.progress.setValue(round(100 * progress.done / max(1, progress.total)))
        megabytes = f" {progress.total / 1e6:,.0f} MB" if progress.stage != "graphs" else ""
        self.device.setText(f"{what}{megabytes}…")

    def show_nothing(self) -> None:
        self.device.setText("no model; choose one above")

    def show_statistics(self, done: embedllm.Statistics) -> None:
        """What a reply has taken so far."""
        first = f"first token after {done.prefill_s * 1000:.0f} ms"
        had = f"{done.cached_tokens} of {done.prompt_tokens} prompt tokens were there"
        left = f"; {done.dropped_tokens} old ones left out" if done.dropped_tokens else ""
        self.speed.setText(f"{done.tokens} tokens, {done.decode_tokens_s:.0f} tokens/s · {first}, {had}{left}")
