"""A run on WebGPU that is captured once, over buffers that stay the same, and replayed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from embedllm.backends.gpu.unbatched_session import Gpu
from embedllm.backends.ort.runtime import first_line, ort

_log = logging.getLogger("embedllm")


class CapturingGpu(Gpu, Protocol):
    """What captured runs need of their engine."""

    @property
    def graph_ids(self) -> Iterator[int]: ...

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        """Options to run what is captured under that number, or is captured so now; None: nothing is."""
        ...


class CapturedRun:
    """A run of what is bound, kernel by kernel where it cannot be captured."""

    def __init__(self, gpu: CapturingGpu, session: ort.InferenceSession, binding: ort.IOBinding, what: str) -> None:
        """Runs it over what holds nothing yet. what: it is called in the log."""
        self._session, self._binding = session, binding
        self._graph_id = next(gpu.graph_ids)
        self.options = gpu.replaying(self._graph_id)
        self.failure = ""  # why it is not captured
        with gpu.lock:
            try:
                self.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, kernels run without it
                self.failure = first_line(error)
                _log.info("%s are not captured: %s", what, self.failure)
                self.close()
                self.options = gpu.replaying(None)

    def run(self) -> None:
        """Called with the engine's lock held."""
        self._session.run_with_iobinding(self._binding, self.options)

    def close(self) -> None:
        """Forgets what was captured."""
        self._session.release_captured_graph(self._graph_id)
