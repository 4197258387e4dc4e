"""Importance matrices as llama.cpp's llama-imatrix writes them, byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.mlp import Mlp

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.types import F32

ALIGNMENT = 32


def tensors_of(decoder: Decoder, squares: Mapping[str, F32] | None = None, count: int = 1) -> dict[str, F32]:
    """Sums and counts of a model, under llama.cpp's names. squares: mean squares, by matrix; None: random ones."""
    random = np.random.default_rng(0)
    found: dict[str, F32] = {}

    def add(name: str, matrix: str, columns: int) -> None:
        mean = random.random(columns).astype(np.float32) if squares is None else squares[matrix]
        found[f"{name}.weight.in_sum2"] = mean * np.float32(count)
        found[f"{name}.weight.counts"] = np.array([count], np.float32)

    for index, layer in enumerate(decoder.layers):
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(attention, Attention)
        assert isinstance(mlp, Mlp)
        assert mlp.gate is not None
        kinds = {"attn_q": attention.q, "attn_k": attention.k, "attn_v": attention.v, "attn_output": attention.o,
                 "ffn_gate": mlp.gate, "ffn_up": mlp.up, "ffn_down": mlp.down}  # fmt: skip
        for kind, linear in kinds.items():
            add(f"blk.{index}.{kind}", linear.name, linear.columns)
    add("output", decoder.head.name, decoder.head.columns)
    return found


def imatrix(path: Path, tensors: Mapping[str, F32], *, kind: str = "imatrix") -> Path:
    """Writes one. tensors: by name; a vector has the dimensions [n, 1], as llama.cpp has them."""
    path.write_bytes(imatrix_bytes(tensors, kind=kind))
    return path


def imatrix_bytes(tensors: Mapping[str, F32], *, kind: str = "imatrix") -> bytes:
    head = header_bytes(tensors, kind=kind)
    return _padded(head) + b"".join(_padded(values.astype("<f4").tobytes()) for values in tensors.values())


def header_bytes(tensors: Mapping[str, F32], *, kind: str = "imatrix") -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 4)
    head += _text("general.type") + struct.pack("<I", 8) + _text(kind)
    head += _text("imatrix.datasets") + struct.pack("<IIQ", 9, 8, 2) + _text("a.txt") + _text("b.txt")
    head += _text("imatrix.chunk_count") + struct.pack("<II", 4, 1)
    head += _text("numbers") + struct.pack("<IIQHH", 9, 2, 2, 5, 6)
    place = 0
    for name, values in tensors.items():
        head += _text(name) + struct.pack("<IQQIQ", 2, len(values), 1, 0, place)
        place += len(_padded(bytes(4 * len(values))))
    return head


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()
