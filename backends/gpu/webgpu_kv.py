"""KV moved within the GPU: that of some tokens copied out of a session's buffers, and into another's.

The provider copies whole tensors only, and a whole one through the host takes longer than its tokens to compute. So
small graphs of one Slice, or one ScatterND, for each key and value tensor do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embedllm.backends.gpu.webgpu_copies import copy_graph, numbered, run_copy
from embedllm.backends.ort.runtime import ort
from embedllm.backends.sessions.kv_arrays import DeviceKv
from embedllm.files.optional_packages import needs

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ValueInfoProto

    from embedllm.backends.base import KeyValues

    Place = Callable[[NDArray[Any]], ort.OrtValue]
    Read = Callable[[ort.OrtValue], NDArray[Any]]

Shape = tuple[int, int]  # kv heads and head size
_TOKENS = 2  # axis of [1, kv heads, T, D]


class KvCopier:
    """Copies keys and values of one model: tensors [rows, kv heads, T, D], in a session's order.

    Call it with the lock.
    """

    def __init__(
        self, shapes: Sequence[Shape], dtype: type[np.floating], start: Callable[[bytes], ort.InferenceSession]
    ) -> None:
        """shapes: of every tensor. start: makes a session on the GPU of a graph."""
        self.shapes = list(shapes)
        self.dtype = np.dtype(dtype)
        self._slices = start(slice_graph(shapes, self.dtype))
        self._scatters = start(scatter_graph(shapes, self.dtype))

    def copied(self, tensors: Sequence[ort.OrtValue], start: int, stop: int, *, row: int = 0) -> list[ort.OrtValue]:
        """Tensors of one row: its tokens from `start` to before `stop`, at least one."""
        copies = [
            ort.OrtValue.ortvalue_from_shape_and_type((1, heads, stop - start, size), self.dtype, "webgpu")
            for heads, size in self.shapes
        ]
        ends = {"start": np.array([row, start]), "stop": np.array([row + 1, stop])}
        run_copy(self._slices, numbered("kv.{}", tensors), ends, numbered("copy.{}", copies))
        return copies

    def write(
        self, tensors: Sequence[ort.OrtValue], start: int, parts: Sequence[ort.OrtValue], *, row: int = 0
    ) -> None:
        """Puts tokens where others are in one row, from `start` on. parts: on the GPU or the host."""
        count = parts[0].shape()[_TOKENS]
        places = {f"places.{heads}": _places(row, heads, start, count) for heads, _ in self.shapes}
        inputs = numbered("kv.{}", tensors) | numbered("part.{}", parts)
        run_copy(self._scatters, inputs, places, numbered("kv.{}.new", tensors))  # in place

    def works(self, place: Place, read: Read) -> bool:
        """Whether numbers arrive unchanged, and others stay. It compiles the shaders too."""
        random = np.random.default_rng(0)
        before = [random.standard_normal((2, heads, 4, size)).astype(self.dtype) for heads, size in self.shapes]
        tensors = [place(values) for values in before]
        self.write(tensors, 0, self.copied(tensors, 2, 4, row=0), row=1)
        return all(
            np.array_equal(read(tensor), np.stack([first, np.concatenate([first[:, 2:], second[:, 2:]], axis=1)]))
            for tensor, (first, second) in zip(tensors, before, strict=True)
        )


class GpuArray:
    """Keys or values [kv heads, T, D] of some tokens of a tensor on the GPU."""

    is_on_device = True
    ndim = 3

    def __init__(self, tensor: ort.OrtValue, start: int, stop: int, dtype: np.dtype[Any], read: Read) -> None:
        _, heads, _, size = tensor.shape()
        self.shape = (heads, stop - start, size)
        self.dtype = dtype
        self._tensor, self._span, self._read = tensor, slice(start, stop), read

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NDArray[Any]:
        """A copy on the host."""
        if copy is False:
            raise ValueError("what is on a device comes to the host as a copy only")
        values = self._read(self._tensor)[0, :, self._span].copy()
        return values if dtype is None else values.astype(dtype, copy=False)


class GpuState(DeviceKv):
    """A part of tensors on the GPU, which are freed with the last part."""

    def __init__(self, tensors: list[ort.OrtValue], start: int, stop: int, copier: KvCopier, read: Read) -> None:
        super().__init__(tensors, start, stop)
        self.copier = copier
        self._read = read

    @property
    def nbytes(self) -> int:
        sizes = sum(heads * size for heads, size in self.copier.shapes)
        return (self.stop - self.start) * sizes * self.copier.dtype.itemsize

    def part(self, start: int, stop: int) -> GpuState:
        return GpuState(self.values, start, stop, self.copier, self._read)

    def array(self, value: ort.OrtValue) -> GpuArray:
        return GpuArray(value, self.start, self.stop, self.copier.dtype, self._read)

    def parts(self) -> list[ort.OrtValue]:
        """Tensors of its tokens only. Call it with the lock."""
        whole = self.values[0].shape()[_TOKENS]
        if (self.start, self.stop) == (0, whole):
            return self.values
        return self.copier.copied(self.values, self.start, self.stop)


def host_parts(state: KeyValues, dtype: np.dtype[Any]) -> list[ort.OrtValue]:
    """The tensors of a state, on the host."""
    arrays = (np.asarray(array) for pair in state for array in pair)
    return [ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array[None], dtype)) for array in arrays]


def slice_graph(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> bytes:
    """kv.N [rows, kv heads, T, D], start and stop int64 [2], a row and a token, to copy.N of one row."""
    with needs("onnx", "WebGPU"):
        from onnx import TensorProto, helper

    spans = [helper.make_tensor_value_info(name, TensorProto.INT64, [2]) for name in ("start", "stop")]
    nodes = [helper.make_node("Slice", [f"kv.{at}", "start", "stop", "axes"], [f"copy.{at}"])
             for at in range(len(shapes))]  # fmt: skip
    inputs = [*_tensors("kv.{}", shapes, dtype, "T"), *spans]
    return copy_graph(nodes, inputs, _tensors("copy.{}", shapes, dtype, "part", 1), {"axes": np.array([0, _TOKENS])})


def scatter_graph(shapes: Sequence[Shape], dtype: np.dtype[Any]) -> bytes:
    """kv.N with part.N of one row in the places of places.HEADS int64 [1, kv heads, T of the part, 3] to kv.N.new."""
    with needs("onnx", "WebGPU"):
        from onnx import TensorProto, helper

    nodes = [helper.make_node("ScatterND", [f"kv.{at}", f"places.{heads}", f"part.{at}"], [f"kv.{at}.new"])
             for at, (heads, _) in enumerate(shapes)]  # fmt: skip
    places = [helper.make_tensor_value_info(f"places.{heads}", TensorProto.INT64, [1, heads, "part", 3])
              for heads in sorted({heads for heads, _ in shapes})]  # fmt: skip
    inputs = [*_tensors("kv.{}", shapes, dtype, "T"), *_tensors("part.{}", shapes, dtype, "part", 1), *places]
    return copy_graph(nodes, inputs, _tensors("kv.{}.new", shapes, dtype, "T"), {})


def _places(row: int, heads: int, start: int, count: int) -> NDArray[np.int64]:
    """Where each token of a part goes: [1, kv heads, T, 3]."""
    head, token = np.mgrid[:heads, start : start + count]
    return np.stack([np.full_like(head, row), head, token], axis=-1)[None].astype(np.int64)


def _tensors(
    name: str, shapes: Sequence[Shape], dtype: np.dtype[Any], tokens: str, rows: int | str = "rows"
) -> list[ValueInfoProto]:
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(dtype)
    return [helper.make_tensor_value_info(name.format(at), kind, [rows, heads, tokens, size])
            for at, (heads, size) in enumerate(shapes)]  # fmt: skip
