"""A safetensors header is read right, or refused with a PackageError: whatever lies in the file."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from embedllm.errors import PackageError
from embedllm.files.safetensors_header import BYTES, TensorFile, read_header


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensors") / "some.safetensors"


def written(file: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_header_by_hand(tmp_path: Path) -> None:
    """The example of the format's own document, shortened: 8 bytes of length, JSON, data."""
    text = b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[1,16,2],"data_offsets":[0,64]}}'
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x5b\0\0\0\0\0\0\0" + text + bytes(64))
    found = read_header(file)
    (tensor,) = found.tensors.values()
    assert (tensor.file, tensor.dtype, tensor.shape) == (file, "F16", (1, 16, 2))
    assert (tensor.offset, tensor.length) == (8 + 0x5B, 64)
    assert found.metadata == {"format": "pt"}


def test_a_file_of_the_safetensors_package_is_read_alike(file: Path) -> None:
    values = {
        "scalar": np.array(3.0, np.float32),
        "empty": np.zeros((0, 4), np.float16),
        "matrix": np.arange(6, dtype=np.int64).reshape(2, 3),
        "bytes": np.arange(5, dtype=np.uint8),
    }
    file.write_bytes(save(values))
    tensors = read_header(file).tensors
    raw = file.read_bytes()
    assert tensors.keys() == values.keys()
    for name, tensor in tensors.items():
        assert tensor.shape == values[name].shape
        assert raw[tensor.offset : tensor.offset + tensor.length] == values[name].tobytes()


def test_every_truncation_is_refused(file: Path) -> None:
    whole = save({"a": np.arange(7, dtype=np.float32), "b": np.ones(3, np.uint8)})
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(PackageError, match=r"some\.safetensors' is (no whole|cut off)"):
            read_header(file)


@pytest.mark.parametrize("length", [2**63 - 1, 2**64 - 1, 100_000_001, 9])
def test_a_header_longer_than_the_file_or_the_limit_is_refused_before_it_is_read(length: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(length.to_bytes(8, "little"))
        stream.truncate(200_000_000 if length == 100_000_001 else 16)  # a file of nothing, which takes no space
    tracemalloc.start()
    try:
        with pytest.raises(PackageError, match=f"header should be {length} bytes long"):
            read_header(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


NESTED = b"[" * 100_000
NOT_OURS = {
    "nothing": b"",
    "no JSON": b"PK\x03\x04",
    "not UTF-8": b'{"\xff": 1}',
    "a cut JSON": b'{"a": {"dtype": "F32"',
    "nested lists": NESTED,
    "nested objects": b'{"a":' * 100_000,
    "a number of many digits": b'{"a": ' + b"9" * 5000 + b"}",
    "a list": b"[]",
    "a string": b'"header"',
    "null": b"null",
}


@pytest.mark.parametrize("text", NOT_OURS.values(), ids=NOT_OURS)
def test_a_header_that_is_no_json_object_is_refused(text: bytes, file: Path) -> None:
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(PackageError, match=r"some\.safetensors' is damaged: its header is no JSON"):
        read_header(file)


WRONG_ENTRIES = {
    "a list": [],
    "a number": 3,
    "null": None,
    "no dtype": {"shape": [2], "data_offsets": [0, 8]},
    "no shape": {"dtype": "F32", "data_offsets": [0, 8]},
    "no offsets": {"dtype": "F32", "shape": [2]},
    "unknown dtype": entry(dtype="F31"),
    "dtype null": entry(dtype=None),
    "dtype a list": entry(dtype=["F32"]),
    "shape null": entry(shape=None),
    "shape a number": entry(shape=2),
    "shape a string": entry(dtype="U8", shape="", offsets=[0, 1]),
    "shape an object": entry(dtype="U8", shape={}, offsets=[0, 1]),
    "a fraction": entry(shape=[2.0]),
    "a truth": entry(dtype="F32", shape=[True], offsets=[0, 4]),
    "truths as offsets": entry(dtype="U8", shape=[1], offsets=[False, True]),
    "negative": entry(shape=[-2]),
    "two negatives": entry(shape=[-1, -2]),
    "offsets negative": entry(offsets=[-8, 0]),
    "one offset": entry(offsets=[8]),
    "three offsets": entry(offsets=[0, 4, 8]),
    "offsets null": entry(offsets=None),
    "offsets a string": entry(offsets="08"),
    "NaN": entry(shape=[math.nan]),
    "infinity": entry(offsets=[0, math.inf]),
    "beyond 64 bits": entry(dtype="U8", shape=[2**64], offsets=[0, 2**64]),
    "numbers of a thousand digits": entry(shape=[10**1000] * 5),
    "many dimensions": entry(shape=[1] * 1000),
}


@pytest.mark.parametrize("wrong", WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
def test_an_entry_that_is_not_understood_is_named(wrong: object, file: Path) -> None:
    with pytest.raises(PackageError, match=r"the entry of 'layers\.0' is not understood"):
        read_header(written(file, {"layers.0": wrong}, bytes(64)))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (entry(shape=[3]), r"'a' has 8 bytes; F32 \[3\] needs 12"),
        (entry(shape=[0]), r"'a' has 8 bytes; F32 \[0\] needs 0"),
        (entry(offsets=[8, 0]), r"'a' has -8 bytes; F32 \[2\] needs 8"),
        (entry(shape=[2**62]), r"'a' has 8 bytes; F32"),
        (entry(shape=[2**62] * 64), r"'a' has 8 bytes; F32"),
        (entry(shape=[2**60], offsets=[0, 2**62]), "cut off: 'a' ends at byte"),
        (entry(offsets=[60, 68]), "cut off: 'a' ends at byte"),
        (entry(shape=[0], offsets=[65, 65]), "cut off: 'a' ends at byte"),
    ],
)
def test_sizes_that_contradict_each_other_are_named(wrong: object, says: str, file: Path) -> None:
    with pytest.raises(PackageError, match=says):
        read_header(written(file, {"a": wrong}, bytes(64)))


@pytest.mark.parametrize("metadata", [None, [], "pt", 3])
def test_metadata_that_is_no_object_counts_as_none(metadata: object, file: Path) -> None:
    assert read_header(written(file, {"__metadata__": metadata})) == TensorFile({}, {})


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"cannot read '.*missing.*': No such file"):
        read_header(tmp_path / "missing.safetensors")
    with pytest.raises(PackageError, match="cannot read"):
        read_header(tmp_path)


