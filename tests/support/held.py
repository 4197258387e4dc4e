"""Sources that say of their matrices that they are packed already, in every way that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embedllm.package.architecture.decoder import Decoder
from embedllm.package.packing import Packed, Packing, pack_bits, with_minimums
from tests.support.described import RandomSource

if TYPE_CHECKING:
    from embedllm.types import F32

PACKINGS = {
    "4 bits, minimums": Packing(bits=4, symmetric=False, has_minimum=True, scale_bits=32),
    "4 bits, groups of 16, half minimums": Packing(bits=4, group_size=16, symmetric=False, has_minimum=True),
    "8 bits, minimums": Packing(bits=8, symmetric=False, has_minimum=True, scale_bits=32),
    "5 of 8 bits, minimums": with_minimums(5, group_size=32, scale_bits=32),
    "2 of 4 bits, minimums": with_minimums(2, group_size=16, scale_bits=32),
    "8 bits, groups of 16, wide scales": Packing(bits=8, group_size=16, scale_bits=32),
    "4 bits, wide scales, zero points": Packing(bits=4, symmetric=False, scale_bits=32),
    "8 bits": Packing(bits=8),
}


class HeldRandomSource(RandomSource):
    """Random tensors, the matrices packed in one way."""

    def __init__(self, decoder: Decoder, packing: Packing) -> None:
        super().__init__(decoder)
        self._packing = packing

    def packing(self, name: str) -> Packing:
        return self._packing

    def packed(self, name: str, start: int, stop: int) -> Packed:
        return rounded(self.rows(name, start, stop), self._packing)


class OrderedRandomSource(HeldRandomSource):
    """The columns of every matrix in an order that others of as many columns have, too; of one matrix in its own."""

    def __init__(self, decoder: Decoder, packing: Packing, *, plain: str) -> None:
        super().__init__(decoder, packing)
        self._plain = plain

    def order(self, name: str) -> np.ndarray | None:
        if name == f"{self._plain}.weight":
            return None
        columns = self.tensors[name].shape[1]
        return np.random.default_rng(columns).permutation(columns).astype(np.int32)

    def packed(self, name: str, start: int, stop: int) -> Packed:
        order, rows = self.order(name), self.rows(name, start, stop)
        return rounded(rows if order is None else rows.take(order, axis=1), self._packing)


def rounded(rows: F32, packing: Packing) -> Packed:
    """Integers with minimums, with zero points, or around the middle."""
    missing = -rows.shape[1] % packing.group_size
    grouped = np.pad(rows, ((0, 0), (0, missing))).reshape(len(rows), -1, packing.group_size)
    kind = np.float32 if packing.scale_bits == 32 else np.float16
    levels = packing.levels or 1 << packing.bits
    low, zero = grouped.min(axis=-1).astype(kind), np.full(grouped.shape[:2], levels // 2, kind)
    if packing.has_minimum or packing.stores_zeros:
        scale = ((grouped.max(axis=-1) - low) / (levels - 1)).astype(kind)
        zero = -low / scale if packing.has_minimum else np.rint(-low / scale)
    else:
        scale = (np.abs(grouped).max(axis=-1) / (levels // 2 - 1)).astype(kind)
    integers = np.clip(np.rint(grouped / scale[..., None] + zero[..., None]), 0, levels - 1).astype(np.uint8)
    zeros = pack_bits(zero.astype(np.uint8), packing.bits) if packing.stores_zeros else None
    return Packed(pack_bits(integers, packing.bits), scale, zeros, low if packing.has_minimum else None)
