"""The states of a recurrent sequence on WebGPU, in places for turns: a run reads one and writes the next.

So a captured step has other buffers for what it reads and what it writes, and steps that ran ahead of the caller leave
those states as they were from which the sequence goes on when they are not wanted. Sequences that step together have a
row each of the states of a batch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from embedllm.backends.gpu.webgpu_copies import copy_graph, numbered, run_copy
from embedllm.backends.ort.runtime import ort
from embedllm.files.optional_packages import needs
from embedllm.package.recurrent_state import state_shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ValueInfoProto

    from embedllm.backends.base import RecurrentStates
    from embedllm.package.package import Package

PLACES = 5  # docs/webgpu.md#recurrent-models; of which two may hold what is not certain yet, twice
PLACES_OF_BATCH = 2  # nothing runs ahead there
States: TypeAlias = list[ort.OrtValue]  # in the order of a model's


class StateMemory(Protocol):
    """What it needs of an engine. Its lock is held."""

    package: Package
    dtype: type[np.floating]

    def place(self, array: np.ndarray) -> ort.OrtValue:
        """A copy of an array on the GPU."""
        ...


class StateRing:
    """Of one sequence, or of some that step together; of a model that has no states, nothing in a single place."""

    def __init__(self, memory: StateMemory, rows: int = 1) -> None:
        self._names = list(shapes := state_shapes(memory.package.decoder))
        self._shapes = [(rows, *shape) for shape in shapes.values()]
        self._dtype = memory.dtype
        self.places = (PLACES if rows == 1 else PLACES_OF_BATCH) if shapes else 1
        self._states = [self._empty() for _ in range(self.places)]
        zeros = {shape: memory.place(np.zeros(shape, memory.dtype)) for shape in set(self._shapes)}
        self._zeros = [zeros[shape] for shape in self._shapes]

    @property
    def most_ahead(self) -> int:
        """Runs behind a place after which it holds, and the one before it, what it did."""
        return self.places - 2 if self._names else sys.maxsize

    def after(self, place: int, runs: int = 1) -> int:
        return (place + runs) % self.places

    def bind(self, binding: ort.IOBinding, place: int) -> None:
        """Has a run read that place, and write the next."""
        pairs = zip(self._names, self._states[place], self._states[self.after(place)], strict=True)
        for name, past, present in pairs:
            binding.bind_ortvalue_input(f"past_{name}", past)
            binding.bind_ortvalue_output(f"present_{name}", present)

    def at(self, place: int) -> States:
        """Those of that place themselves."""
        return self._states[place]

    def reset(self, place: int) -> None:
        """To those of a sequence of no token."""
        self.write(place, self._zeros)

    def copies(self, place: int) -> States:
        """On the GPU, too."""
        return copies_on_gpu(self._states[place], self._dtype)

    def write(self, place: int, states: States) -> None:
        _copy(states, self._states[place])

    def take(self, source: StateRing, place: int) -> None:
        """What is in that place of another one."""
        self.write(place, source._states[place])

    def _empty(self) -> States:
        return [ort.OrtValue.ortvalue_from_shape_and_type(shape, self._dtype, "webgpu") for shape in self._shapes]


class GpuStates(Mapping[str, "NDArray[np.floating]"]):
    """States of a sequence that stay on the GPU and do not change; an array that is asked for is copied to the host."""

    def __init__(
        self,
        tensors: Mapping[str, ort.OrtValue],
        dtype: type[np.floating],
        read: Callable[[ort.OrtValue], NDArray[np.floating]],
        *,
        owner: object = None,
    ) -> None:
        """tensors: [1, ...] by name. owner: what has to stay for nothing to write there."""
        self.tensors, self.dtype = tensors, dtype
        self._read, self._owner = read, owner

    @property
    def nbytes(self) -> int:
        values = sum(math.prod(tensor.shape()) for tensor in self.tensors.values())
        return values * np.dtype(self.dtype).itemsize

    def __getitem__(self, name: str) -> NDArray[np.floating]:
        return self._read(self.tensors[name])[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def state_tensors(states: RecurrentStates, names: Iterable[str], dtype: type[np.floating]) -> States:
    """Tensors [1, ...] of that type, to be copied: on the GPU where they are there, else on the host."""
    if isinstance(states, GpuStates) and states.dtype is dtype:
        return [states.tensors[name] for name in names]
    arrays = (np.ascontiguousarray(states[name][None], dtype) for name in names)
    return [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays]


def copies_on_gpu(states: States, dtype: type[np.floating]) -> States:
    """Copies of tensors of that type on the GPU. Call it with the lock."""
    copies = [ort.OrtValue.ortvalue_from_shape_and_type(tensor.shape(), dtype, "webgpu") for tensor in states]
    _copy(states, copies)
    return copies


class RowCopier:
    """Copies the states of one sequence into a row of a batch, and out of it. Call it with the lock."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        dtype: np.dtype[np.floating],
        start: Callable[[bytes], ort.InferenceSession],
    ) -> None:
        """shapes: of the states of one sequence. start: makes a session on the GPU of a graph."""
        self._ranks = sorted({len(shape) for shape in shapes})
        self._slices, self._merges = (start(_graph(shapes, dtype, into=into)) for into in (False, True))

    def copy_out(self, batch: States, row: int, to: States) -> None:
        ends = {"start": np.array([row]), "stop": np.array([row + 1])}
        run_copy(self._slices, numbered("batch.{}", batch), ends, numbered("copy.{}", to))

    def copy_in(self, batch: States, row: int, states: States, to: States) -> None:
        """The batch with these in that row to another one: WebGPU writes nothing that a kernel reads."""
        mask = np.arange(batch[0].shape()[0]) == row
        masks = {f"mask.{rank}": mask.reshape(-1, *[1] * rank) for rank in self._ranks}
        inputs = numbered("batch.{}", batch) | numbered("row.{}", states)
        run_copy(self._merges, inputs, masks, numbered("copy.{}", to))


def _graph(shapes: Sequence[tuple[int, ...]], dtype: np.dtype[np.floating], *, into: bool) -> bytes:
    """batch.N [rows, ...] to copy.N: its rows from `start` to before `stop`; or with row.N [1, ...] where a mask is."""
    with needs("onnx", "WebGPU"):
        from onnx import TensorProto, helper

    def states(name: str, rows: str | int) -> list[ValueInfoProto]:
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        return [helper.make_tensor_value_info(f"{name}.{at}", kind, [rows, *shape]) for at, shape in enumerate(shapes)]

    inputs, constants = states("batch", "rows"), {}
    if into:
        inputs += states("row", 1)
        inputs += [helper.make_tensor_value_info(f"mask.{rank}", TensorProto.BOOL, ["rows", *[1] * rank])
                   for rank in sorted({len(shape) for shape in shapes})]  # fmt: skip
        nodes = [helper.make_node("Where", [f"mask.{len(shape)}", f"row.{at}", f"batch.{at}"], [f"copy.{at}"])
                 for at, shape in enumerate(shapes)]  # fmt: skip
    else:
        inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in ("start", "stop")]
        constants["axes"] = np.array([0])
        nodes = [helper.make_node("Slice", [f"batch.{at}", "start", "stop", "axes"], [f"copy.{at}"])
                 for at in range(len(shapes))]  # fmt: skip
    return copy_graph(nodes, inputs, states("copy", "rows" if into else 1), constants)


def _copy(source: States, to: States) -> None:
    if source:
        ort.copy_tensors(source, to)
