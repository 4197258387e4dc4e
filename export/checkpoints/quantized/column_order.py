"""The order of a matrix's columns in which those of a group lie together, as operators take them (GPTQ's desc_act)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def plain_groups(columns: int, size: int) -> NDArray[np.intp]:
    """The group of each column where those of a group lie together. size: of a group; -1: all are one."""
    return np.arange(columns) // (size if size > 0 else columns)


def sorted_by_group(groups: NDArray[np.int32], size: int, name: str) -> NDArray[np.int32] | None:
    """The columns sorted by their groups, those of a group as they were; None where they lie so already.

    groups: [columns], of each, none of which is too large. size: as plain_groups() has it. name: of the matrix.
    Raises ExportError for groups of other sizes.
    """
    expected = np.bincount(plain_groups(len(groups), size))
    found = np.bincount(groups, minlength=len(expected))
    if (differ := np.flatnonzero(found != expected)).size:
        first = differ[0]
        raise ExportError(
            f"group {first} of '{name}' has {found[first]} columns by its g_idx; expected {expected[first]}, by the "
            f"group_size {size}. Give the bits that the weights are to be rounded to once more, such as --bits 4."
        )
    order = np.argsort(groups, kind="stable").astype(np.int32)
    return order if (np.diff(order) < 0).any() else None
