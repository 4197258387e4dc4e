"""A convolution that a checkpoint has as three tensors is read as one, and refused when they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedllm.errors import ExportError
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.hub.location import Location

PLACE = "model.layers.0.linear_attn"
ROWS = {"q": 2, "k": 2, "v": 6}


def source_of(folder: Path, **rows: int) -> HuggingFaceSource:
    """Convolutions of these rows; their values count from 0."""
    values = np.split(np.arange(4 * sum(rows.values()), dtype=np.float32).reshape(-1, 1, 4),
                      np.cumsum(list(rows.values()))[:-1])  # fmt: skip
    tensors = {f"{PLACE}.{part}_conv1d.weight": value for part, value in zip(rows, values, strict=True)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return HuggingFaceSource(Location(folder, folder.name))


@pytest.mark.parametrize("rows", [ROWS, {"q": 4, "k": 4, "v": 2}])
def test_three_tensors_are_read_as_one_however_they_are_split(rows: dict[str, int], tmp_path: Path) -> None:
    source = source_of(tmp_path, **rows)
    source.check(f"{PLACE}.conv1d.weight", (10, 4))
    assert source.rows(f"{PLACE}.conv1d.weight", 1, 9).tolist() == np.arange(4, 36).reshape(-1, 4).tolist()
    source.close()


def test_rows_that_config_json_does_not_call_for_are_refused(tmp_path: Path) -> None:
    source = source_of(tmp_path, **ROWS)
    with pytest.raises(ExportError, match=r"F32 \[2, 1, 4\], F32 \[2, 1, 4\], F32 \[6, 1, 4\]; .*\[12, 4\] together"):
        source.check(f"{PLACE}.conv1d.weight", (12, 4))
    source.close()


def test_two_of_the_three_are_not_enough(tmp_path: Path) -> None:
    source = source_of(tmp_path, q=2, k=2)
    with pytest.raises(ExportError, match=r"has no tensor '.*\.conv1d\.weight'"):
        source.check(f"{PLACE}.conv1d.weight", (10, 4))
    source.close()
