"""A checkpoint whose columns are scaled, and what comes before them divided likewise: the same model, exactly.

What a matrix reads was made by the weights of a norm, or by the rows of another matrix. Dividing those by a vector and
multiplying the matrix's columns by it changes nothing but what is lost when the matrix is rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.mlp import Mlp
from embedllm.package.architecture.weights import Linear, Norm
from embedllm.package.tensors import mixer_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.package.architecture.attention import Attention
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.layer import Layer
    from embedllm.types import F32


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fold:
    """Where a vector can go in: `before` is divided by it, the columns of `after` are multiplied."""

    before: Norm | Linear  # its weights, or its rows
    after: tuple[Linear, ...]  # all that read what `before` makes
    place: NDArray[np.intp]  # [columns of `after`]: which value of the vector is a column's

    @property
    def size(self) -> int:
        """Values of the vector."""
        return int(self.place.max()) + 1


def folds(layer: Layer) -> Iterator[Fold]:
    """Those within a layer, in the order in which it computes.

    Left out is what lies inside a larger tensor, a norm with a bias or without weights, one that others read, too,
    mixtures of experts, and what an activation makes other than it is.
    """
    attention, mlp = layer.attention, layer.mlp
    own = layer.mlp_norm is not None or not layer.parallel  # else the mlp reads what attention reads
    readers = (*mixer_inputs(attention), *(mixer_inputs(layer.ssm) if layer.ssm is not None else ()))
    if own and _is_plain(layer.attention_norm, *readers):
        yield _fold(layer.attention_norm, *readers)
    if isinstance(attention, Attention) and _is_plain(attention.v, attention.o):
        yield Fold(before=attention.v, after=(attention.o,), place=_value_of(attention))
    if not isinstance(mlp, Mlp):
        return
    readers = (mlp.up,) if mlp.gate is None else (mlp.gate, mlp.up)
    if _is_plain(layer.mlp_norm, *readers):
        yield _fold(layer.mlp_norm, *readers)
    if mlp.gate is not None and _is_plain(mlp.up, mlp.down):
        yield _fold(mlp.up, mlp.down)


def _is_plain(before: Norm | Linear | None, *after: Linear) -> TypeGuard[Norm | Linear]:
    """Whether a vector can go in there."""
    if before is None or any(one.origin is not None for one in (before, *after)):
        return False
    return isinstance(before, Linear) or (bool(before.source) and not before.bias and before.groups == 1)


def head_fold(decoder: Decoder) -> Fold | None:
    """That in front of the head, if there is one: not when it is the embedding, too, whose rows are to stay."""
    return _fold(decoder.norm, decoder.head) if not decoder.tied and _is_plain(decoder.norm, decoder.head) else None


def _fold(before: Norm | Linear, *after: Linear) -> Fold:
    return Fold(before=before, after=after, place=np.arange(after[0].columns))


def _value_of(attention: Attention) -> NDArray[np.intp]:
    """Which row of v makes what a column of o reads: heads that share keys and values share it."""
    values = np.arange(attention.v.rows).reshape(attention.kv_heads, -1)
    return values.repeat(attention.heads // attention.kv_heads, axis=0).reshape(-1)


class ScaledSource:
    """A source with vectors folded in. May be read from several threads."""

    def __init__(self, source: Source, scales: Iterable[tuple[Fold, F32]]) -> None:
        """scales: each fold with its vector, [size], of positive numbers."""
        self._source = source
        self._divisors: dict[str, tuple[F32, float]] = {}  # of the rows of a tensor, and what is added to it first
        self._factors: dict[str, F32] = {}  # of its columns
        for fold, scale in scales:
            before = fold.before
            ends, plus = (("",), before.weight_offset) if isinstance(before, Norm) else ((".weight", ".bias"), 0.0)
            self._divisors |= {f"{before.source}{end}": (scale, plus) for end in ends}
            self._factors |= {f"{linear.source}.weight": scale[fold.place] for linear in fold.after}

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self._source.check(name, shape)

    def rows(self, name: str, start: int, stop: int) -> F32:
        rows = self._source.rows(name, start, stop)
        if name in self._divisors:
            scale, plus = self._divisors[name]
            rows = ((rows.T + np.float32(plus)) / scale[start:stop]).T - np.float32(plus)
        return rows * self._factors[name] if name in self._factors else rows
