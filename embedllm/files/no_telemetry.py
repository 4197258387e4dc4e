"""Imports OpenVINO's packages without their usage statistics. Standard library only."""

from __future__ import annotations

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
