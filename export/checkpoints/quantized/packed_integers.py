"""Checkpoints whose matrices are integers: GPTQ, AWQ, compressed-tensors, MLX; as they are stored here, without loss.

Each holds a scale and a zero point, or a minimum, for every group of a row; what differs is how integers lie in 32-bit
words, lowest bits first. K columns of ours, N rows, G groups, c integers a word:
    GPTQ               qweight [K/c, N], qzeros [G, N/c], scales [G, N]; zero points less 1, but for "gptq_v2";
                       of 3 bits, 32 lie in 3 words
    AWQ (GEMM)         qweight [K, N/8], qzeros [G, N/8], scales [G, N]; columns of a word in an order of their own
    AWQ (GEMV)         qweight [N, K/c], qzeros [N, G/c], scales [N, G]; G filled up to a multiple of 8, 16 or 32
    compressed-tensors weight_packed [N, K/c], weight_scale [N, G], weight_zero_point [N/c, G]; signed
    MLX                weight [N, K/c], scales [N, G], biases [N, G]: the minimums
Sources: GPTQModel (convert_gptq_v1_to_v2_format_module), AutoAWQ (utils/packing_utils.py), compressed-tensors
(pack_to_int32), MLX (mx.quantize).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.checkpoints.quantized.schemes import GROUPS, WHOLE, Scheme
from embedllm.files.float_types import FLOATS, to_float32
from embedllm.files.safetensors_header import Tensor
from embedllm.package.packing import Packed, Packing, pack_bits, with_minimums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedllm.types import F16, F32, U8

Read = Callable[[Tensor, int, int], bytearray]  # bytes of a tensor: the first, how many
T = TypeVar("T", bound=np.generic)

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word the columns 0 to 7 lie
# what they are called
_SCALES = {"gptq": "scales", "awq": "scales", "gemv": "scales", "compressed": "weight_scale", "mlx": "scales"}
_GEMV_WORDS = {32: 4, 64: 2}  # of zero points, by the size of a group; others: 1
_PARTS = ("scales", "qzeros", "g_idx", "weight_scale", "weight_zero_point", "weight_g_idx", "biases")


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One matrix of such a checkpoint. tensors: those that belong to it, by the last part of their names."""

    scheme: Scheme
    name: str
    tensors: Mapping[str, Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        first, second = (*self.tensors[self.scheme.words].shape, 0, 0)[:2]
        bits = self.scheme.bits
        return {"gptq": (second, first * 32 // bits), "awq": (second * 32 // bits, first)}.get(
            self.scheme.kind, (first, second * 32 // bits)
        )

    def check(self, shape: tuple[int, ...]) -> None:
        """Raises ExportError unless it is of that shape and its tensors fit one another."""
        rows, columns = self.shape
        if self.shape != shape:
            raise ExportError(f"'{self.name}' is {[rows, columns]}; config.json calls for {list(shape)}.")
        group, words = self.scheme.group, -(-rows * self.scheme.bits // 32)
        groups = self._groups
        scales = [groups, rows] if self._across else [rows, groups]
        zeros = [groups, words] if self._across else [words, groups]
        if self.scheme.kind == "gemv":
            words = -(-groups // 8)
            words += -words % _GEMV_WORDS.get(group, 1)
            scales, zeros = [rows, words * 8], [rows, words]
        integers = ("I32", "U32")
        expected = {"scales": (FLOATS, scales), "weight_scale": (FLOATS, scales), "biases": (FLOATS, scales),
                    "qzeros": (integers, zeros), "weight_zero_point": (integers, zeros),
                    "g_idx": (integers, [columns]), "weight_g_idx": (integers, [columns])}  # fmt: skip
        if (words := self.tensors[self.scheme.words]).dtype not in integers or len(words.shape) != 2:
            raise ExportError(f"'{self.name}' is {words.dtype} {list(words.shape)}; expected rows of 32-bit integers.")
        for part, (types, sizes) in expected.items():
            tensor = self.tensors.get(part)
            if tensor is not None and (tensor.dtype not in types or list(tensor.shape) != sizes):
                raise ExportError(f"'{part}' of '{self.name}' is {tensor.dtype} {list(tensor.shape)}; expected "
                                  f"{' or '.join(types)} {sizes}.")  # fmt: skip
        needed = {"scales", "biases"} if self.scheme.kind == "mlx" else {_SCALES[self.scheme.kind]}
        if lacking := needed - self.tensors.keys():
            raise ExportError(f"the checkpoint has no '{min(lacking)}' of '{self.name}', which cannot be read so.")

    def packing(self, read: Read) -> Packing:
        """How it is stored: in 8 bits where a zero point does not fit into 4. Raises ExportError where it cannot be."""
        self.order(read)  # which may be refused
        group, scale_bits = self._group, 16 if self._types <= {"F16"} else 32
        if self.scheme.kind == "mlx":
            return with_minimums(self.scheme.bits, group_size=group, scale_bits=scale_bits)
        zeros = self._zeros(read, 0, self.shape[0])
        if zeros.max(initial=0) > 255:
            raise ExportError(f"'{self.name}' has a zero point of {zeros.max()}; expected at most 255.")
        bits = 8 if self.scheme.bits == 8 or zeros.max(initial=0) > 15 else 4
        symmetric = bool((zeros == 1 << bits - 1).all())
        return Packing(bits=bits, group_size=group, symmetric=symmetric, scale_bits=scale_bits)

    def packed(self, read: Read, packing: Packing, start: int, stop: int) -> Packed:
        """Rows [start, stop) as they are stored, in the order of columns that order() gives. packing: of packing()."""
        codes, order = self._codes(read, start, stop), self.order(read)
        codes = codes if order is None else codes.take(order, axis=1)
        missing = packing.groups(codes.shape[1]) * packing.group_size - codes.shape[1]
        codes = np.pad(codes, ((0, 0), (0, missing))).reshape(len(codes), -1, packing.group_size)

        def floats(name: str) -> F16 | F32:
            values = self._by_group(self._floats(read, name, start, stop))
            return values if packing.scale_bits == 32 else values.astype(np.float16)

        zero = None
        if packing.stores_zeros:
            zeros = self._by_group(self._zeros(read, start, stop)).astype(np.uint8)
            zero = pack_bits(np.ascontiguousarray(zeros), packing.bits)
        minimum = floats("biases") if packing.has_minimum else None
        return Packed(pack_bits(codes, packing.bits), floats(_SCALES[self.scheme.kind]), zero, minimum)

    def order(self, read: Read) -> NDArray[np.int32] | None:
        """The columns sorted by their groups (desc_act), [columns]; None where they lie so already.

        Raises ExportError for groups of other sizes than config.json says.
        """
        groups = self._group_of(read)
        return None if groups is None else sorted_by_group(groups, self.scheme.group, self.name)

    def rows(self, read: Read, start: int, stop: int) -> F32:
        """Rows [start, stop) as the floats that they stand for."""
        groups = self._group_of(read)
        group = plain_groups(self.shape[1], self.scheme.group) if groups is None else groups
        values = self._codes(read, start, stop).astype(np.float32)
        if self.scheme.kind != "mlx":
            values -= self._zeros(read, start, stop)[:, group].astype(np.float32)
        values *= self._floats(read, _SCALES[self.scheme.kind], start, stop)[:, group]
        if self.scheme.kind == "mlx":
            values += self._floats(read, "biases", start, stop)[:, group]
        return values

    @property
    def _across(self) -> bool:
        """Whether rows lie along the last dimension of the tensors."""
        return self.scheme.kind in ("gptq", "awq")

    @property
    def _group(self) -> int:
        return self.scheme.group if self.scheme.group in GROUPS else WHOLE

    @property
    def _groups(self) -> int:
        """Of a row, in the checkpoint."""
        return 1 if self.scheme.group < 0 else -(-self.shape[1] // self.scheme.group)

    @property
    def _types(self) -> set[str]:
        """Of scales and minimums."""
        return {self.tensors[part].dtype for part in (_SCALES[self.scheme.kind], "biases") if part in self.tensors}

    def _by_group(self, values: NDArray[T]) -> NDArray[T]:
        """What a scale is for, for each of our groups. values: [n, groups of the checkpoint]."""
        if self.scheme.group in GROUPS:
            return values
        count = -(-self.shape[1] // WHOLE)
        times = self.scheme.group // WHOLE if self.scheme.group > 0 else count
        return np.repeat(values, times, axis=1)[:, :count]

    def _codes(self, read: Read, start: int, stop: int) -> U8:
        """[n, columns]."""
        tensor, bits = self.tensors[self.scheme.words], self.scheme.bits
        if self.scheme.kind == "gptq":
            words = _words(read, tensor)[:, start:stop]
            return np.ascontiguousarray(_apart(words.T, bits)).astype(np.uint8)
        if self.scheme.kind == "awq":
            return np.ascontiguousarray(self._awq(_words(read, tensor), start, stop).T)
        return _apart(_words(read, tensor, start, stop), bits)

    def _awq(self, words: NDArray[np.uint32], start: int, stop: int) -> U8:
        """Columns [start, stop) of the values in words, [.., n]."""
        first = start // 8
        return _apart(words[:, first : -(-stop // 8)], 4, _AWQ_ORDER)[:, start - 8 * first : stop - 8 * first]

    def _zeros(self, read: Read, start: int, stop: int) -> NDArray[np.uint16]:
        """[n, groups of the checkpoint]."""
        tensor = self.tensors.get("weight_zero_point" if self.scheme.kind == "compressed" else "qzeros")
        bits = self.scheme.bits
        if tensor is None:
            return np.full((stop - start, self._groups), 1 << bits - 1, np.uint16)
        words = _words(read, tensor)
        if self.scheme.kind == "awq":
            return self._awq(words, start, stop).T.astype(np.uint16)
        if self.scheme.kind == "gptq":
            return _apart(words, bits)[:, start:stop].T.astype(np.uint16) + np.uint16(self.scheme.less)
        if self.scheme.kind == "gemv":
            return _apart(words[start:stop], bits)[:, : self._groups].astype(np.uint16)
        return _apart(words.T, bits)[:, start:stop].T.astype(np.uint16)

    def _floats(self, read: Read, part: str, start: int, stop: int) -> F32:
        """[n, groups of the checkpoint]."""
        tensor = self.tensors[part]
        if self._across:
            values = to_float32(read(tensor, 0, tensor.length), tensor.dtype).reshape(tensor.shape)[:, start:stop].T
            return np.ascontiguousarray(values)
        size = tensor.length // tensor.shape[0]
        values = to_float32(read(tensor, start * size, (stop - start) * size), tensor.dtype)
        return values.reshape(stop - start, -1)[:, : self._groups]

    def _group_of(self, read: Read) -> NDArray[np.int32] | None:
        """The group of each column, where the checkpoint says so. Raises ExportError for a group that there is not."""
        tensor = self.tensors.get("g_idx") or self.tensors.get("weight_g_idx")
        if tensor is None:
            return None
        groups = np.frombuffer(read(tensor, 0, tensor.length), "<i4")
        if self.scheme.kind == "compressed" and (groups == -1).any():
            return None  # as it begins there: the columns lie as they are
        last = self._groups - 1
        if (wrong := groups[(groups < 0) | (groups > last)]).size:
            raise ExportError(f"a column of '{self.name}' is of the group {wrong[0]}; expected 0 to {last}.")
        return groups


def find_packed(scheme: Scheme, tensors: Mapping[str, Tensor], name: str) -> PackedMatrix | None:
    """The packed matrix behind the name that it would have as floats; None where there is none."""
    base, _, kind = name.rpartition(".")
    if kind != "weight" or f"{base}.{scheme.words}" not in tensors:
        return None
    if scheme.kind == "mlx" and f"{base}.scales" not in tensors:
        return None  # floats, under the same name
    parts = {part: tensors[f"{base}.{part}"] for part in (scheme.words, *_PARTS) if f"{base}.{part}" in tensors}
    return PackedMatrix(scheme, name, parts)


def _words(read: Read, tensor: Tensor, start: int = 0, stop: int | None = None) -> NDArray[np.uint32]:
    """Rows of a tensor of 32-bit words; by default all."""
    stop = tensor.shape[0] if stop is None else stop
    size = tensor.length // max(tensor.shape[0], 1)
    return np.frombuffer(read(tensor, start * size, (stop - start) * size), "<u4").reshape(stop - start, -1)


def _apart(words: NDArray[np.uint32], bits: int, order: tuple[int, ...] = ()) -> U8:
    """The integers in words [n, k], [n, k * integers of a word]. order: where in a word each lies."""
    if 32 % bits:  # 3 bits: integers run on from word to word
        single = np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), axis=1, bitorder="little")
        single = single[:, : single.shape[1] // bits * bits].reshape(len(words), -1, bits)
        return np.packbits(single, axis=2, bitorder="little")[..., 0]
    each = 32 // bits
    values = np.empty((words.shape[0], words.shape[1] * each), np.uint8)
    for at, place in enumerate(order or range(each)):
        values[:, at::each] = words >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
    return values


def plain_groups(columns: int, size: int) -> NDArray[np.intp]:
    """The group of each column where those of a group lie together. size: of a group; -1: all are one."""
    return np.arange(columns) // (size if size > 0 else columns)


def sorted_by_group(groups: NDArray[np.int32], size: int, name: str) -> NDArray[np.int32] | None:
    """The columns sorted by their groups, those of a group as they were; None where they lie so already.

    groups: [columns], of each, none of which is too large. size: as plain_groups() has it. name: of the matrix.
    Raises ExportError for groups of other sizes.
    """
    expected = np.bincount(plain_groups(len(groups), size))
    counts = np.bincount(groups, minlength=len(expected))
    if (differ := np.flatnonzero(counts != expected)).size:
        first = differ[0]
        raise ExportError(
            f"group {first} of '{name}' has {counts[first]} columns by its g_idx; expected {expected[first]}, by the "
            f"group_size {size}. Give the bits that the weights are to be rounded to once more, such as --bits 4."
        )
    order = np.argsort(groups, kind="stable").astype(np.int32)
    return order if (np.diff(order) < 0).any() else None
