"""What runs graphs on a device whose memory has addresses: how a graph is started there, and its runs replayed."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import Device
from embedllm.backends.ort.runtime import (
    HEAVY,
    WEIGHTS_FOLDER,
    check_assignments,
    load_errors,
    ort,
    recording_options,
)

if TYPE_CHECKING:
    from embedllm.backends.gpu.device_memory import DeviceMemory
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package


class OnDevice:
    """A folder's graph on one device. What differs between providers is in start() and open_memory()."""

    where: tuple[str, int] = ("cpu", 0)  # the device in ONNX Runtime's words: its type and index

    def __init__(
        self,
        package: Package,
        graph: Graph,
        device: Device,
        *,
        capture: bool = True,
        lock: threading.RLock | None = None,
    ) -> None:
        """capture: replay runs as they were captured; without it they are launched kernel by kernel.

        lock: of all that runs on the device, encoders too, whose work must not be in what another captures.
        """
        self.device = device
        self.package = package
        self.context = package.context
        self.remedy = package.larger_context
        self.captures = capture
        self.dtype = np.float16 if graph.activations == "float16" else np.float32
        self.graph_ids = itertools.count(1)
        self.lock = lock or threading.RLock()
        self._session: ort.InferenceSession | None = None

    def start(self, model: str | bytes, options: ort.SessionOptions, *, captures: bool) -> ort.InferenceSession:
        """A session on this device, without falling back to another. captures: its runs may be captured.

        model: a path, or a graph whose weights the options say the folder of.
        """
        raise NotImplementedError

    def open_memory(self) -> DeviceMemory:
        """That of this device."""
        raise NotImplementedError

    def start_over_weights(self, path: Path, model: bytes, folder: Path) -> ort.InferenceSession:
        """A session of a graph whose weights lie in that folder. path: of the graph, for errors.

        Raises DeviceError; DeviceUnavailable when part of the work would run on the CPU.
        """
        options = recording_options()
        options.add_session_config_entry(WEIGHTS_FOLDER, os.fspath(folder))
        with load_errors(path), self.lock:
            session = self.start(model, options, captures=self.captures)
        check_assignments(session, HEAVY, self.device, "please report it")
        return session

    @property
    def session(self) -> ort.InferenceSession:
        if self._session is None:
            raise ValueError("this model was closed")
        return self._session

    def replaying(self, graph_id: int | None) -> ort.RunOptions:
        """Options to run what is captured under that number, or is captured so now; None: nothing is."""
        options = ort.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph_id if self.captures and graph_id is not None else -1))
        return options


def not_waiting(options: ort.RunOptions) -> ort.RunOptions:
    """The same, for a run that the host does not wait for."""
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options
