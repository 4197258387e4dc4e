"""A convolution over queries, keys and values that a checkpoint has as three tensors (OLMo Hybrid).

It is read under the name that transformers has for all of it, conv1d.weight. transformers 5.24 writes three equal
shares of it, whatever the sizes of queries, keys and values are: only the sum of their rows says anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.fused_experts import Read
from embedllm.files.float_types import FLOATS, to_float32
from embedllm.files.safetensors_header import Tensor

if TYPE_CHECKING:
    from embedllm.types import F32

_WHOLE = "linear_attn.conv1d.weight"


def find_convolution(tensors: Mapping[str, Tensor], name: str) -> SplitConvolution | None:
    """What stands behind a name that no tensor has; None where there is nothing of that kind."""
    if name in tensors or not name.endswith(_WHOLE):
        return None
    parts = [tensors.get(name.replace("conv1d", f"{part}_conv1d")) for part in "qkv"]
    found = tuple(part for part in parts if part is not None)
    return SplitConvolution(found) if len(found) == len(parts) else None


@dataclass(frozen=True, slots=True)
class SplitConvolution:
    """Each [values, 1, kernel], floats."""

    parts: tuple[Tensor, ...]

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless they are floats, and together of that shape: all dimensions but the last as one."""
        dims = [part.shape for part in self.parts]
        values = sum(math.prod(each[:-1]) for each in dims)
        if any((values, *each[-1:]) != shape for each in dims) or any(part.dtype not in FLOATS for part in self.parts):
            types = ", ".join(f"{part.dtype} {list(part.shape)}" for part in self.parts)
            raise ExportError(
                f"the tensors of '{name}' are {types}; config.json calls for floats, {list(shape)} together."
            )

    def rows(self, read: Read, start: int, stop: int) -> F32:
        parts = [to_float32(read(part, 0, part.length), part.dtype) for part in self.parts]
        kernel = self.parts[0].shape[-1]
        return np.concatenate(parts).reshape(-1, kernel)[start:stop]
