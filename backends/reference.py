"""A slow decoder in plain NumPy that reads the same folder: the oracle of all tests, and the last resort.

Follows the mathematics of export/decoder.py literally, in float32, one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from embedllm.backends.base import (
    LARGER_EXPORT,
    Device,
    check_change,
    check_rewind,
    check_room,
    check_span,
    check_state,
    check_tokens,
)
from embedllm.errors import PackageError
from embedllm.export.decoder import Attention, Linear, Mlp, Norm, parameters
from embedllm.export.quantize import Packed, dequantize, packings
from embedllm.package import Package
from embedllm.rows import Row
from embedllm.tensorfile import TensorFile, read_header

if TYPE_CHECKING:
    from embedllm.adapters import Adapter
    from embedllm.backends.base import KeyValues
    from embedllm.types import F32

DEVICE = Device(
    name="reference", backend=f"numpy {np.__version__}", description="slow; for checking results", available=True
)
_KEPT = 250_000_000  # weights; smaller models keep their matrices as floats, larger ones unpack them at every step
_DTYPES = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}


class ReferenceEngine:
    """A folder, dequantized."""

    device = DEVICE
    chunk = 512

    def __init__(self, package: Package) -> None:
        self.package = package
        self.decoder = package.decoder
        self.context = package.context
        self.remedy = LARGER_EXPORT
        self._packing = packings(package.manifest)
        self._matrices: dict[str, F32] | None = {} if parameters(self.decoder) < _KEPT else None

    def open(self, capacity: int = 0) -> ReferenceSession:
        return ReferenceSession(self)

    def close(self) -> None:
        self._matrices = None

    @cached_property
    def _file(self) -> TensorFile:
        return read_header(self.package.weights)

    def tensor(self, name: str) -> np.ndarray:
        """A stored tensor, as it lies in the file."""
        entry = self._file.tensors.get(name)
        if entry is None or entry.dtype not in _DTYPES:
            raise PackageError(f"'{entry.file if entry else self.package.weights}' has no usable tensor '{name}'.")
        return np.memmap(entry.file, _DTYPES[entry.dtype], "r", entry.offset, entry.shape)

    def matrix(self, linear: Linear) -> F32:
        """The float weights [rows, columns] that a matrix stands for."""
        if self._matrices is None or linear.name not in self._matrices:
            matrix = self._unpacked(linear)
            if self._matrices is None:
                return matrix
            self._matrices[linear.name] = matrix
        return self._matrices[linear.name]

    def rows(self, linear: Linear, tokens: Sequence[int]) -> F32:
        """Rows of an embedding table; of a large one, only these are unpacked."""
        return self._unpacked(linear, list(tokens)) if self._matrices is None else self.matrix(linear)[list(tokens)]

    def _unpacked(self, linear: Linear, rows: list[int] | slice = slice(None)) -> F32:
        packing = self._packing[linear.name]
        weight, scale, zero = (
            self.tensor(f"{linear.name}.{kind}")[rows] if stored else None
            for kind, stored in (
                ("weight", True),
                ("scale", packing.quantized),
                ("zero", packing.quantized and not packing.symmetric),
            )
        )
        assert weight is not None
        if scale is None:
            return weight.astype(np.float32)
        return dequantize(Packed(weight, scale, zero), packing, linear.columns)


class ReferenceSession:
    """One sequence: keys and values of every layer as arrays [kv heads, position, D]."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self.position = 0
        self.capacity = 0  # it takes memory with each token
        self._engine = engine
        self._adapter: Adapter | None = None
        self._kv: list[tuple[F32, F32]] = [
            (np.zeros((a.kv_heads, 0, a.head_dim), np.float32),) * 2
            for a in (layer.attention for layer in engine.decoder.layers)
        ]

    def feed(self, tokens: Sequence[int]) -> Row:
        return Row(self._step(tokens, only_last=True)[-1])

    def feed_all(self, tokens: Sequence[int]) -> F32:
        return self._step(tokens, only_last=False)

    def rewind(self, position: int) -> None:
        check_rewind(position, self.position)
        self.position = self.capacity = position
        self._kv = [(key[:, :position], value[:, :position]) for key, value in self._kv]

    def export_state(self, start: int, stop: int) -> KeyValues:
        check_span(start, stop, self.position)
        return [(key[:, start:stop].copy(), value[:, start:stop].copy()) for key, value in self._kv]

    def import_state(self, state: KeyValues) -> None:
        count = check_state(state, [(key.shape[0], key.shape[2]) for key, _ in self._kv])
        check_room(self.position, count, limit=self._engine.decoder.context, remedy=LARGER_EXPORT)
        self._kv = [
            (np.concatenate([key, more], axis=1), np.concatenate([value, also], axis=1))
            for (key, value), (more, also) in zip(self._kv, state, strict=True)
        ]
        self.position = self.capacity = self.position + count

    def adapt(self, adapter: Adapter | None) -> None:
        check_change(adapter, self.position, can=True)
        self._adapter = adapter

    def close(self) -> None:
        self.rewind(0)

    def _step(self, tokens: Sequence[int], only_last: bool) -> F32:
        engine, decoder = self._engine, self._engine.decoder
        check_tokens(tokens, self.position, vocabulary=decoder.vocabulary, limit=decoder.context, remedy=LARGER_EXPORT)
        x = engine.rows(decoder.embedding, tokens)  # [T, hidden]
        for index, layer in enumerate(decoder.layers):
            x = x + self._attention(index, layer.attention, self._norm(x, layer.attention_norm))
            x = x + self._mlp(layer.mlp, self._norm(x, layer.mlp_norm))
        self.position += len(tokens)
        self.capacity = self.position
        return self._linear(self._norm(x[-1:] if only_last else x, decoder.norm), decoder.head)

    def _attention(self, index: int, attention: Attention, x: F32) -> F32:
        q = self._heads(x, attention.q, attention.heads, attention.q_norm)  # [H, T, D]
        k = self._heads(x, attention.k, attention.kv_heads, attention.k_norm)
        v = self._heads(x, attention.v, attention.kv_heads, None)
        return self._linear(self._attended(index, attention, q, k, v), attention.o)

    def _attended(self, index: int, attention: Attention, q: F32, k: F32, v: F32) -> F32:
        """What the queries [H, T, D] find, [T, H * D]; keys and values [kv heads, T, D] are remembered."""
        past_key, past_value = self._kv[index]
        key = np.concatenate([past_key, self._rotated(k)], axis=1)  # [kv heads, P + T, D]
        value = np.concatenate([past_value, v], axis=1)
        self._kv[index] = key, value
        shared = attention.heads // attention.kv_heads
        key, value = key.repeat(shared, axis=0), value.repeat(shared, axis=0)
        scores = self._rotated(q) @ key.transpose(0, 2, 1) / np.float32(np.sqrt(attention.head_dim))  # [H, T, P + T]
        query_at = np.arange(self.position, self.position + q.shape[1])[:, None]
        key_at = np.arange(key.shape[1])[None, :]
        seen = key_at <= query_at
        if attention.window is not None:
            seen &= key_at > query_at - attention.window
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ value).transpose(1, 0, 2).reshape(q.shape[1], -1)

    def _heads(self, x: F32, linear: Linear, heads: int, norm: Norm | None) -> F32:
        split = self._linear(x, linear).reshape(len(x), heads, -1).transpose(1, 0, 2)
        return split if norm is None else self._norm(split, norm)

    def _rotated(self, x: F32) -> F32:
        """Dimension i of the first half turns with dimension i of the second half."""
        here = slice(self.position, self.position + x.shape[1])
        cos, sin = (self._engine.tensor(f"rope.{part}")[here] for part in ("cos", "sin"))
        rotated = self._engine.decoder.rope.rotated
        first, second, rest = np.split(x, [rotated // 2, rotated], axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def _mlp(self, mlp: Mlp, x: F32) -> F32:
        gate = self._linear(x, mlp.gate)
        with np.errstate(over="ignore"):  # exp of a very negative gate: the quotient is 0, as it should be
            active = gate / (1 + np.exp(-gate))
        return self._linear(active * self._linear(x, mlp.up), mlp.down)

    def _linear(self, x: F32, linear: Linear) -> F32:
        product = x @ self._engine.matrix(linear).T
        if self._adapter is not None and linear.name in self._adapter.factors:
            a, b = self._adapter.factors[linear.name]
            product = product + x @ a @ b
        return product + self._engine.tensor(f"{linear.name}.bias") if linear.bias else product

    def _norm(self, x: F32, norm: Norm) -> F32:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(norm.epsilon))
        return x / scale * self._engine.tensor(f"{norm.name}.weight")
