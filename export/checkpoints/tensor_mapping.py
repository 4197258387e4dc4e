"""Reads a model's tensors out of a source's, which may have them fused, transposed, or with rows in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from embedllm.package.architecture.weights import Linear, Origin
from embedllm.package.tensors import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F32


_SKIPPED = 1  # rows that are read too: of a gate and an up that take turns


class Source(Protocol):
    """A checkpoint whose tensors can be read by rows, from several threads.

    A row is what lies along the last dimension; of a vector, a value.
    """

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless the tensor is there with that shape, all dimensions but the last in one."""
        ...

    def rows(self, name: str, start: int, stop: int) -> F32: ...


def check_matrix(source: Source, linear: Linear) -> None:
    """Raises ExportError unless the matrix, and its bias if it has one, can be read."""
    origin = linear.origin
    rows = linear.rows if origin is None else origin.rows
    shape = (rows, linear.columns)
    if origin is not None and origin.parts > 1:
        shape = (rows * origin.parts, linear.columns // origin.parts)
    if origin is not None and origin.transposed:
        shape = (origin.source_columns or linear.columns, rows)
    source.check(f"{linear.source}.weight", shape)


def check_vector(source: Source, vector: Vector) -> None:
    """Raises ExportError unless the vector can be read."""
    if vector.source:
        width = vector.width
        source.check(vector.source, (_values(vector),) if width == 1 else (_values(vector) // width, width))


def read_matrix(source: Source, linear: Linear, start: int, stop: int) -> F32:
    """Rows [start, stop) of a matrix, [stop - start, columns]."""
    rows = _source_rows(source, linear, start, stop)
    return rows if linear.weight_multiplier == 1 else rows * np.float32(linear.weight_multiplier)


def _source_rows(source: Source, linear: Linear, start: int, stop: int) -> F32:
    name, origin = f"{linear.source}.weight", linear.origin
    if origin is None:
        return source.rows(name, start, stop)
    if origin.parts > 1:
        return source.rows(name, start * origin.parts, stop * origin.parts).reshape(stop - start, linear.columns)
    rows = places(origin, start, stop)
    if origin.transposed:
        first = origin.column_start
        return np.ascontiguousarray(source.rows(name, first, first + linear.columns)[:, rows].T)
    spans, order = stretches(rows)
    return np.concatenate([source.rows(name, first, last) for first, last in spans])[order]


def read_vector(source: Source, vector: Vector) -> F32:
    """The values of a vector, [size]."""
    if not vector.source:
        return np.full(vector.size, vector.offset, np.float32)
    values = source.rows(vector.source, 0, _values(vector) // vector.width).reshape(-1)
    if vector.origin is not None:
        values = values[places(vector.origin, 0, vector.size)]
    return values + np.float32(vector.offset)


def _values(vector: Vector) -> int:
    """Of the source's tensor."""
    return vector.size if vector.origin is None else vector.origin.rows


def places(origin: Origin, start: int, stop: int) -> NDArray[np.int64]:
    """The source's rows behind ours."""
    ours = np.arange(start, stop)
    if origin.interleaved:
        head, at = np.divmod(ours, origin.head_rows)
        half = origin.interleaved // 2
        in_pairs = np.where(at < half, 2 * at, 2 * (at - half) + 1)
        ours = head * origin.head_rows + np.where(at < origin.interleaved, in_pairs, at)
    if origin.rope_last:
        head, at = np.divmod(ours, origin.head_rows)
        ours = head * origin.head_rows + (at - origin.rope_last) % origin.head_rows
    if origin.partial_halves:
        head, at = np.divmod(ours, origin.head_rows)
        rotated, half = origin.partial_halves // 2, origin.head_rows // 2
        inside = np.where(at < 2 * rotated, at + half - rotated, np.where(at < half + rotated, at - rotated, at))
        ours = head * origin.head_rows + np.where(at < rotated, at, inside)
    if origin.block:
        block, at = np.divmod(ours, origin.block)
        ours = block * origin.stride + at
    return origin.start + ours


def stretches(rows: NDArray[np.int64]) -> tuple[list[tuple[int, int]], NDArray[np.intp]]:
    """Rows in any order, read as stretches of neighbours, (first, behind the last); and where in those each row is."""
    ordered = np.sort(rows)
    breaks = np.flatnonzero(np.diff(ordered) > _SKIPPED + 1) + 1
    spans = [(int(part[0]), int(part[-1]) + 1) for part in np.split(ordered, breaks)]
    span_rows = np.concatenate([np.arange(first, last) for first, last in spans])
    return spans, np.searchsorted(span_rows, rows)
