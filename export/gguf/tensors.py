"""The tensors of a model in GGUF, read by rows under the names that its checkpoint has for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.open_files import OpenFiles
from embedllm.export.gguf.reader import GgufModel, Placed
from embedllm.export.gguf.tensor_location import ChannelsFirst, InTurn, PermutedColumns, TensorLocation, Transposed
from embedllm.export.gguf.types import READ, TYPES, floats, packed, packing_of
from embedllm.package.packing import Packed, Packing, ordered

if TYPE_CHECKING:
    from embedllm.types import F32


class GgufTensors:
    """Reads into fresh arrays. May be read from several threads, as long as the GgufSource that made it is open.

    locations: by the name in the checkpoint.
    """

    def __init__(self, model: GgufModel, files: OpenFiles, locations: Mapping[str, TensorLocation]) -> None:
        self._model, self._files, self._locations = model, files, locations

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless the tensor is here with this shape, in a type that is read.

        All dimensions of the tensor but the last count as one.
        """
        location, tensor = self._find(name)
        if isinstance(location.order, InTurn):
            for other in location.names:
                self._check_alike(other, tensor, location.order.run)
        rows, width = location.size(tensor.shape)
        row_count, end = location.row_window(rows)
        if end > rows or shape != ((row_count,) if width is None else (row_count, width)):
            raise ExportError(
                f"'{tensor.file}': tensor '{location.tensor}' is {list(tensor.shape)}; the file's metadata calls for "
                f"{list(shape)} ('{name}')."
            )
        kind = TYPES[tensor.type].name
        if width is None and TYPES[tensor.type].values > 1:
            raise ExportError(
                f"'{tensor.file}': tensor '{location.tensor}' is {kind}; expected floats, as of any vector."
            )
        if kind not in READ:
            raise ExportError(
                f"'{tensor.file}': tensor '{location.tensor}' is {kind}, which is not read; known: {', '.join(READ)}. "
                "Take a file of the model in one of these."
            )

    def rows(self, name: str, start: int, stop: int) -> F32:
        """Rows [start, stop) of a tensor, as float32: what lies along its last dimension; of a vector, its values."""
        location, tensor = self._find(name)
        if isinstance(location.order, Transposed):
            return self._transpose(tensor, start, stop)
        if isinstance(location.order, InTurn):
            return self._in_turn(location.order, tensor)[start:stop]
        _, width = location.size(tensor.shape)
        first, last, order = location.file_rows(start, stop)
        values = self._floats(tensor, width, first, last)
        values = values if order is None else values[order]
        if location.transform is not None:
            try:
                return location.transform(values)
            except ValueError as error:
                raise ExportError(f"'{tensor.file}': tensor '{location.tensor}' {error}") from error
        if isinstance(location.order, ChannelsFirst):
            return values.reshape(len(values), 3, -1).swapaxes(1, 2).reshape(values.shape)
        return values[:, location.order.order] if isinstance(location.order, PermutedColumns) else values

    def packing(self, name: str) -> Packing | None:
        """How a tensor is stored so that nothing is lost; None for what is not read, which check() refuses."""
        location = self._locations.get(name)
        tensor = None if location is None else self._model.tensors.get(location.tensor)
        if location is None or tensor is None:
            return None
        stored, order = packing_of(TYPES[tensor.type]), location.order
        if stored is None or not stored.quantized:
            return stored
        splits_groups = isinstance(order, PermutedColumns) and order.run % stored.group_size
        return Packing(bits=32) if splits_groups or isinstance(order, ChannelsFirst | Transposed) else stored

    def packed(self, name: str, start: int, stop: int) -> Packed:
        """Rows [start, stop) of a quantized tensor, as they are stored."""
        location, tensor = self._find(name)
        kind, (_, width) = TYPES[tensor.type], location.size(tensor.shape)
        first, last, order = location.file_rows(start, stop)
        rows = packed(kind, self._raw(tensor, width, first, last), last - first)
        rows = rows if order is None else ordered([rows], order)
        stored = packing_of(kind)
        if not isinstance(location.order, PermutedColumns) or stored is None:
            return rows
        groups = location.order.order[:: stored.group_size] // stored.group_size
        minimum = None if rows.minimum is None else rows.minimum[:, groups]
        return Packed(rows.weight[:, groups], rows.scale[:, groups], None, minimum)  # no type of GGUF has zero points

    def _find(self, name: str) -> tuple[TensorLocation, Placed]:
        location = self._locations.get(name)
        tensor = None if location is None else self._model.tensors.get(location.tensor)
        if location is None or tensor is None:
            sought = f"'{name}'" if location is None else f"'{location.tensor}' (for '{name}')"
            raise ExportError(f"'{self._model.path}' has no tensor {sought}, which its metadata calls for.")
        return location, tensor

    def _transpose(self, tensor: Placed, start: int, stop: int) -> F32:
        """Rows of a tensor that is [matrices, columns, rows of each]."""
        _, columns, each = tensor.shape
        first, last = start // each, -(-stop // each)
        parts = self._floats(tensor, each, first * columns, last * columns).reshape(last - first, columns, each)
        return parts.swapaxes(1, 2).reshape(-1, columns)[start - first * each : stop - first * each]

    def _check_alike(self, name: str, tensor: Placed, run: int) -> None:
        """Raises ExportError unless a tensor is like another one whose runs of rows it takes turns with."""
        other = self._model.tensors.get(name)
        if other is None or (other.shape, other.type) != (tensor.shape, tensor.type) or tensor.shape[-2:-1] != (run,):
            description = "not there" if other is None else f"{TYPES[other.type].name} {list(other.shape)}"
            raise ExportError(
                f"'{tensor.file}': tensor '{name}' is {description}; expected one like {TYPES[tensor.type].name} "
                f"{list(tensor.shape)}, with {run} rows beside each other."
            )

    def _in_turn(self, order: InTurn, tensor: Placed) -> F32:
        """All rows of tensors that take turns."""
        width, rows = tensor.shape[-1], math.prod(tensor.shape[:-1])
        parts = [self._floats(self._model.tensors[name], width, 0, rows) for name in order.tensors]
        return np.stack([part.reshape(-1, order.run, width) for part in parts], axis=1).reshape(-1, width)

    def _floats(self, tensor: Placed, width: int | None, start: int, stop: int) -> F32:
        raw = self._raw(tensor, width, start, stop)
        return floats(TYPES[tensor.type], raw).reshape((stop - start,) if width is None else (stop - start, width))

    def _raw(self, tensor: Placed, width: int | None, start: int, stop: int) -> bytearray:
        kind = TYPES[tensor.type]
        row_bytes = kind.bytes if width is None else width // kind.values * kind.bytes
        return self._files.read(tensor.file, tensor.offset + start * row_bytes, (stop - start) * row_bytes)
