"""What the tests of WebGPU have in common."""

from __future__ import annotations

import pytest

from embedllm.backends.base import Device


@pytest.fixture(scope="module")
def device() -> Device:
    """The GPU by WebGPU; where there is none, what asks for it is skipped."""
    from embedllm.backends.gpu import webgpu_devices

    found = webgpu_devices.devices()[0]
    if not found.available:
        pytest.skip(f"no WebGPU: {found.reason}")
    return found
