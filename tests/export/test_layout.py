"""weights.safetensors: a golden header, neighbours without gaps, a writer that notices every slip."""

from __future__ import annotations

import gc
import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from embedllm.export import Recipe
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.layout import PAGE, Entry, Layout, Writer, lay_out
from embedllm.export.writing.plan import Plan, plan
from embedllm.files.safetensors_header import read_header
from embedllm.package.architecture.weights import Linear
from embedllm.package.tensors import layer_runs
from tests.support.tiny import tiny_config

DTYPES = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights") / "weights.safetensors"


def values_of(layout: Layout, seed: int = 0) -> dict[str, np.ndarray]:
    """Random bytes for every entry that is not a gap, in file order."""
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 256, place.entry.length, np.uint8).view(DTYPES[place.entry.dtype])
        for name, place in layout.placed.items()
        if not name.startswith("gap.")
    }


def write_all(file: Path, layout: Layout, values: dict[str, np.ndarray]) -> str:
    with Writer(file, layout) as writer:
        for name, value in values.items():
            writer.write(name, value)
        return writer.finish()


# The layout


def test_a_tiny_file_byte_for_byte(tmp_path: Path) -> None:
    """Two runs: `a` alone; `b` and `c` as neighbours, at the next multiple of 64 behind the page of the header."""
    layout = lay_out(
        [[Entry("a", "F32", (2,))], [Entry("b", "U8", (1, 3)), Entry("c", "F16", (1,))]], {"format": "embedllm"}
    )
    file = tmp_path / "weights.safetensors"
    values = {"a": np.array([1, -2], np.float32), "b": np.array([[7, 8, 9]], np.uint8), "c": np.ones(1, np.float16)}
    write_all(file, layout, values)
    header = (
        '{"__metadata__":{"format":"embedllm"},'
        '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        '"gap.1":{"dtype":"U8","shape":[56],"data_offsets":[8,64]},'
        '"b":{"dtype":"U8","shape":[1,3],"data_offsets":[64,67]},'
        '"c":{"dtype":"F16","shape":[1],"data_offsets":[67,69]}}'
    )
    data = bytes.fromhex("0000803f000000c0") + bytes(56) + b"\7\x08\x09" + bytes.fromhex("003c")
    assert file.read_bytes() == b"\xf8\x0f\0\0\0\0\0\0" + header.ljust(4088).encode() + data
    assert layout.size == 4096 + 69
    assert layout.placed["b"].offset == 4096 + 64


@st.composite
def runs(draw: st.DrawFn) -> list[list[Entry]]:
    shape = st.lists(st.sampled_from((0, 1, 2, 3, 7, 64, 300)), min_size=1, max_size=3)
    sizes = draw(st.lists(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shape), min_size=1, max_size=3),
                          min_size=1, max_size=5))  # fmt: skip
    return [
        [Entry(f"{run}.{index}", dtype, tuple(shape)) for index, (dtype, shape) in enumerate(entries)]
        for run, entries in enumerate(sizes)
        if sum(math.prod(shape) for _, shape in entries) < 1 << 18
    ]


@given(runs())
def test_neighbours_touch_and_runs_are_aligned_and_nothing_is_left_uncovered(runs: list[list[Entry]]) -> None:
    layout = lay_out(runs, {})
    places = list(layout.placed.values())
    end = len(layout.header)
    for place in places:
        assert place.offset == end
        end += place.entry.length
    assert end == layout.size
    for run in runs:
        start, length = layout.span([entry.name for entry in run])
        assert length == sum(entry.length for entry in run)
        assert start % (PAGE if length >= 1 << 16 else 64) == 0
    gaps = [place.entry.length for place in places if place.entry.name.startswith("gap.")]
    assert all(0 < gap < PAGE for gap in gaps)


@given(runs(), st.integers(0, 2**32))
def test_the_safetensors_package_reads_every_tensor_as_it_was_written(
    file: Path, runs: list[list[Entry]], seed: int
) -> None:
    layout = lay_out(runs, {"format": "embedllm"})
    values = values_of(layout, seed)
    digest = write_all(file, layout, values)
    assert file.stat().st_size == layout.size
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    theirs = load_file(file)
    ours = read_header(file).tensors
    assert theirs.keys() == ours.keys() == layout.placed.keys()
    for name, value in values.items():
        assert theirs[name].shape == layout.placed[name].entry.shape
        assert theirs[name].tobytes() == value.tobytes()
        assert ours[name].offset == layout.placed[name].offset


def test_span_refuses_entries_that_do_not_touch() -> None:
    layout = lay_out([[Entry("a", "U8", (3,)), Entry("b", "U8", (61,))], [Entry("c", "U8", (1,))]], {})
    start = layout.placed["a"].offset
    assert layout.span(["a", "b", "c"]) == (start, 65)  # the first run happens to end at a multiple of 64
    layout = lay_out([[Entry("a", "U8", (3,)), Entry("b", "U8", (60,))], [Entry("c", "U8", (1,))]], {})
    with pytest.raises(ValueError, match=rf"'c' starts at byte {start + 64}, not at {start + 63} behind its neighbour"):
        layout.span(["a", "b", "c"])
    with pytest.raises(ValueError, match="'a' starts at byte"):
        layout.span(["b", "a"])
    with pytest.raises(ValueError, match="'a' starts at byte"):
        layout.span(["a", "a"])


