"""Every variant over one weights file, and one added to a folder without its source."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

from embedllm.backends.gpu.directml import DirectMLEngine
from embedllm.backends.ort.engine import devices
from embedllm.errors import ExportError, PackageError
from embedllm.export import Recipe, convert
from embedllm.export import graphs as variants
from embedllm.export.graphs import ALL_NAMES, NAMES, write_variant
from embedllm.export.layout import CONSTANTS
from embedllm.files.atomic import write_json
from embedllm.files.safetensors_header import read_header
from embedllm.package.graph_variants import DIRECTML, VARIANTS, WASM
from embedllm.package.package import MANIFEST, WEIGHTS, open_package
from embedllm.profiling.inspection.package_report import describe_package
from tests.support.tiny import tiny_checkpoint

MakePackage = Callable[..., Path]
RECIPES = {
    "4 bits": Recipe(),
    "4 bits, zero points": Recipe(symmetric=False),
    "8 bits": Recipe(bits=8, group_size=16),
    "16 bits": Recipe(bits=16),
    "mixed, exact": Recipe(head_bits=8, exact=True),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tiny_package: MakePackage, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(tiny_package("qwen3"), tmp_path / "package"))


def forget(folder: Path, variant: str) -> None:
    """Makes it a folder that an older version wrote, which had not this variant."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    file = next(graph["file"] for graph in manifest["graphs"] if graph["variant"] == variant)
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["variant"] != variant]
    del manifest["files"][file]
    (folder / file).unlink()
    write_json(folder / MANIFEST, manifest)


# One weights file


def spans(folder: Path, file: str) -> Iterator[tuple[int, int]]:
    """(offset, length) of all that a graph reads of the weights file."""
    if file.endswith(".xml"):
        for constant in ElementTree.parse(folder / file).getroot().iterfind("layers/layer[@type='Const']/data"):
            yield int(constant.attrib["offset"]), int(constant.attrib["size"])
        return
    for tensor in onnx.load(folder / file, load_external_data=False).graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:
            assert place["location"] == WEIGHTS
            yield int(place["offset"]), int(place["length"])


def test_every_variant_reads_the_same_bytes(tiny_package: MakePackage) -> None:
    """Which tensors a variant reads, by the hashes of the bytes at its own offsets: all of them, in each variant."""
    folder = tiny_package("qwen2", Recipe(symmetric=False, head_bits=8, embedding_bits=8))
    data, header = (folder / WEIGHTS).read_bytes(), read_header(folder / WEIGHTS)
    entries = {n: t for n, t in header.tensors.items() if not n.startswith("gap.") and n != CONSTANTS}
    expected = {n: hashlib.sha256(data[t.offset : t.offset + t.length]).hexdigest() for n, t in entries.items()}
    graphs = open_package(folder).graphs
    assert [graph.variant for graph in graphs] == list(NAMES)
    for graph in graphs:
        if graph.variant == WASM.name:
            continue  # reads floats that are made of these bytes: tests/package/test_wasm_floats.py
        read: dict[str, str] = {}
        for start, length in spans(folder, graph.file):
            piece = data[start : start + length]
            for name, t in entries.items():
                if start <= t.offset and t.offset + t.length <= start + length:
                    own = piece[t.offset - start : t.offset - start + t.length]
                    read[name] = hashlib.sha256(own).hexdigest()
        assert read == expected, graph.variant


def test_a_folder_with_all_variants_is_hardly_larger_than_its_weights(tmp_path: Path) -> None:
    """Graphs are kilobytes a layer. Two layers of the size of a model of 0.6 B parameters, most of which has 28."""
    checkpoint = tiny_checkpoint(
        tmp_path / "checkpoint", dtype="F16", hidden_size=1024, intermediate_size=3072, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, vocab_size=4096,
    )  # fmt: skip
    package = open_package(convert(checkpoint, tmp_path / "package", Recipe(method="nearest")))  # of the same size
    assert len(package.graphs) == len(NAMES)
    graphs = sum(package.files[graph.file].bytes for graph in package.graphs)
    assert graphs <= 0.01 * package.files[WEIGHTS].bytes


def test_inspect_shows_every_variant_and_that_nothing_is_stored_twice(tiny_package: MakePackage) -> None:
    found = describe_package(open_package(tiny_package("qwen3"))).graphs
    assert [graph.variant for graph in found] == list(NAMES)
    assert [(graph.unused_bytes, graph.problems) for graph in found] == [(0, ())] * len(NAMES)


