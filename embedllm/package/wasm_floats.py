"""The layout of weights.float32: every matrix of a product as floats, in a file that a browser makes while it is read.

It is on no disk. ONNX Runtime's WebAssembly unpacks a whole matrix at every step where MatMulNBits asks it to
multiply by a packed one; plain floats it packs once (docs/format.md#weightsfloat32).
"""

from __future__ import annotations

from collections.abc import Mapping

from embedllm.package.architecture.decoder import Decoder
from embedllm.package.tensors import linears, outer_matrices

FLOATS = "weights.float32"


def float_spans(decoder: Decoder, offsets: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """(offset, length) in bytes of each matrix that is multiplied by, by its name and in file order.

    offsets: of the entries of weights.safetensors, by their names; the matrices have the order of those.
    """
    matrices = {matrix.name: matrix for layer in decoder.layers for matrix in linears(layer)}
    matrices |= {matrix.name: matrix for matrix in outer_matrices(decoder)}
    matrices[decoder.head.name] = decoder.head  # a table that is only looked up is not among them
    spans: dict[str, tuple[int, int]] = {}
    end = 0
    for name in sorted(matrices, key=lambda name: offsets[f"{name}.weight"]):
        length = matrices[name].rows * matrices[name].columns * 4
        spans[name] = end, length
        end += length
    return spans


def joined(names: list[str], spans: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """(offset, length) of matrices that lie next to each other; ValueError when they don't."""
    first = end = spans[names[0]][0]
    for name in names:
        offset, length = spans[name]
        if offset != end:
            raise ValueError(f"'{name}' starts at byte {offset} of {FLOATS}, not at {end} behind its neighbour.")
        end += length
    return first, end - first
