"""Graphs that copy parts of tensors on the GPU, and their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from embedllm.backends.ort.runtime import ort

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import NodeProto, ValueInfoProto


def copy_graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Mapping[str, NDArray[np.generic]],
) -> bytes:
    """A model of these nodes. Its caller has made sure that onnx is installed."""
    from onnx import helper, numpy_helper

    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "copy", inputs, outputs, initializers)
    domains = [helper.make_opsetid("", 21)]
    return cast("bytes", helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString())


def numbered(name: str, values: Sequence[ort.OrtValue]) -> dict[str, ort.OrtValue]:
    """Tensors by what such a graph calls them: `name` with the number of each."""
    return {name.format(at): value for at, value in enumerate(values)}


def run_copy(
    session: ort.InferenceSession,
    tensors: Mapping[str, ort.OrtValue],
    places: Mapping[str, NDArray[np.generic]],
    outputs: Mapping[str, ort.OrtValue],
) -> None:
    """Runs such a graph. places: what it reads on the host. Call it with the lock."""
    binding = session.io_binding()
    read = {**tensors, **{name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in places.items()}}
    for name, value in read.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in outputs.items():
        binding.bind_ortvalue_output(name, value)
    session.run_with_iobinding(binding)
