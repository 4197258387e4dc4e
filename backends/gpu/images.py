"""Images on GPUs of ONNX Runtime: the encoder beside a decoder's graph, and the inputs that take its features.

The inputs are empty by default (docs/format.md#vision-encoders). A run with images has a binding of its own, so text
and captured steps never have anything bound to them, and stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.backends.base import Unsupported
from embedllm.backends.gpu.device_memory import DeviceBlock
from embedllm.backends.images import FIRST_ID, ImageFeatures, text_and_images
from embedllm.backends.ort.runtime import HEAVY, check_assignments, load_errors, ort
from embedllm.backends.ort.vision import OrtVision
from embedllm.files.command_line import graph_command
from embedllm.package.graph_variants import IMAGES_ON_GPU, VISION_ON_GPU
from embedllm.package.rope import tables
from embedllm.package.tensors import ROPE_TABLES

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from embedllm.backends.base import Device
    from embedllm.backends.gpu.device_memory import DeviceMemory
    from embedllm.backends.images import WithImages
    from embedllm.backends.mrope import ImagePlaces
    from embedllm.package.architecture.rope import Rope
    from embedllm.package.entries import Graph
    from embedllm.package.package import Package
    from embedllm.types import F32

FEATURES, POSITIONS = "image_features", "image_positions"
# operators that do the work of an encoder: none of them may be left to the CPU
_HEAVY = {"Conv", "FusedMatMul", "Gemm", "MatMul", "MatMulNBits", "MultiHeadAttention"}


class HoldsArrays(Protocol):
    """What tables need of an engine."""

    def place(self, array: np.ndarray) -> ort.OrtValue: ...

    def write(self, value: ort.OrtValue, array: np.ndarray) -> None: ...


class RunsOnDevice(Protocol):
    """What the inputs need of an engine whose memory has addresses."""

    memory: DeviceMemory
    where: tuple[str, int]  # the device in ONNX Runtime's words: its type and index
    dtype: type[np.floating]  # of the graph's activations


def open_images(
    package: Package,
    graph: Graph,
    device: Device,
    session: ort.InferenceSession,
    start: Callable[[str], ort.InferenceSession],
    lock: AbstractContextManager[object],
) -> tuple[ImageFeatures | None, Unsupported | None]:
    """The features of images for a decoder's graph; or why a folder takes none here, if its model sees.

    start: makes a session of an encoder's file, which records its assignments; called for the first image.
    """
    if package.decoder.vision is None:
        return None, None
    variant, is_bidirectional = VISION_ON_GPU[graph.variant], package.decoder.images_are_bidirectional
    needed = {FEATURES, *(ROPE_TABLES if package.decoder.rope.mrope is not None else ())}
    others = [variant.name, *([IMAGES_ON_GPU[graph.variant].name] if is_bidirectional else ())]
    lacking = [] if is_bidirectional or needed <= _overridable(session) else [graph.variant]
    lacking += [name for name in others if package.graph(name) is None]
    if lacking:
        commands = " and ".join(graph_command(package.folder, name) for name in lacking)
        return None, Unsupported("its folder was written by a version without images there", f"run {commands}")

    def started(path: str) -> ort.InferenceSession:
        session = start(path)
        check_assignments(session, _HEAVY, device, "use another device for images")
        return session

    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")  # of no captured graph
    return ImageFeatures(
        lambda: OrtVision(package, variant, started, lock=lock, options=options), bidirectional=is_bidirectional
    ), None


class ImageDecoder:
    """The graph that reads an image whose tokens attend to one another, into the KV of the graph of all else.

    It is opened for the first image. Its weights are in the device's memory once more.
    """

    def __init__(
        self, package: Package, text: Graph, device: Device, start: Callable[[str], ort.InferenceSession]
    ) -> None:
        """text: the graph of all else. start: makes a session of a file, which records its assignments."""
        self._package, self._text, self._device, self._start = package, text, device, start
        self._session: ort.InferenceSession | None = None

    def session(self) -> ort.InferenceSession:
        """Raises DeviceError."""
        if self._session is None:
            graph = self._package.graph(IMAGES_ON_GPU[self._text.variant].name)
            assert graph is not None  # or the engine takes no images
            path = self._package.folder / graph.file
            with load_errors(path):
                session = self._start(os.fspath(path))
            check_assignments(session, HEAVY, self._device, "use another device for images")
            self._session = session
        return self._session

    def close(self) -> None:
        self._session = None


def pieces_of(tokens: Sequence[int], images: ImageFeatures | None) -> list[Sequence[int]]:
    """What is fed in runs of their own: an image whose tokens attend to one another has another graph."""
    return text_and_images(tokens) if images is not None and images.bidirectional else [tokens]


class SequenceTables:
    """Rotary tables in a sequence's buffers on the device, whose rows images move (M-RoPE).

    They have the rows of all places, behind the last image too, so captured steps read them as they are.
    """

    def __init__(self, gpu: HoldsArrays, rope: Rope, capacity: int) -> None:
        self._gpu, self._capacity = gpu, capacity
        self._layout: tuple[tuple[int, ...], ...] = ()  # of the images that the rows are for
        self._default = tables(rope, capacity)
        self._values = [gpu.place(np.ascontiguousarray(rows)) for rows in self._default]

    def bind(self, binding: ort.IOBinding) -> None:
        for name, value in zip(ROPE_TABLES, self._values, strict=True):
            binding.bind_ortvalue_input(name, value)

    def fit(self, places: ImagePlaces | None) -> None:
        """Makes them those of a sequence with these images."""
        layout = () if places is None else places.layout
        if layout == self._layout:
            return
        rows = self._default if places is None or not layout else places.rope_rows(0, self._capacity)
        for value, new in zip(self._values, rows, strict=True):
            self._gpu.write(value, np.ascontiguousarray(new))
        self._layout = layout


def takes_tables(session: ort.InferenceSession) -> bool:
    """Whether a graph has rotary tables as inputs."""
    return set(ROPE_TABLES) <= _overridable(session)


def _overridable(session: ort.InferenceSession) -> set[str]:
    return {one.name for one in session.get_overridable_initializers()}


def is_image(token: int) -> bool:
    """Whether an id stands for a row of an image: no captured step takes such."""
    return token >= FIRST_ID


def bind_images(engine: RunsOnDevice, binding: ort.IOBinding, rows: Sequence[WithImages | None]) -> DeviceBlock | None:
    """Binds the images of the sequences of a run; the memory they take, to be kept until it has run."""
    image_rows = [(row, one) for row, one in enumerate(rows) if one is not None]
    if not image_rows:
        return None
    places = [(row, place) for row, one in image_rows for place in one.places]
    features, positions = image_arrays(np.concatenate([one.features for _, one in image_rows]), places, engine.dtype)
    block = DeviceBlock(engine.memory, positions.nbytes + features.nbytes)
    address = block.address
    for name, array in ((POSITIONS, positions), (FEATURES, features)):  # the features on a multiple of 16 bytes
        engine.memory.write(address, array)
        binding.bind_input(name, *engine.where, array.dtype, array.shape, address)
        address += array.nbytes
    return block


def image_arrays(
    features: F32, places: list[tuple[int, int]], dtype: type[np.floating]
) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """What the two inputs take. places: of each row of the features its sequence in the run, and its place there."""
    return np.ascontiguousarray(features, dtype), np.array(places, np.int64)