def test_two_entries_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        lay_out([[Entry("a", "U8", (1,))], [Entry("a", "U8", (1,))]], {})


# The layout of a model

WIDE = {"hidden_size": 232, "intermediate_size": 521, "head_dim": 80}  # so that few tensors end at a multiple of 64


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(symmetric=False), Recipe(bits=8), Recipe(bits=16)], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_what_one_product_reads_lies_in_one_piece(family: str, recipe: Recipe) -> None:
    decided = plan(describe(Config(tiny_config(family, **WIDE))), recipe)
    for layer in decided.decoder.layers:
        for together in layer_runs(layer):
            for kind in kinds_of(decided, together[0]):
                start, length = decided.layout.span([f"{linear.name}.{kind}" for linear in together])
                if kind != "bias":  # biases are small and lie with the norms
                    assert start % (PAGE if length >= 1 << 16 else 64) == 0


def kinds_of(decided: Plan, linear: Linear) -> list[str]:
    packing = decided.packing[linear.name]
    kinds = ["weight", *(["scale"] if packing.quantized else []), *([] if packing.symmetric else ["zero"])]
    return kinds + (["bias"] if linear.bias else [])


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_table_is_stored_once(tied: bool) -> None:
    decided = plan(describe(Config(tiny_config("qwen3", tie_word_embeddings=tied))), Recipe(symmetric=True))
    tables = [name for name in decided.layout.placed if name.startswith(("embedding.", "head."))]
    expected = ["embedding.weight", "embedding.scale"]
    assert tables == (expected if tied else [*expected, "head.weight", "head.scale"])


# The writer

LAYOUT = lay_out(
    [[Entry("a", "F32", (2,)), Entry("none", "F32", (0, 4))], [Entry("b", "U8", (5,)), Entry("c", "F16", (3,))]], {}
)


@given(st.lists(st.integers(0, 5), max_size=12))
def test_a_file_written_in_pieces_equals_one_written_whole(file: Path, cuts: list[int]) -> None:
    values = values_of(LAYOUT)
    digest = write_all(file, LAYOUT, values)
    whole = file.read_bytes()
    with Writer(file, LAYOUT) as writer:
        for name, value in values.items():
            left = memoryview(value.tobytes())
            for cut in cuts:
                writer.write(name, left[:cut])
                left = left[cut:]
            writer.write(name, left)
        assert writer.finish() == digest
    assert file.read_bytes() == whole


def test_the_writer_refuses_another_order(tmp_path: Path) -> None:
    with Writer(tmp_path / "file", LAYOUT) as writer:
        with pytest.raises(ValueError, match="5 bytes of 'b' came where 8 bytes of 'a' are due"):
            writer.write("b", bytes(5))
        writer.write("a", bytes(6))
        with pytest.raises(ValueError, match="5 bytes of 'b' came where 2 bytes of 'a' are due"):
            writer.write("b", bytes(5))


def test_the_writer_refuses_too_much(tmp_path: Path) -> None:
    with Writer(tmp_path / "file", LAYOUT) as writer:
        with pytest.raises(ValueError, match="9 bytes of 'a' came where 8 bytes of 'a' are due"):
            writer.write("a", bytes(9))
        for name, value in values_of(LAYOUT).items():
            writer.write(name, value)
        with pytest.raises(ValueError, match="1 bytes of 'c' came where 0 bytes of 'the end' are due"):
            writer.write("c", bytes(1))


def test_the_writer_refuses_to_finish_early(tmp_path: Path) -> None:
    with Writer(tmp_path / "file", LAYOUT) as writer:
        with pytest.raises(ValueError, match="entry 'a' was not written to its end"):
            writer.finish()
        writer.write("a", bytes(8))
        writer.write("b", bytes(4))
        with pytest.raises(ValueError, match="entry 'b' was not written to its end"):
            writer.finish()


@pytest.mark.parametrize("data", [b"", np.zeros((0, 4), np.float32), np.zeros(0, np.uint8)], ids=repr)
def test_the_writer_takes_nothing_as_nothing(data: bytes | np.ndarray, tmp_path: Path) -> None:
    with Writer(tmp_path / "file", LAYOUT) as writer:
        for name, value in values_of(LAYOUT).items():
            writer.write(name, data)
            writer.write(name, value)
        writer.finish()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("page", [1, 20], ids=["in the data", "in the header"])
def test_a_full_disk_leaves_no_open_file(page: int) -> None:
    """A file left open cannot be removed on Windows. The warning about one would fail this test."""
    layout = Layout(bytes(page * PAGE), LAYOUT.placed, LAYOUT.size)
    with pytest.raises(OSError, match="No space left"):
        write_all(Path("/dev/full"), layout, values_of(LAYOUT))
    gc.collect()
