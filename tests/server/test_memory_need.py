"""What a served model is counted for in memory, before it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedllm.backends.base import Device
from embedllm.backends.devices import registry
from embedllm.backends.needed_memory import MemoryEstimate
from embedllm.backends.options import OpenVINOOptions
from embedllm.export import Recipe
from embedllm.loading import memory_estimate
from embedllm.loading.options import LoadOptions
from embedllm.package.package import Package, open_package
from embedllm.server.memory_need import memory_need
from embedllm.server.model_names import ServedModel


def test_memory_is_counted_for_the_graph_that_the_device_takes(
    tiny_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a GPU takes another graph of a folder."""
    own, suited = open_package(tiny_package()), open_package(tiny_package("llama", Recipe(bits=32)))
    options = LoadOptions(device="openvino", prefix_cache=0, openvino=OpenVINOOptions(latents=True))
    model = ServedModel(name="m", path=str(own.folder), options=options)
    estimate_memory, given = memory_estimate.estimate_memory, []

    def estimate(package: Package, *devices: Device, **options: Any) -> MemoryEstimate:  # noqa: ANN401 # as it has them
        given.append((package is suited, options.get("latents")))
        return estimate_memory(package, *devices, **options)

    monkeypatch.setattr(registry, "suited", lambda *_: suited)
    monkeypatch.setattr(memory_estimate, "estimate_memory", estimate)
    assert memory_need(model).bytes > suited.stored.bytes
    assert given == [(True, True)]