numbers = st.one_of(st.integers(-2, 70), st.sampled_from((2**31, 2**32, 2**63, 2**64, 2**64 - 8, 10**400)))
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def entries(draw: st.DrawFn) -> object:
    """Mostly right, so that the later checks are met too."""
    dtype = draw(st.sampled_from(sorted(BYTES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    start = draw(st.integers(0, 40))
    offsets = [start, start + math.prod(shape) * BYTES[dtype]]
    right = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    wrong = draw(st.sampled_from(("", "", "dtype", "shape", "data_offsets", "number", "all")))
    if wrong == "number":
        shape.append(draw(numbers))
    elif wrong == "all":
        return draw(junk)
    elif wrong:
        right[wrong] = draw(junk)
    return right


def checked(file: Path) -> TensorFile | None:
    """What was read, with its promises checked; None when it was refused."""
    found, message = None, ""
    tracemalloc.start()
    try:
        found = read_header(file)
    except PackageError as error:
        message = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    if found is None:
        assert str(file) in message
        return None
    size = file.stat().st_size
    for tensor in found.tensors.values():
        assert tensor.length == math.prod(tensor.shape) * BYTES[tensor.dtype]
        assert 8 <= tensor.offset <= tensor.offset + tensor.length <= size
        assert all(type(n) is int for n in (*tensor.shape, tensor.offset, tensor.length))
    return found


@given(st.dictionaries(st.text(max_size=5), entries(), max_size=4), st.integers(0, 64))
def test_any_json_header_gives_a_file_that_holds_its_tensors_or_a_package_error(
    file: Path, header: dict[str, object], data: int
) -> None:
    checked(written(file, header, bytes(data)))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_a_file_that_holds_its_tensors_or_a_package_error(
    file: Path, content: bytes, says_its_length: bool
) -> None:
    file.write_bytes(len(content).to_bytes(8, "little") + content if says_its_length else content)
    checked(file)


@given(st.integers(8, 10_000), st.integers(0, 255), st.booleans())
def test_a_changed_byte_is_refused_or_read_as_the_safetensors_package_reads_it(
    file: Path, position: int, value: int, is_cut: bool
) -> None:
    """We may read more (overlaps, a tail that no tensor covers): that harms nobody. We must not read less."""
    whole = bytearray(save({"a": np.arange(4, dtype=np.float32), "b": np.arange(3, dtype=np.uint8)}))
    whole[position % len(whole)] = value
    file.write_bytes(whole[:-1] if is_cut else whole)
    found = checked(file)
    theirs = dict(read_by_safetensors(file))
    if theirs:
        assert found is not None
        assert {name: list(tensor.shape) for name, tensor in found.tensors.items()} == theirs


def read_by_safetensors(file: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118  # it is no mapping
                yield name, opened.get_slice(name).get_shape()
    except SafetensorError:
        return
