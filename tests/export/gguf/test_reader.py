"""Models in GGUF files: read where they are whole, refused by name where they are not, in memory that is bounded."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from embedllm.errors import ExportError
from embedllm.export.gguf.reader import read_model
from embedllm.export.gguf.types import TYPES, floats
from tests.support import gguf_bytes
from tests.support.gguf_bytes import LIST, STRING, Tensor, entry, number, text, texts

PAIR = (Tensor(name="a"), Tensor(name="b", offset=256))
WHOLE = gguf_bytes.file(
    [entry("general.architecture", STRING, text("llama")), number("llama.block_count", 2),
     texts("tokenizer.ggml.tokens", [f"token {n}" for n in range(200)])], PAIR, data=512)  # fmt: skip


def write(folder: Path, data: bytes, name: str = "m.gguf") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def part(index: int, count: int, tensors: tuple[Tensor, ...], *, total: int = 2) -> bytes:
    entries = [number("split.no", index), number("split.count", count), number("split.tensors.count", total)]
    return gguf_bytes.file(entries, tensors, data=512)


def test_lists_and_places_are_read(tmp_path: Path) -> None:
    model = read_model(write(tmp_path, WHOLE))
    assert model.metadata["tokenizer.ggml.tokens"] == [f"token {n}" for n in range(200)]
    assert {name: (t.shape, t.bytes) for name, t in model.tensors.items()} == {"a": ((2, 32), 256), "b": ((2, 32), 256)}
    assert model.tensors["b"].offset == len(WHOLE) - 256


def test_numbers_of_lists_are_read(tmp_path: Path) -> None:
    values = struct.pack("<IQ3f", 6, 3, 0.5, -1, 2)
    model = read_model(write(tmp_path, gguf_bytes.file([entry("scores", LIST, values)])))
    found = model.metadata["scores"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [0.5, -1, 2]


def test_sizes_of_types_are_those_of_the_gguf_package() -> None:
    for number_, kind in TYPES.items():
        theirs = gguf.GGMLQuantizationType(number_)
        assert (kind.name, (kind.values, kind.bytes)) == (theirs.name, gguf.GGML_QUANT_SIZES[theirs])


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])  # the others: test_dequantize.py
def test_floats_are_those_of_the_gguf_package(name: str) -> None:
    kind = next(kind for kind in TYPES.values() if kind.name == name)
    theirs = gguf.GGMLQuantizationType[name]
    raw = np.random.default_rng(0).integers(0, 256, (64, kind.bytes), np.uint8)
    raw[:, -1] &= 0x7B if name == "F16" else 0x7E  # numbers
    expected = gguf.dequantize(raw.reshape(-1), theirs) if name == "BF16" else raw.view(
        "<f2" if name == "F16" else "<f4").astype(np.float32)  # fmt: skip
    assert np.array_equal(floats(kind, bytearray(raw.tobytes())), expected.reshape(-1))


def test_parts_are_one_model_by_any_of_their_names(tmp_path: Path) -> None:
    for index, tensor in enumerate(PAIR):
        write(tmp_path, part(index, 2, (tensor,)), f"m-0000{index + 1}-of-00002.gguf")
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        model = read_model(tmp_path / name)
        assert [model.tensors[key].file.name for key in "ab"] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


@pytest.mark.parametrize(("second", "name", "message"), [
    (None, "", "'m-00002-of-00002.gguf' of 2 parts is not in"),
    (part(0, 2, PAIR[1:]), "m-00002-of-00002.gguf", r"says that it is part 0 .* of 2; expected 1 of 2"),
    (part(1, 3, PAIR[1:]), "m-00002-of-00002.gguf", r"part 1 .* of 3; expected 1 of 2"),
    (part(1, 2, PAIR[:1]), "m-00002-of-00002.gguf", "both have a tensor 'a'"),
    (part(1, 2, (*PAIR[1:], Tensor(name="c"))), "m-00002-of-00002.gguf", "have 3 tensors; expected 2"),
])  # fmt: skip
def test_parts_that_do_not_belong_together_are_refused(
    second: bytes | None, name: str, message: str, tmp_path: Path
) -> None:
    first = write(tmp_path, part(0, 2, PAIR[:1]), "m-00001-of-00002.gguf")
    if second is not None:
        write(tmp_path, second, name)
    with pytest.raises(ExportError, match=message):
        read_model(first)


def test_a_part_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is one of 2 parts"):
        read_model(write(tmp_path, part(0, 2, PAIR)))
    with pytest.raises(ExportError, match="part 3 of 2 by its name"):
        read_model(write(tmp_path, part(0, 2, PAIR), "m-00003-of-00002.gguf"))


@pytest.mark.parametrize(("data", "message"), [
    (gguf_bytes.file(tensors=PAIR, data=511), "'b' has 256 bytes at byte"),
    (gguf_bytes.file(tensors=(PAIR[0], Tensor(name="b", offset=1 << 63)), data=512), "'b' has 256 bytes at byte"),
    (gguf_bytes.file(tensors=(PAIR[0], Tensor(name="b", offset=128)), data=512), "'a' and 'b' lie on each other"),
    (gguf_bytes.file(tensors=(PAIR[0], PAIR[0]), data=512), "'a' is there twice"),
    (gguf_bytes.file([number("a", 1), number("a", 1)]), "metadata .*'a' is there twice"),
    (gguf_bytes.file(tensors=(Tensor(name="a", type=99),), data=512), "of type 99, which is not known"),
    (gguf_bytes.file(tensors=(Tensor(name="a", type=4),), data=512), "of type 4, which is not known"),
    (gguf_bytes.file(tensors=(Tensor(name="a", type=2, shape=(2, 33)),), data=512), "whole blocks of 32 values"),
    (gguf_bytes.file(tensors=(Tensor(name="a", shape=(0, 32)),), data=512), "whole blocks"),
    (gguf_bytes.file(tensors=(Tensor(name="a", shape=()),), data=512), "whole blocks"),
    (gguf_bytes.file(tensors=(Tensor(name="a", shape=(1,) * 5),), data=512), "a tensor of 5 dimensions"),
    (gguf_bytes.file(tensors=(Tensor(name="a", shape=(1 << 40, 1 << 40)),), data=512), "damaged or cut off"),
    (gguf_bytes.file(counts=(1 << 60, 0)), "list of tensors"),
    (gguf_bytes.file(counts=(0, 1 << 60)), "metadata"),
    (gguf_bytes.file([texts("a", ["b"], count=1 << 60)]), "metadata .*bytes more are needed"),
    (gguf_bytes.file([entry("a", LIST, struct.pack("<IQ", 6, 1 << 62))]), "metadata .*bytes more are needed"),
    (gguf_bytes.file([entry("a", STRING, text("b", length=1 << 62))]), "a string of"),
    (gguf_bytes.file([entry("a", STRING, text(b"\xff\xfe"))]), "metadata .*utf-8"),
    (gguf_bytes.file([entry("a", LIST, struct.pack("<IQ", LIST, 1) * 20)]), "a value of type 9"),
    (gguf_bytes.file([entry("a", 77, b"")]), "a value of type 77"),
    (gguf_bytes.file([number("general.alignment", 0)]), "its alignment"),
    (gguf_bytes.file(version=3 << 24), "big-endian"),
    (gguf_bytes.file(version=4), "of version 4"),
])  # fmt: skip
def test_a_file_that_no_writer_makes_is_refused_by_its_place(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        read_model(write(tmp_path, data))


def mutants(count: int) -> list[bytes]:
    """Damaged files, the same ones each time: cut off, with absurd numbers, bits turned, stretches moved or doubled."""
    rng, found = random.Random(0), list[bytes]()
    for index in range(count):
        data = bytearray(WHOLE)
        kind, place = index % 5, rng.randrange(4, len(data) - 512)
        if kind == 0:
            del data[rng.randrange(len(data)) :]
        elif kind == 1:
            data[place : place + 8] = struct.pack("<Q", rng.choice([1 << 63, (1 << 64) - 1, 1 << 40, 1 << 31, 0]))
        elif kind == 2:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(4, len(data) - 512)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del data[place : place + rng.randint(1, 16)]
        else:
            data[place:place] = data[place : place + rng.randint(1, 64)]
        found.append(bytes(data))
    return found


def test_damaged_files_are_refused_in_little_memory(tmp_path: Path) -> None:
    refused, read = 0, 0
    tracemalloc.start()
    try:
        for data in mutants(400):
            path = write(tmp_path, data)
            tracemalloc.reset_peak()
            try:
                model = read_model(path)
            except ExportError as error:
                refused += str(path) in str(error)  # any other makes this fail below
            else:  # the damage is within a text, or a number that can be another
                read += 1
                assert all(t.offset + t.bytes <= len(data) for t in model.tensors.values())
            assert tracemalloc.get_traced_memory()[1] < 2_000_000, "a file of 5 kB"
    finally:
        tracemalloc.stop()
    assert refused + read == 400
    assert refused > 200
