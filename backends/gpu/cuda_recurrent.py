"""A recurrent model on one NVIDIA GPU: its steps are captured where that gives what their kernels give one by one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.gpu.capture_check import on_host, why_different
from embedllm.backends.gpu.cuda import CudaEngine
from embedllm.backends.gpu.recurrent_engine import RecurrentEngine, RecurrentSlot
from embedllm.backends.ort.runtime import device_errors
from embedllm.errors import DeviceError

if TYPE_CHECKING:
    from embedllm.backends.base import Device
    from embedllm.backends.gpu.io_binding_engine import ResidentEngine
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package

_PROMPT, _STEPS = (1, 2, 3), (4, 5, 6, 7, 8)  # tokens; of each side of states one step captures, and one is replayed
_log = logging.getLogger("embedllm")


def open_recurrent(package: Package, graph: Graph, device: Device) -> RecurrentEngine:
    """Raises DeviceUnavailable when part of the work would run on the CPU, DeviceError when it cannot be loaded."""
    engine = CudaEngine(package, graph, device)
    if engine.captures and (reason := why_not_captured(engine)):
        _log.info("%s: steps are launched kernel by kernel: %s", device.name, reason)
        engine.close()
        engine = CudaEngine(package, graph, device, capture=False)
    return RecurrentEngine(engine)


def why_not_captured(engine: ResidentEngine) -> str:
    """What is wrong with captured steps of a recurrent model; empty: nothing."""
    with engine.lock, device_errors(engine.device):
        session = RecurrentSlot(engine, 0)
    try:
        rows = []
        for whole in (True, False):
            session.rewind(0)
            session.feed(_PROMPT)
            steps = [session.feed_all([token]) if whole else on_host([session.feed([token])]) for token in _STEPS]
            rows.append(np.concatenate(steps))
    except DeviceError as error:
        return str(error)
    finally:
        session.close()
    launched, captured = rows
    return why_different(captured, launched)
