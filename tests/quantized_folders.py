"""What the tests of checkpoints that are quantized already have in common: the matrix, and how one is spoilt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm.errors import ExportError
from embedllm.export import convert
from embedllm.export.hf import HuggingFaceSource
from embedllm.export.hub import locate

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
