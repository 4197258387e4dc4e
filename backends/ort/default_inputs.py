"""A graph whose inputs with defaults are constants, for providers that know no such inputs."""

from __future__ import annotations

from pathlib import Path

import onnx


def without_defaults(path: Path) -> bytes:
    """The graph of a file as ONNX, its inputs with a default made constants of that value; weights stay outside."""
    model = onnx.load(str(path), load_external_data=False)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model.SerializeToString()
