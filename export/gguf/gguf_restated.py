"""A decoder as GGUF files hold it: norms' sums, and each matrix by itself that checkpoints have among others."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from embedllm.package.architecture import Linear, Norm, Origin

T = TypeVar("T")


def restated(node: T) -> T:
    """The same description, where no norm adds to its weights, and no matrix is a part of another or turned over."""
    if isinstance(node, Norm):
        return dataclasses.replace(node, plus=0.0)
    if isinstance(node, Linear):
        return _alone(node)
    if isinstance(node, tuple):
        return tuple(restated(each) for each in node)  # type: ignore[return-value]  # of the same types
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        changes = {f.name: restated(getattr(node, f.name)) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **changes)
    return node


def _alone(linear: Linear) -> Linear:
    """One that is among others gets a name of its own; the order of its rows within a head stays."""
    if linear.origin is None:
        return linear
    whole = dataclasses.replace(linear.origin, rows=linear.rows, start=0, block=0, stride=0, transposed=False)
    return dataclasses.replace(
        linear,
        source=linear.source if linear.origin.rows == linear.rows else linear.name,
        origin=None if whole == Origin(rows=linear.rows) else whole,
    )
