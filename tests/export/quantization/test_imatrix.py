"""llama.cpp's importance matrices: read as they are written, and refused when they are damaged or another model's."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedllm.errors import ExportError
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.gguf.header import read_gguf
from embedllm.export.quantization.imatrix import read_importance
from tests.support.imatrix_files import header_bytes, imatrix, imatrix_bytes, tensors_of
from tests.support.tiny import tiny_config

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder

SMALL = {"a": np.array([1.5, 2], np.float32), "b": np.array([3], np.float32)}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return describe(Config(tiny_config("llama")), None)


def test_a_header_says_where_tensors_lie(tmp_path: Path) -> None:
    file = read_gguf(imatrix(tmp_path / "a.gguf", SMALL))
    numbers = file.metadata.pop("numbers")
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [5, 6]
    assert file.metadata == {
        "general.type": "imatrix", "imatrix.datasets": ["a.txt", "b.txt"], "imatrix.chunk_count": 1,
    }  # fmt: skip
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {"a": (1, 2), "b": (1, 1)}
    for name, tensor in file.tensors.items():
        assert np.fromfile(file.path, "<f4", len(SMALL[name]), offset=tensor.offset).tolist() == SMALL[name].tolist()


def test_means_are_sums_over_counts(decoder: Decoder, tmp_path: Path) -> None:
    tensors = tensors_of(decoder, count=4)
    found = read_importance(imatrix(tmp_path / "a.gguf", tensors), decoder)
    assert np.array_equal(found["layers.1.mlp.down"], tensors["blk.1.ffn_down.weight.in_sum2"] / 4)
    assert np.array_equal(found["head"], tensors["output.weight.in_sum2"] / 4)
    assert len(found) == 15


def test_what_the_gguf_package_writes_is_read(decoder: Decoder, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    tensors = tensors_of(decoder, count=3)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["a.txt", "b.txt"])
    for name, values in tensors.items():
        writer.add_tensor(name, values[None])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_importance(tmp_path / "a.gguf", decoder)
    assert np.array_equal(found["layers.0.attention.o"], tensors["blk.0.attn_output.weight.in_sum2"] / np.float32(3))


def test_a_matrix_without_the_head_leaves_it_out(decoder: Decoder, tmp_path: Path) -> None:
    tensors = {name: value for name, value in tensors_of(decoder).items() if not name.startswith("output.")}
    assert "head" not in read_importance(imatrix(tmp_path / "a.gguf", tensors), decoder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_cut_off_anywhere_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    header = header_bytes(SMALL)
    (tmp_path / "a.gguf").write_bytes(header[: data.draw(st.integers(0, len(header) - 1))])
    with pytest.raises(ExportError, match=r"a\.gguf'"):
        read_gguf(tmp_path / "a.gguf")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_never_anything_else(
    data: st.DataObject, decoder: Decoder, tmp_path: Path
) -> None:
    damaged = bytearray(imatrix_bytes(dict(list(tensors_of(decoder).items())[:4])))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 400))] = data.draw(st.integers(0, 255))
    (tmp_path / "a.gguf").write_bytes(damaged)
    with pytest.raises(ExportError):  # it lacks most tensors anyway
        read_importance(tmp_path / "a.gguf", decoder)


@pytest.mark.parametrize(("start", "message"), [
    (b"PK\x03\x04", "no GGUF file"),
    (b"GGUF" + struct.pack("<I", 1), "version 1; expected 2 or 3"),
    (b"GGUF" + struct.pack(">I", 3), "big-endian GGUF.*expected little-endian"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40), "damaged or cut off in its metadata"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 0) + struct.pack("<I", 5), "a tensor of 5 dimensions"),
    (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 0) + struct.pack("<IQIQ", 1, 1 << 60, 0, 0), "damaged or cut off"),
])  # fmt: skip
def test_what_is_no_such_file_is_named(start: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(start)
    with pytest.raises(ExportError, match=message):
        read_gguf(tmp_path / "a.gguf")


def test_a_file_that_is_not_there_is_named(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot read '.*none\.gguf'"):
        read_importance(tmp_path / "none.gguf", decoder)


def test_a_model_is_no_importance_matrix(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="of the type 'model'; expected 'imatrix'"):
        read_importance(imatrix(tmp_path / "a.gguf", SMALL, kind="model"), decoder)


@pytest.mark.parametrize(("changes", "message"), [
    ({"blk.1.attn_k.weight.in_sum2": None}, r"has no tensor 'blk\.1\.attn_k\.weight\.in_sum2'.*self_attn\.k_proj"),
    ({"blk.1.attn_k.weight.counts": None}, "has no tensor"),
    ({"blk.1.attn_k.weight.in_sum2": np.ones(63)}, "has 63 sums and 1 counts.*needs 64 and 1"),
    ({"blk.1.attn_k.weight.in_sum2": np.ones(640)}, "has 640 values of type 0"),
    ({"blk.1.attn_k.weight.counts": np.ones(2)}, "has 64 sums and 2 counts"),
    ({"blk.1.attn_k.weight.counts": np.zeros(1)}, "a count of 0; expected"),
    ({"blk.1.attn_k.weight.in_sum2": np.full(64, -1.0)}, "sums from -1 to -1"),
    ({"blk.1.attn_k.weight.in_sum2": np.array([np.nan, *[1] * 63])}, "expected finite sums"),
    ({"output.weight.in_sum2": np.full(64, np.inf)}, "expected finite sums"),
])  # fmt: skip
def test_what_does_not_fit_the_model_is_named(
    changes: dict[str, np.ndarray | None], message: str, decoder: Decoder, tmp_path: Path
) -> None:
    tensors = {name: value for name, value in (tensors_of(decoder) | changes).items() if value is not None}
    with pytest.raises(ExportError, match=message):
        read_importance(imatrix(tmp_path / "a.gguf", tensors), decoder)


def test_values_that_the_file_is_too_short_for_are_refused(decoder: Decoder, tmp_path: Path) -> None:
    whole = imatrix_bytes(tensors_of(decoder))
    (tmp_path / "a.gguf").write_bytes(whole[:-100])
    with pytest.raises(ExportError, match="Is it whole"):
        read_importance(tmp_path / "a.gguf", decoder)
