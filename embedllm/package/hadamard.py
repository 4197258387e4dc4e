"""The Hadamard rotation of value heads: its matrix, and adapters' factors in the rotated basis."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.types import F32


def block_of(head_dim: int) -> int:
    """How many of a head's values are rotated together: the largest power of two that divides them."""
    return head_dim & -head_dim


def rotate(values: F32, block: int) -> F32:
    """values [..., n * block], every block times the Hadamard matrix; a second turn undoes the first."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found where it is stored
        return (values.reshape(*values.shape[:-1], -1, block) @ _hadamard(block)).reshape(values.shape)


@cache
def _hadamard(size: int) -> F32:
    """Sylvester's: symmetric and orthogonal. size: a power of two."""
    signs = np.ones((1, 1), np.float32)
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs / np.float32(size**0.5)


def rotated_factors(decoder: Decoder, factors: Mapping[str, tuple[F32, F32]]) -> dict[str, tuple[F32, F32]]:
    """An adapter's factors for the same model with rotated values. factors: as adapters.Adapter has them."""
    result = dict(factors)
    for attention in decoder.attentions:
        block = block_of(attention.head_dim)
        if attention.v.name in result:
            a, b = result[attention.v.name]
            result[attention.v.name] = a, rotate(b, block)
        if attention.o.name in result:
            a, b = result[attention.o.name]
            result[attention.o.name] = np.ascontiguousarray(rotate(a.T, block).T), b
    return result
