"""Hashes of a file's blocks: what they are, what a manifest keeps of them, and wrong ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedllm.errors import PackageError
from embedllm.export import Recipe, convert
from embedllm.export.graphs import write_variant
from embedllm.package import file_blocks
from embedllm.package.file_blocks import FileBlocks, read_blocks
from embedllm.package.package import MANIFEST, WEIGHTS, open_package
from tests.support.tiny import tiny_checkpoint


@given(size=st.integers(0, 400), block=st.integers(1, 100))
def test_each_block_and_the_list_have_a_hash(size: int, block: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = bytes(at % 251 for at in range(size))
    path = tmp_path_factory.mktemp("blocks") / "file"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_blocks, "BLOCK", block)
        found = file_blocks.file_blocks(path)
    if size <= block:
        assert found is None
        return
    digests = [hashlib.sha256(data[at : at + block]).digest() for at in range(0, size, block)]
    expected = FileBlocks(bytes=block, sha256=tuple(each.hex() for each in digests),
                          root=hashlib.sha256(b"".join(digests)).hexdigest())  # fmt: skip
    assert found == expected
    assert read_blocks(expected.as_json(), "here,", size) == expected


def test_a_manifest_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_blocks, "BLOCK", 1 << 12)
    package = convert(tiny_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(method="nearest"))
    blocks = open_package(package).files[WEIGHTS].blocks
    assert blocks == file_blocks.file_blocks(package / WEIGHTS)
    assert blocks is not None
    (package / "model.fp32.onnx").unlink()
    write_variant(package, "gpu-float32")
    assert open_package(package).files[WEIGHTS].blocks == blocks
    assert json.loads((package / MANIFEST).read_text())["files"][WEIGHTS]["blocks"] == blocks.as_json()


def test_a_wrong_number_of_them_is_refused() -> None:
    with pytest.raises(PackageError, match="there are 1 hashes of blocks; expected 3"):
        read_blocks({"bytes": 4, "sha256": ["0" * 64], "root": "0" * 64}, "here", 9)
