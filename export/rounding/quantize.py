"""Weight -> packed tensor, in the layout that ONNX Runtime and OpenVINO share (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError, PackageError
from embedllm.export.rounding.scale_search import search_asymmetric, search_symmetric

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F16, F32, U8


_LEAST_EXPONENT = -24  # of float16
_LEAST_STEP, _LOG_127 = np.float32(2.0**-24), np.float32(np.log2(127))
_SEARCHED = (4,)  # bits; eight lose a two-hundredth of what four do (docs/numerics.md)
# fields of a Packing that manifests of plain folders do not have
_PLAIN = {"scale_bits": 16, "minimum": False, "order": ""}
NOT_FINITE = "the weights hold values that are not finite (NaN or infinity); expected finite numbers."


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How the values of one matrix are stored."""

    bits: int  # 4 and 8: integers in groups along each row; 16 and 32: plain floats
    group: int = 32  # values that share a scale
    symmetric: bool = True  # zero point 2**(bits - 1), not stored; else one zero point a group
    # of what was quantized elsewhere (docs/format.md#carried-over)
    scale_bits: int = 16  # of a float: 32 where 16 would lose some of a scale
    minimum: bool = False  # in place of a zero point each group has a float, which is added: q * scale + minimum
    order: str = ""  # the matrix whose "MATRIX.order" says which column each stored one is; none: they lie as they are

    def __post_init__(self) -> None:
        if self.bits not in (4, 8, 16, 32):
            raise ValueError(f"bits is {self.bits}; expected 4, 8, 16 or 32.")
        if self.group not in (16, 32, 64, 128, 256):
            raise ValueError(f"group is {self.group}; expected 16, 32, 64, 128 or 256.")
        if self.scale_bits not in (16, 32):
            raise ValueError(f"scale_bits is {self.scale_bits}; expected 16 or 32.")
        if type(self.minimum) is not bool or (self.minimum and self.symmetric):
            raise ValueError(f"minimum is {self.minimum!r} and symmetric {self.symmetric!r}; expected one of both.")
        if type(self.order) is not str:
            raise ValueError(f"order is {self.order!r}; expected the name of a matrix.")

    @property
    def stores_zeros(self) -> bool:
        return not self.symmetric and not self.minimum

    @property
    def entry(self) -> dict[str, object]:
        """What a manifest says of it: fields that only what is carried over has are left out at their defaults."""
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
        return -(-columns // self.group)


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


def quantize(rows: F32, packing: Packing, *, search: bool = False, weights: F32 | None = None) -> Packed:
    """A scale per group, to the nearest step of it: value = (q - zero) * scale.

    rows: [n, K], float32. The scale is rounded to float16 before the values are rounded by it, so that nothing is
    lost twice. Symmetric: the value of the largest magnitude becomes exactly -2**(bits-1) steps, so that the whole
    range of the integer is used (as in GGUF's Q4_0 and ONNX Runtime's own quantizer).
    search: of 4 bits, the scales with the least squared error instead (scale_search.py).
    weights: [K], what a squared error in each column counts in a search; None: all alike.
    Raises ExportError for weights that are not finite or too large for a float16 scale.
    """
    grouped = _grouped(rows, packing)
    turned = np.ascontiguousarray(grouped.reshape(-1, packing.group).T)  # NumPy reduces a short last axis slowly
    weighing = None if weights is None else _tiled(weights, packing, len(rows))
    half, zeros = scales(turned, packing, search=search, weights=weighing)
    half, zeros = half.reshape(grouped.shape[:2]), zeros.reshape(grouped.shape[:2])
    steps = grouped * inverse(half)[:, :, None]
    np.rint(steps, out=steps)
    steps += zeros[:, :, None]
    np.clip(steps, 0, (1 << packing.bits) - 1, out=steps)
    zero = None if packing.symmetric else pack_bits(zeros.astype(np.uint8), packing.bits)
    return Packed(pack_bits(steps.astype(np.uint8), packing.bits), half, zero)


def packed_turned(integers: U8, scale: F16, zeros: U8 | None, packing: Packing) -> Packed:
    """Rows whose integers are known. integers: [groups * group, n]. scale, zeros: [groups, n]."""
    values = np.ascontiguousarray(integers.T).reshape(integers.shape[1], -1, packing.group)
    zero = None if zeros is None else pack_bits(np.ascontiguousarray(zeros.T), packing.bits)
    return Packed(pack_bits(values, packing.bits), np.ascontiguousarray(scale.T), zero)


def scales(turned: F32, packing: Packing, *, search: bool, weights: F32 | None = None) -> tuple[F16, F32]:
    """The scale and the zero point of each group, [groups].

    turned: [size, groups], the values. search: as quantize().
    weights: [size, groups] or [size, 1], of the squared errors in a search.

    Raises ExportError for values that are not finite or too large for a float16 scale.
    """
    low, high = turned.min(axis=0), turned.max(axis=0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ExportError(NOT_FINITE)
    with np.errstate(over="ignore", invalid="ignore"):  # found and named below
        scale, zeros = _scales(turned, low, high, packing, weights, search=search and packing.bits in _SEARCHED)
        half = scale.astype(np.float16)
    if not np.isfinite(half).all():
        raise ExportError(f"a weight of {np.abs(turned).max():.3g} needs a scale beyond float16; use 32 bits.")
    return half, zeros


def _scales(
    turned: F32, low: F32, high: F32, packing: Packing, weights: F32 | None, *, search: bool
) -> tuple[F32, F32]:
    levels = 1 << packing.bits
    if packing.symmetric:
        extreme: F32 = np.where(-low >= high, low, high)
        scale = search_symmetric(turned, extreme, levels, weights) if search else extreme / np.float32(-(levels // 2))
        if packing.bits == 8:
            _make_exact(turned, extreme, scale)
        return scale, np.full_like(scale, levels // 2)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    if search:
        return search_asymmetric(turned, low, high, levels, weights)
    scale = (high - low) / np.float32(levels - 1)
    return scale, np.clip(np.rint(-low * inverse(scale.astype(np.float16))), 0, levels - 1)


def _make_exact(turned: F32, extreme: F32, scale: F32) -> None:
    """Gives groups whose values are at most 127 steps of a power of two that step: MXFP4 loses nothing in 8 bits.

    scale: what they have so far. One that is exact already stays, so that what can be is stored as before.
    """
    step = np.exp2(np.maximum(np.ceil(np.log2(np.maximum(np.abs(extreme), _LEAST_STEP)) - _LOG_127), _LEAST_EXPONENT))
    step = step.astype(np.float32)
    found = np.flatnonzero(extreme)
    for rows in (turned[:4], turned):  # hardly any other weights pass the first look
        found = found[_is_exact(rows[:, found], step[found])]
    found = found[~_is_exact(turned[:, found], scale[found].astype(np.float16).astype(np.float32))]
    scale[found] = step[found]


def _is_exact(values: F32, step: F32) -> NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = values / step
    whole = (np.rint(steps) == steps) & (steps >= -128) & (steps <= 127)
    found: NDArray[np.bool_] = np.logical_and.reduce(whole, axis=0)
    return found


def inverse(scale: F16) -> F32:
    """1 / scale, and 0 for 0."""
    wide = scale.astype(np.float32)
    return np.divide(1.0, wide, out=np.zeros_like(wide), where=wide != 0)


def dequantize(packed: Packed, packing: Packing, columns: int) -> F32:
    """The float weights [n, columns] that packed rows stand for: (q - zero) * scale, or q * scale + minimum."""
    values = _unpack(packed.weight, packing.bits).astype(np.float32)
    groups = packed.scale.shape[1]
    if packed.zero is not None:
        values -= _unpack(packed.zero, packing.bits)[:, :groups, None].astype(np.float32)
    elif packed.minimum is None:
        values -= np.float32(1 << (packing.bits - 1))
    values *= packed.scale.astype(np.float32)[:, :, None]
    if packed.minimum is not None:
        values += packed.minimum.astype(np.float32)[:, :, None]
    return values.reshape(len(values), -1)[:, :columns]


def _grouped(rows: F32, packing: Packing) -> F32:
    """[n, K] -> [n, groups, group], the last group filled up with zeros."""
    count, columns = rows.shape
    missing = packing.groups(columns) * packing.group - columns
    if missing:
        rows = np.pad(rows, ((0, 0), (0, missing)))
    return rows.reshape(count, -1, packing.group)


def _tiled(weights: F32, packing: Packing, rows: int) -> F32:
    """[K], alike in all rows, -> [group, rows * groups], as quantize() turns the values."""
    return np.tile(_grouped(weights[None], packing)[0].T, (1, rows))


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
