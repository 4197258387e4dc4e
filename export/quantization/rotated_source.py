"""Hadamard rotation of the value heads (QuaRot-style), undone by the output projection that reads them.

What is large in one channel is spread over all of its head, so that few bits lose less; as floats the model stays the
same, since attention only adds values up. Nothing but v, with its bias, and o changes, and no device does a step more.
Of the rotations of QuaRot (Ashkboos et al. 2024, https://arxiv.org/abs/2404.00456) the one that any model can have and
no graph has to know of; the others: docs/numerics.md#rotation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.package.hadamard import block_of, rotate

if TYPE_CHECKING:
    from embedllm.export.checkpoints.tensor_mapping import Source
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.types import F32


class RotatedSource:
    """A source of the same model with rotated value heads. May be read from several threads."""

    def __init__(self, source: Source, decoder: Decoder) -> None:
        """Raises ExportError for heads of an odd size, of which nothing can be rotated."""
        self._source = source
        self._by_rows: dict[str, int] = {}  # blocks, by the tensor that gives values
        self._by_columns: dict[str, int] = {}  # and by the one that reads them
        for attention in decoder.attentions:
            block = block_of(attention.head_dim)
            if attention.v.origin is not None or attention.o.origin is not None:
                raise ExportError(
                    f"a '{decoder.model_type}' checkpoint stores the values' matrix inside a larger one, which a "
                    "rotation does not follow. Leave it out."
                )
            if attention.v_norm is not None:
                raise ExportError(
                    f"a '{decoder.model_type}' model norms its values, which no rotation follows. Leave it out."
                )
            if block == 1:
                raise ExportError(
                    f"the heads have {attention.head_dim} values; a rotation turns an even number. Leave it out."
                )
            self._by_rows |= {f"{attention.v.source}.{kind}": block for kind in ("weight", "bias")}
            self._by_columns[f"{attention.o.source}.weight"] = block

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self._source.check(name, shape)

    def rows(self, name: str, start: int, stop: int) -> F32:
        if name in self._by_columns:
            return rotate(self._source.rows(name, start, stop), self._by_columns[name])
        if name not in self._by_rows:
            return self._source.rows(name, start, stop)
        block = self._by_rows[name]
        first, end = start // block * block, -(-stop // block) * block
        whole = rotate(self._source.rows(name, first, end).T, block).T
        return np.ascontiguousarray(whole[start - first : stop - first])
