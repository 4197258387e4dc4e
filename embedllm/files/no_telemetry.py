"""Imports OpenVINO's and ONNX Runtime's packages without their usage statistics. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Within the block, importing openvino_telemetry fails.

    OpenVINO's conversion tools, which `import openvino` brings along, write an identifier into the home folder with it
    and report their use; they go without where it is not installed (2026.4; tests/project/test_import.py).
    """
    before = sys.modules.get("openvino_telemetry")
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # which makes importing it fail
    try:
        yield
    finally:
        if before is None:
            del sys.modules["openvino_telemetry"]
        else:
            sys.modules["openvino_telemetry"] = before


_ONNX_RUNTIME = "ORT_DISABLE_TELEMETRY"


@contextmanager
def without_ort_telemetry() -> Iterator[None]:
    """Within the block, importing onnxruntime or onnxruntime_genai writes nothing into the home folder.

    They read the variable once, when they are imported (ONNX Runtime 1.32, onnxruntime-genai 0.11; tests/project/
    test_import.py), so the environment of the process is afterwards what it was. What the application has set stays.
    """
    if _ONNX_RUNTIME in os.environ:
        yield
        return
    os.environ[_ONNX_RUNTIME] = "1"
    try:
        yield
    finally:
        os.environ.pop(_ONNX_RUNTIME, None)
