"""Packed tensors: how integers, scales and zero points lie in the weights file, and the floats that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import PackageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F16, F32, U8


# fields of a Packing that manifests of plain folders do not have
_PLAIN = {"scale_bits": 16, "has_minimum": False, "levels": 0, "column_order": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the values of one matrix are stored."""

    bits: int  # 4 and 8: integers in groups along each row; 16 and 32: plain floats
    group_size: int = 32  # values that share a scale
    symmetric: bool = True  # zero point 2**(bits - 1), not stored; else one zero point a group
    # of what was quantized elsewhere (docs/format.md#pre-quantized-weights)
    scale_bits: int = 16  # of a float: 32 where 16 would lose some of a scale
    has_minimum: bool = False  # in place of a zero point each group has a float, which is added: q * scale + minimum
    levels: int = 0  # beside minimums: integers are less than that; 0: those of all bits are used
    column_order: str = (
        ""  # the matrix whose "MATRIX.order" says which column each stored one is; none: they lie as they are
    )

    def __post_init__(self) -> None:
        if self.bits not in (4, 8, 16, 32):
            raise ValueError(f"bits is {self.bits}; expected 4, 8, 16 or 32.")
        if self.group_size not in (16, 32, 64, 128, 256):
            raise ValueError(f"group_size is {self.group_size}; expected 16, 32, 64, 128 or 256.")
        if self.scale_bits not in (16, 32):
            raise ValueError(f"scale_bits is {self.scale_bits}; expected 16 or 32.")
        if type(self.has_minimum) is not bool or (self.has_minimum and self.symmetric):
            raise ValueError(
                f"has_minimum is {self.has_minimum!r} and symmetric {self.symmetric!r}; expected one of both."
            )
        most = 1 << self.bits if self.has_minimum else 0
        if type(self.levels) is not int or not 0 <= self.levels <= most:
            raise ValueError(f"levels is {self.levels!r}; expected at most {most}.")
        if type(self.column_order) is not str:
            raise ValueError(f"column_order is {self.column_order!r}; expected the name of a matrix.")

    @property
    def stores_zeros(self) -> bool:
        return not self.symmetric and not self.has_minimum

    @property
    def middle(self) -> int:
        """The integer in the middle of those that are used; a symmetric packing's zero point."""
        return (self.levels or 1 << self.bits) // 2

    @property
    def entry(self) -> dict[str, object]:
        """What a manifest says of it: fields that only pre-quantized weights have are left out at their defaults."""
        return {name: value for name, value in asdict(self).items() if _PLAIN.get(name) != value}

    @property
    def is_plain(self) -> bool:
        """Whether every version of this library reads it: docs/format.md."""
        return all(getattr(self, name) == value for name, value in _PLAIN.items())

    @property
    def quantized(self) -> bool:
        return self.bits < 16

    def groups(self, columns: int) -> int:
        """Groups a row of that many columns has; the last is filled up with zeros."""
        return -(-columns // self.group_size)


def with_minimums(value_bits: int, *, group_size: int, scale_bits: int) -> Packing:
    """How integers of that many bits are stored, of which each group has a scale and a minimum."""
    bits = 4 if value_bits <= 4 else 8
    levels = 0 if value_bits == bits else 1 << value_bits
    return Packing(
        bits=bits, group_size=group_size, symmetric=False, scale_bits=scale_bits, has_minimum=True, levels=levels
    )


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of a matrix, quantized.

    weight: [n, groups, group * bits / 8], earlier values in the lower bits.
    scale: [n, groups]. zero: [n, ceil(groups * bits / 8)], packed likewise, each row filled up to a whole byte;
    None when symmetric. minimum: [n, groups], of the scale's type, in place of zero points; None without.
    """

    weight: U8
    scale: F16 | F32
    zero: U8 | None
    minimum: F16 | F32 | None = None


def packings(manifest: Mapping[str, object]) -> dict[str, Packing]:
    """How a package's manifest says that its matrices are stored, by name. Raises PackageError when it is damaged."""
    entries = manifest.get("quantization")
    try:
        assert isinstance(entries, dict)
        return {name: Packing(**entry) for name, entry in entries.items()}
    except (AssertionError, TypeError, ValueError) as error:
        raise PackageError(f"the manifest's 'quantization' is not understood: {error}") from error


def dequantize(packed: Packed, packing: Packing, columns: int) -> F32:
    """The float weights [n, columns] that packed rows stand for: (q - zero) * scale, or q * scale + minimum."""
    values = _unpack(packed.weight, packing.bits).astype(np.float32)
    groups = packed.scale.shape[1]
    if packed.zero is not None:
        values -= _unpack(packed.zero, packing.bits)[:, :groups, None].astype(np.float32)
    elif packed.minimum is None:
        values -= np.float32(packing.middle)
    values *= packed.scale.astype(np.float32)[:, :, None]
    if packed.minimum is not None:
        values += packed.minimum.astype(np.float32)[:, :, None]
    return values.reshape(len(values), -1)[:, :columns]


def pack_bits(values: U8, bits: int) -> U8:
    """Two 4-bit values a byte along the last axis, the earlier one in the low nibble."""
    if bits == 8:
        return values
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], 1), np.uint8)], axis=-1)
    pairs = values.view("<u2")  # the earlier value is the lower byte
    return (pairs | pairs >> 4).astype(np.uint8)  # of which the cast keeps the lower byte


def _unpack(packed: U8, bits: int) -> U8:
    if bits == 8:
        return packed
    values = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    values[..., 0::2] = packed & 15
    values[..., 1::2] = packed >> 4
    return values


def ordered(parts: list[Packed], order: NDArray[np.intp]) -> Packed:
    """Rows of several pieces one after the other, in an order of their own."""

    def joined(kind: str) -> np.ndarray | None:
        values = [getattr(part, kind) for part in parts]
        return None if values[0] is None else np.concatenate(values)[order]

    weight, scale = joined("weight"), joined("scale")
    assert weight is not None, "every part has them"
    assert scale is not None
    return Packed(weight, scale, joined("zero"), joined("minimum"))
