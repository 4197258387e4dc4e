"""An importance matrix that llama.cpp's llama-imatrix wrote, as GGUF: how large the inputs of each column were.

For each matrix it has the sums of the squares of its inputs, NAME.in_sum2, and how many there were, NAME.counts, under
llama.cpp's names. Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/imatrix/README.md
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedllm.errors import ExportError
from embedllm.export.gguf.header import F32 as F32_TYPE
from embedllm.export.gguf.header import GgufFile, read_gguf
from embedllm.package.architecture.attention import Attention
from embedllm.package.architecture.mlp import Mlp

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder
    from embedllm.package.architecture.layer import Layer
    from embedllm.package.architecture.weights import Linear
    from embedllm.types import F32

_SQUARES, _COUNTS = ".in_sum2", ".counts"


def read_importance(path: Path, decoder: Decoder) -> dict[str, F32]:
    """The mean square of each input, [columns], by the name of the matrix.

    The head is left out where the file has none (llama-imatrix writes it with --process-output only).
    Raises ExportError for a recurrent model; for a file that is no such matrix, is damaged, lacks one of the layers'
    matrices, or is of another model's sizes; and for values that no sum of squares has.
    """
    if decoder.is_recurrent:
        raise ExportError(
            f"importance matrices of '{decoder.model_type}' models are not read: what llama.cpp calls the matrices of "
            "layers without attention is not described here. Calibrate on a text."
        )
    file = read_gguf(path)
    if file.metadata.get("general.type") != "imatrix":
        raise ExportError(
            f"'{path}' is a GGUF file of the type {file.metadata.get('general.type')!r}; expected 'imatrix', as "
            "llama-imatrix writes it."
        )
    if decoder.uses_mla:
        raise ExportError(
            f"llama.cpp has the matrices of a '{decoder.model_type}' cut in another way, so that '{path}' does not fit "
            "them. Use a text (--calibrate)."
        )
    squares: dict[str, F32] = {}
    for index, layer in enumerate(decoder.layers):
        for kind, linear in _names(layer).items():
            squares[linear.name] = _mean_square(file, f"blk.{index}.{kind}.weight", linear)
    head = "output.weight"
    if f"{head}{_SQUARES}" in file.tensors:
        squares[decoder.head.name] = _mean_square(file, head, decoder.head)
    return squares


def _names(layer: Layer) -> dict[str, Linear]:
    """llama.cpp's for the matrices of a layer."""
    attention, mlp = layer.attention, layer.mlp
    assert isinstance(attention, Attention), "others are refused before"
    assert isinstance(mlp, Mlp), "mixtures are refused before"
    matrices = {"attn_q": attention.q, "attn_k": attention.k, "attn_v": attention.v, "attn_output": attention.o}
    if mlp.gate is not None:
        matrices["ffn_gate"] = mlp.gate
    return matrices | {"ffn_up": mlp.up, "ffn_down": mlp.down}


def _mean_square(file: GgufFile, name: str, linear: Linear) -> F32:
    squares, counts = (_values(file, f"{name}{kind}", linear) for kind in (_SQUARES, _COUNTS))
    if len(squares) != linear.columns or len(counts) != 1:
        raise ExportError(
            f"'{file.path}': '{name}' has {len(squares)} sums and {len(counts)} counts; '{linear.source}' needs "
            f"{linear.columns} and 1. Is it the matrix of this model?"
        )
    with np.errstate(all="ignore"):  # what is not finite is refused below
        mean = squares / counts[0]
    if not (np.isfinite(mean).all() and (squares >= 0).all() and 0 < counts[0] < np.inf):
        raise ExportError(
            f"'{file.path}': '{name}' has sums from {squares.min():.3g} to {squares.max():.3g} and a count of "
            f"{counts[0]:.3g}; expected finite sums that are not negative, of one input or more. Make it again."
        )
    return mean


def _values(file: GgufFile, name: str, linear: Linear) -> F32:
    tensor = file.tensors.get(name)
    if tensor is None:
        others = ", ".join(sorted(file.tensors)[:4]) or "none"
        raise ExportError(
            f"'{file.path}' has no tensor '{name}', for '{linear.source}'; it has {others} ... Is it the importance "
            "matrix of this model?"
        )
    count = int(np.prod(tensor.shape))
    if tensor.type != F32_TYPE or tensor.offset + 4 * count > file.bytes or count > linear.columns:
        raise ExportError(
            f"'{file.path}': '{name}' has {count} values of type {tensor.type} at byte {tensor.offset}; expected "
            f"float32 (0), {linear.columns} at most, within its {file.bytes} bytes. Is it whole, and of this model?"
        )
    try:
        return np.fromfile(file.path, "<f4", count, offset=tensor.offset)
    except OSError as error:
        raise ExportError(f"cannot read '{file.path}': {error.strerror or error}.") from error
