"""Where a GGUF file has a tensor, and how its rows lie there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from embedllm.package.architecture import Linear, Norm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.gguf.reader import Placed


class _More(TypedDict, total=False):
    """Of Place."""

    start: int
    count: int | None
    is_row: bool
    rows: NDArray[np.intp] | None
    turned_over: int
    columns: NDArray[np.intp] | None
    run: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Place:
    """Rows of a tensor in a GGUF file, which stand for a whole tensor of the checkpoint."""

    tensor: str
    start: int = 0  # the first row
    count: int | None = None  # rows; None: all
    is_row: bool = False  # a vector stands for a matrix of one row
    rows: NDArray[np.intp] | None = None  # of each row of the checkpoint's, which one; None: the same
    turned_over: int = 0  # number of parts that are transposed: their rows are the checkpoint's columns
    columns: NDArray[np.intp] | None = None  # of each of the checkpoint's, which one, in runs of `run`; None: the same
    run: int = 0
    is_exp: bool = False  # what stands for x is -exp(x)


def matrix(linear: Linear, name: str, **more: Unpack[_More]) -> dict[str, Place]:
    """The places of a matrix and of its bias."""
    ends = ("weight", "bias") if linear.bias else ("weight",)
    return {f"{linear.source}.{end}": Place(tensor=f"{name}.{end}", **more) for end in ends}


def norm_weights(norm: Norm | None, name: str) -> dict[str, Place]:
    """The places of a norm's weights and of its bias."""
    if norm is None or not norm.source:  # weights of 1
        return {}
    found = {norm.source: Place(tensor=f"{name}.weight")}
    return found | {norm.bias: Place(tensor=f"{name}.bias")} if norm.bias else found


def has_rows(tensors: Mapping[str, Placed], name: str, rows: int) -> bool:
    """Whether a matrix has that many rows: one that has others is refused later, and no list is made of them."""
    tensor = tensors.get(f"{name}.weight")
    return tensor is not None and tensor.shape[0] == rows
