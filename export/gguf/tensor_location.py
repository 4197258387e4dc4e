"""Where a GGUF file has a tensor of the checkpoint, and in what order its rows and columns lie there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.package.architecture.weights import Linear, Norm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.gguf.reader import Placed
    from embedllm.types import F32


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows in the order of the checkpoint, one behind the other."""

    start: int = 0
    count: int | None = None  # None: all


@dataclass(frozen=True, slots=True, eq=False)
class PermutedRows:
    """Rows that lie in another order, or among those of other tensors."""

    order: NDArray[np.intp]  # for each row of the checkpoint, which one of the file


@dataclass(frozen=True, slots=True, eq=False)
class PermutedColumns:
    """All rows, whose columns lie in another order."""

    order: NDArray[np.intp]  # for each column of the checkpoint, which one of the file
    run: int  # columns that stay neighbours


@dataclass(frozen=True, slots=True)
class Transposed:
    """A stack of `count` matrices, each of them transposed, which the checkpoint has one behind the other."""

    count: int


@dataclass(frozen=True, slots=True)
class ChannelsFirst:
    """A convolution [rows, 3, side, side], which stands for a matrix [rows, side * side * 3]."""

    side: int


@dataclass(frozen=True, slots=True)
class SingleRow:
    """A vector that stands for a matrix of one row."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A matrix that stands for a vector of all its values."""


@dataclass(frozen=True, slots=True)
class InTurn:
    """Several tensors of one shape, of each of which `run` rows come in turn."""

    tensors: tuple[str, ...]
    run: int


Order = ChannelsFirst | Flat | InTurn | RowRange | PermutedRows | PermutedColumns | Transposed | SingleRow
ALL_ROWS = RowRange()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TensorLocation:
    """A tensor of a GGUF file, and what of it stands for a whole tensor of the checkpoint."""

    tensor: str
    order: Order = ALL_ROWS
    transform: Callable[[F32], F32] | None = None  # of each value; raises ValueError for one that cannot be

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors that are read for it."""
        return self.order.tensors if isinstance(self.order, InTurn) else (self.tensor,)

    def size(self, shape: tuple[int, ...]) -> tuple[int, int | None]:
        """Rows and columns in the file; for a vector, each value is a row and the columns are None."""
        count = math.prod(shape)
        if isinstance(self.order, SingleRow):
            return 1, count
        if isinstance(self.order, Flat):
            return count, None
        if isinstance(self.order, ChannelsFirst):
            is_convolution = shape[1:] == (3, self.order.side, self.order.side)
            return (shape[0], math.prod(shape[1:])) if is_convolution else (0, None)
        if isinstance(self.order, Transposed):
            is_stack = len(shape) == 3 and shape[0] == self.order.count
            return (shape[0] * shape[2], shape[1]) if is_stack else (0, None)
        if len(shape) == 1 or self.tensor.endswith(".bias"):  # biases of all experts are one tensor
            return count, None
        each = len(self.order.tensors) if isinstance(self.order, InTurn) else 1
        return math.prod(shape[:-1]) * each, shape[-1]

    def row_window(self, rows: int) -> tuple[int, int]:
        """How many rows the checkpoint has, and the end of those in a file of that many."""
        if isinstance(self.order, PermutedRows):
            return len(self.order.order), int(self.order.order.max()) + 1
        if isinstance(self.order, RowRange):
            count = rows - self.order.start if self.order.count is None else self.order.count
            return count, self.order.start + count
        return rows, rows

    def file_rows(self, start: int, stop: int) -> tuple[int, int, NDArray[np.intp] | None]:
        """The window [first, last) of the file that has rows [start, stop), and their order in it; None: as it is."""
        if isinstance(self.order, PermutedRows):
            rows = self.order.order[start:stop]
            first = int(rows.min())
            return first, int(rows.max()) + 1, rows - first
        offset = self.order.start if isinstance(self.order, RowRange) else 0
        return offset + start, offset + stop, None


def log_of_negative(values: F32) -> F32:
    """x of -exp(x), to the last digit of float32 or nearly so."""
    if not (np.isfinite(values).all() and (values < 0).all()):
        raise ValueError("has values that are not below 0. Get the file again.")
    return np.log(-values.astype(np.float64)).astype(np.float32)


def matrix(linear: Linear, name: str, order: Order = ALL_ROWS) -> dict[str, TensorLocation]:
    """The locations of a matrix and of its bias."""
    ends = ("weight", "bias") if linear.bias else ("weight",)
    return {f"{linear.source}.{end}": TensorLocation(tensor=f"{name}.{end}", order=order) for end in ends}


def permuted(rows: NDArray[np.intp] | None) -> Order:
    """The order of rows; None: as in the checkpoint."""
    return ALL_ROWS if rows is None else PermutedRows(rows)


def norm_weights(norm: Norm | None, name: str) -> dict[str, TensorLocation]:
    """The locations of a norm's weights and of its bias."""
    if norm is None or not norm.source:  # weights of 1
        return {}
    locations = {norm.source: TensorLocation(tensor=f"{name}.weight")}
    return locations | {norm.bias: TensorLocation(tensor=f"{name}.bias")} if norm.bias else locations


def has_rows(tensors: Mapping[str, Placed], name: str, rows: int) -> bool:
    """Whether a matrix has that many rows: one that has others is refused later, and no list is made of them."""
    tensor = tensors.get(f"{name}.weight")
    return tensor is not None and tensor.shape[0] == rows


def interleaved_rows(linear: Linear, head_dim: int) -> NDArray[np.intp]:
    """For each row of q or k, where llama.cpp has it: its RoPE rotates neighbouring rows, not the halves of a head."""
    shape = (linear.rows // head_dim, 2, head_dim // 2)
    head, half, at = np.unravel_index(np.arange(linear.rows), shape)
    return head * head_dim + 2 * at + half