# Added to a folder


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_added_variant_is_that_of_an_export(
    recipe: str, variant: str, tiny_package: MakePackage, tmp_path: Path
) -> None:
    fresh = tiny_package("qwen2", RECIPES[recipe])
    folder = Path(shutil.copytree(fresh, tmp_path / "package"))
    forget(folder, variant)
    assert contents(folder) != contents(fresh)
    write_variant(folder, variant)
    assert contents(folder) == contents(fresh)
    open_package(folder).check()


def test_an_added_variant_runs(folder: Path) -> None:
    forget(folder, DIRECTML.name)
    graph = write_variant(folder, DIRECTML.name)
    session = DirectMLEngine(open_package(folder), graph, devices()[0], provider="CPUExecutionProvider").open()
    assert session.feed([1, 2, 3]).size == 307


def test_writing_a_variant_anew_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    for variant in NAMES:
        write_variant(folder, variant)
    assert contents(folder) == before


def test_a_graph_of_another_version_is_replaced_and_what_was_measured_of_it_forgotten(folder: Path) -> None:
    expected = (folder / DIRECTML.file).read_bytes()
    (folder / DIRECTML.file).write_bytes(b"of old")
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"][DIRECTML.file] = {"bytes": 6, "sha256": hashlib.sha256(b"of old").hexdigest()}
    manifest["verification"] = {"tokens": 48, DIRECTML.file: {"kl_mean": 1.0}, "model.onnx": {"kl_mean": 2.0}}
    write_json(folder / MANIFEST, manifest)
    write_variant(folder, DIRECTML.name)
    assert (folder / DIRECTML.file).read_bytes() == expected
    package = open_package(folder)
    package.check()
    assert package.manifest["verification"] == {"tokens": 48, "model.onnx": {"kl_mean": 2.0}}


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_folder_is_usable_wherever_the_writing_stops(
    step: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of its three renames fails: the folder opens, and writing it again completes it."""
    expected = contents(folder)
    old = b"another graph"
    (folder / DIRECTML.file).write_bytes(old)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"][DIRECTML.file] = {"bytes": len(old), "sha256": hashlib.sha256(old).hexdigest()}
    write_json(folder / MANIFEST, manifest)
    replace, done = Path.replace, 0

    def failing(path: Path, target: Path) -> Path:
        nonlocal done
        done += 1
        if done == step:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(OSError, match="No space"):
            write_variant(folder, DIRECTML.name)
    open_package(folder).check()
    write_variant(folder, DIRECTML.name)
    assert {name: data for name, data in contents(folder).items() if not name.endswith(".partial")} == expected


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("damage", ["missing", "longer", "other bytes"])
def test_a_damaged_graph_is_mended_while_others_are_damaged_too(damage: str, variant: str, folder: Path) -> None:
    before = contents(folder)
    for graph in open_package(folder).graphs:
        path = folder / graph.file
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes() + b"x" if damage == "longer" else b"x" * path.stat().st_size)
    graph = write_variant(folder, variant)
    assert (folder / graph.file).read_bytes() == before[graph.file]
    for other in NAMES:
        write_variant(folder, other)
    assert contents(folder) == before


def test_an_unknown_variant_is_told_what_there_is(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(ExportError, match=rf"no variant 'dml'; expected one of: {', '.join(ALL_NAMES)}\."):
        write_variant(folder, "dml")
    assert contents(folder) == before


def test_a_variant_that_a_model_cannot_have_is_refused_with_the_reason(
    tiny_package: MakePackage, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_package("mistral", sliding_window=16), tmp_path / "package"))
    before = contents(folder)
    with pytest.raises(
        ExportError, match="cannot have the variant 'directml-float16': a layer has a sliding window of 16"
    ):
        write_variant(folder, DIRECTML.name)
    assert contents(folder) == before


def test_a_folder_that_is_no_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"has no embedllm\.json"):
        write_variant(tmp_path, DIRECTML.name)


def test_weights_that_do_not_fit_the_manifest_are_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["quantization"]["layers.0.mlp.down"]["symmetric"] = False
    write_json(folder / MANIFEST, manifest)
    before = contents(folder)
    with pytest.raises(ExportError, match=r"does not fit its manifest: 'layers\.0\.mlp\.down\.zero'"):
        write_variant(folder, VARIANTS[0].name)
    with pytest.raises(ExportError, match="has not the constants that this version's OpenVINO model needs"):
        write_variant(folder, "openvino")
    assert contents(folder) == before


def test_the_variants_of_a_model_are_those_that_it_can_have(tiny_package: MakePackage) -> None:
    windowed = open_package(tiny_package("mistral", sliding_window=16)).decoder
    assert {g.variant for g in variants.variants(windowed, {})} == set(NAMES) - {DIRECTML.name}
