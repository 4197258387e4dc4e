"""Where a GPU runs a graph that another exporter has written: how it is loaded there, and where its KV lies."""

from __future__ import annotations

from embedllm.backends.base import Device
from embedllm.backends.ort.external_graph.placement import HEAVY_OPERATORS, Placement
from embedllm.backends.ort.runtime import ort, recording_options


def on_cuda(device: Device) -> Placement:
    """An NVIDIA GPU."""
    from embedllm.backends.gpu import cuda
    from embedllm.backends.gpu.io_binding_engine import CHUNK

    index = cuda.index_of(device.name)
    return Placement(
        device=device,
        start=lambda path: cuda.start(path, recording_options(), index, captures=False, tf32=False),
        where=("cuda", index),
        put=lambda array: ort.OrtValue.ortvalue_from_numpy(array, "cuda", index),
        chunk=CHUNK,
        lock=cuda.lock_of(index),
        heavy=HEAVY_OPERATORS,
    )


def on_webgpu(device: Device) -> Placement:
    """The GPU that the WebGPU plug-in takes. Raises DeviceError when it does not run."""
    from embedllm.backends.gpu import webgpu

    return Placement(
        device=device,
        start=lambda path: webgpu.start(path, recording_options()),
        where=("webgpu", 0),
        put=webgpu.put,
        get=webgpu.get,
        chunk=webgpu.chunk(),
        lock=webgpu.LOCK,
        heavy=HEAVY_OPERATORS,
    )


def on_directml(device: Device, context: int, *, provider: str = "") -> Placement:
    """A GPU of Windows, whose attention is told how long its buffers are, and takes a prompt in one piece.

    As docs/directml.md has it. context: tokens that a session can hold.
    provider: as DirectMLEngine has it, for checking; empty: DirectML's.
    """
    from embedllm.backends.gpu import directml

    chosen = provider or directml.PROVIDER
    number = directml.number_of(device.name) if chosen == directml.PROVIDER else 0
    where = ("dml" if chosen == directml.PROVIDER else "cpu", number)
    return Placement(
        device=device,
        start=lambda path: directml.start(path, chosen, number),
        where=where,
        put=lambda array: ort.OrtValue.ortvalue_from_numpy(array, *where),
        chunk=context,
        lock=directml.LOCK,
        heavy=HEAVY_OPERATORS if chosen == directml.PROVIDER else frozenset(),
        pads=True,
    )
