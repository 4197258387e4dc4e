"""What the tests of checkpoints that are quantized already have in common: the matrix, and how one is spoilt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm.errors import ExportError
from embedllm.export import convert
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.hub.location import locate
from tests.support.tiny import tiny_checkpoint

Typed = tuple[str, np.ndarray]  # a tensor's type as safetensors names it, and its bytes or numbers
NAME = "model.layers.1.mlp.down_proj"  # [64, 96] in the tiny models


def opened(folder: Path) -> HuggingFaceSource:
    return HuggingFaceSource(locate(folder, None))


def check_refused(folder: Path, part: str, value: np.ndarray | None, message: str) -> None:
    """That a checkpoint is refused, and nothing written, with a tensor of NAME exchanged or, for None, left out."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(f"{NAME}.{part}", None)
    if value is not None:
        tensors[f"{NAME}.{part}"] = value
    save_file(tensors, folder / "model.safetensors")
    out = folder.with_name("out")
    with pytest.raises(ExportError, match=message):
        convert(folder, out)
    assert not out.exists()


def write(path: Path, tensors: dict[str, Typed]) -> None:
    """safetensors, with the types of 8 bits that NumPy does not have."""
    entries, data = {}, b""
    for name, (dtype, values) in tensors.items():
        raw = values.tobytes()
        entries[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def write_checkpoint(
    folder: Path, said: object, quantized: Callable[[str, np.ndarray], tuple[Mapping[str, Typed], np.ndarray]]
) -> dict[str, np.ndarray]:
    """Writes a tiny llama whose layers are quantized; gives the floats that they stand for.

    said: the quantization_config. quantized: of a matrix, by its name without ".weight", what is stored, by the last
    part of its names, and what that stands for.
    """
    tiny_checkpoint(folder, "llama", vocab_size=320, quantization_config=said)
    tensors: dict[str, Typed] = {}
    floats: dict[str, np.ndarray] = {}
    for tensor, values in load_file(folder / "model.safetensors").items():
        if "_proj" in tensor:
            base = tensor.removesuffix(".weight")
            made, floats[tensor] = quantized(base, values.astype(np.float32))
            tensors |= {f"{base}.{part}": each for part, each in made.items()}
        else:
            tensors[tensor] = "F16", values.astype(np.float16)  # which 16 bits hold whole
    write(folder / "model.safetensors", tensors)
    return floats
