"""The one worker of this office: started with the first action, kept for the next ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedllm_actions import load_params
from embedllm_client import Client, WorkerError, WorkerMissing
from embedllm_settings import Settings

INSTALL = (
    "Install it into a Python of its own, from a clone of the repository: python -m venv env, then "
    'env\\Scripts\\pip install ".[webgpu]" (elsewhere env/bin/pip ...); then put the full path of '
    "that folder's 'embedllm' into 'worker' in '{}'."
)


class Worker:
    """Starts and loads what the settings say. ready() is called by one thread at a time, stop() by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._loaded: dict[str, Any] | None = None
        self.on_note: Callable[[str], None] = lambda text: None

    def ready(self, settings: Settings, file: Path) -> Client:
        """A client whose worker has the model. Raises WorkerError.

        file: where the settings are, for the user to correct them.
        """
        client = self._client
        if client is None or not client.is_alive or client.command != settings.worker:
            self.stop()
            try:
                client = Client(settings.worker, on_note=lambda text: self.on_note(text))
            except WorkerMissing as error:
                raise WorkerError(f"{error}. {INSTALL.format(file)}") from error
            with self._lock:
                self._client, self._loaded = client, None
        params = load_params(settings)
        if params != self._loaded:
            self._loaded = None
            client.request("load", params).result()
            self._loaded = params
        return client

    def stop(self) -> None:
        """Ends the process, also while it loads a model; whoever waits for it gets a WorkerError."""
        with self._lock:
            client, self._client, self._loaded = self._client, None, None
        if client is not None:
            client.close(timeout_s=0.5)
