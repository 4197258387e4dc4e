"""Headers of safetensors files: what no writer of the format makes is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedllm.errors import PackageError
from embedllm.files.safetensors_header import read_header


def moved(path: Path, name: str, other: str) -> Path:
    """The file with one tensor's entry at the place of another of the same size."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header[name]["data_offsets"] = header[other]["data_offsets"]
    text = json.dumps(header).encode().ljust(length)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return path


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    tensors = {name: np.full((4, 4), at, np.float32) for at, name in enumerate("abc")}
    tensors["empty"] = np.zeros((0, 4), np.float32)
    save_file(tensors, tmp_path / "x.safetensors")
    assert set(read_header(tmp_path / "x.safetensors").tensors) == {*"abc", "empty"}
    with pytest.raises(PackageError, match=r"is damaged: '[ac]' begins at byte .*, inside '[ac]'"):
        read_header(moved(tmp_path / "x.safetensors", "c", "a"))
