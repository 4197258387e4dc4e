"""Matrices whose groups are of columns that do not lie together (GPTQ with desc_act): stored sorted, and fed so."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from embedllm.backends.devices.registry import devices, open_engine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError, PackageError
from embedllm.export import Recipe, convert
from embedllm.export.checkpoints.quantized.packed_integers import (
    PackedMatrix,
    find_packed,
    plain_groups,
    sorted_by_group,
)
from embedllm.export.checkpoints.quantized.schemes import scheme_of
from embedllm.export.graphs import write_variant
from embedllm.export.onnx.directml_rules import check_directml
from embedllm.export.writing.passthrough import prequantized
from embedllm.files.safetensors_header import Tensor, read_header
from embedllm.package.features import COLUMN_ORDER, listed_features
from embedllm.package.lora.peft import read_adapter
from embedllm.package.package import WEIGHTS, open_package
from embedllm.package.packing import dequantize, packings
from embedllm.package.tensors import linears
from embedllm.profiling.inspection.package_report import describe_package
from tests.export.checkpoints.test_packed_integers import Format, checkpoint, compressed, gptq, quantized
from tests.export.checkpoints.test_passthrough import ATOL, TOKENS, engine, logits
from tests.support.decoder_cases import CASES, plain
from tests.support.described import described_package
from tests.support.held import PACKINGS, OrderedRandomSource
from tests.support.packed_matrices import as_runtimes_see
from tests.support.peft_folders import ALL, config_of, write_factors
from tests.support.quantized_folders import NAME, check_refused, opened

MINIMUMS = PACKINGS["4 bits, groups of 16, half minimums"]
ROUNDED = 0.05  # the same, where a device rounds inputs of products: 0.014 on openvino, 0.009 on npu-on-cpu


def shuffled(columns: int, size: int, seed: int) -> np.ndarray:
    """The group of each column, as GPTQ chooses it: columns by their weight, in groups of that size."""
    return plain_groups(columns, size)[np.random.default_rng(seed).permutation(columns)].astype(np.int32)


def test_columns_are_sorted_by_group_worked_by_hand() -> None:
    groups = np.array([1, 0, 2, 1, 0], np.int32)
    order = sorted_by_group(groups, 2, "m")
    assert order is not None
    assert order.tolist() == [1, 4, 0, 3, 2]
    assert sorted_by_group(np.array([0, 0, 1, 1, 2], np.int32), 2, "m") is None


@given(columns=st.integers(1, 80), size=st.sampled_from([-1, 1, 16, 32]), seed=st.integers(0, 99))
def test_sorted_groups_are_plain_and_their_columns_stay_in_turn(columns: int, size: int, seed: int) -> None:
    groups = shuffled(columns, size, seed)
    order = sorted_by_group(groups, size, "m")
    order = np.arange(columns, dtype=np.int32) if order is None else order
    np.testing.assert_array_equal(groups[order], plain_groups(columns, size))
    assert sorted(order.tolist()) == list(range(columns))
    same = groups[order][1:] == groups[order][:-1]
    assert (np.diff(order)[same] > 0).all()


def test_groups_of_other_sizes_are_refused() -> None:
    with pytest.raises(ExportError, match=r"group 0 of 'm' has 3 columns by its g_idx; expected 2, .*--bits 4"):
        sorted_by_group(np.array([0, 0, 1, 0], np.int32), 2, "m")
    with pytest.raises(ExportError, match="group 0 of 'm' has 1 columns"):  # in order, and yet not of that size
        sorted_by_group(np.array([0, 1, 1, 1], np.int32), 2, "m")


def one_matrix(
    folder: Path, form: Format, columns: int, groups: np.ndarray | None
) -> tuple[PackedMatrix, np.ndarray, Path]:
    """A matrix in a file, what its format's formula makes of it, and the file."""
    made, floats = quantized(form, np.random.default_rng(2), 24, columns, groups)
    path = folder / "one.safetensors"
    save_file({f"m.{part}": np.ascontiguousarray(values) for part, values in made.items()}, path)
    scheme = scheme_of(form.said)
    assert scheme is not None
    found = find_packed(scheme, read_header(path).tensors, "m.weight")
    assert found is not None
    return found, floats, path


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_every_runtime_multiplies_by_the_floats_of_the_formula(
    form: str, bits: int, group: int, tmp_path: Path
) -> None:
    """Bit for bit; 288 columns: the last group is short."""
    groups = shuffled(288, group, seed=bits)
    matrix, expected, path = one_matrix(tmp_path, gptq(bits, group, form, symmetric=bits == 8), 288, groups)
    whole = path.read_bytes()

    def read(tensor: Tensor, start: int, count: int) -> bytearray:
        return bytearray(whole[tensor.offset + start : tensor.offset + start + count])

    matrix.check(expected.shape)
    np.testing.assert_array_equal(matrix.rows(read, 0, 24), expected)
    order = matrix.order(read)
    assert (order is None) == (group < 0)  # whole rows have one group
    packing = dataclasses.replace(matrix.packing(read), column_order="" if order is None else "matrix")
    packed = matrix.packed(read, packing, 0, 24)
    sorted_floats = expected if order is None else expected[:, order]
    np.testing.assert_array_equal(dequantize(packed, packing, 288), sorted_floats)
    for how, floats in as_runtimes_see(tmp_path, packed, packing, 288, order):
        np.testing.assert_array_equal(floats, sorted_floats if how == "reference" else expected, err_msg=how)


def by_input(name: str, columns: int) -> np.ndarray:
    """q and k have one order, v another, gate and up one again: as their inputs are alike, or else by accident."""
    kind = name.split(".")[-2]
    return shuffled(columns, 32, {"q_proj": 1, "k_proj": 1, "v_proj": 2, "o_proj": 3, "down_proj": 5}.get(kind, 4))


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exact export of a checkpoint with desc_act, which stands beside it as "checkpoint"."""
    folder = tmp_path_factory.mktemp("ordered")
    checkpoint(folder / "checkpoint", gptq(symmetric=True), by_input)
    return convert(folder / "checkpoint", folder / "out", Recipe(exact=True), verify=True)


def test_a_model_is_that_of_its_floats(ordered: Path, tmp_path: Path) -> None:
    floats = convert(ordered.with_name("checkpoint"), tmp_path / "floats", Recipe(bits=32))
    expected = logits(engine(floats, "reference"))
    np.testing.assert_array_equal(logits(engine(ordered, "reference")), expected)
    for name in ("cpu", "openvino"):
        np.testing.assert_allclose(logits(engine(ordered, name)), expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", ["cpu", "openvino", "npu-on-cpu"])
def test_the_last_logits_alone_are_those_of_the_reference(name: str, ordered: Path) -> None:
    """Of a prompt and of a token behind it: the last layer is cut to the positions that are asked for."""
    expected = logits(engine(ordered, "reference"))
    runs = open_engine(open_package(ordered), next(device for device in devices() if device.name == name))
    session = runs.open()
    vocabulary = range(expected.shape[1])
    found = [session.feed(tokens).values(vocabulary) for tokens in (TOKENS[:-1], TOKENS[-1:])]
    session.close()
    runs.close()
    np.testing.assert_allclose(found, expected[-2:], atol=ROUNDED, rtol=0)


def test_every_graph_was_verified(ordered: Path) -> None:
    """Of the ones for GPUs and browsers, too: on the CPU."""
    verification = open_package(ordered).manifest["verification"]
    assert isinstance(verification, dict)
    for file in ("model.onnx", "model.fp16.onnx", "model.fp32.onnx", "model.dml.onnx", "model.wasm.onnx",
                 "openvino_model.xml"):  # fmt: skip
        assert verification[file]["kl_mean"] < 1e-3, file


def test_matrices_with_one_input_share_an_order_where_it_is_one(ordered: Path) -> None:
    package = open_package(ordered)
    found = packings(package.manifest)
    assert COLUMN_ORDER in listed_features(package.manifest)
    layer = "layers.1"
    owners = {"attention.q": "attention.q", "attention.k": "attention.q", "attention.v": "attention.v",
              "attention.o": "attention.o", "mlp.gate": "mlp.gate", "mlp.up": "mlp.gate",
              "mlp.down": "mlp.down"}  # fmt: skip
    for name, owner in owners.items():
        assert found[f"{layer}.{name}"].column_order == f"{layer}.{owner}"
    graph = onnx.load(ordered / "model.onnx", load_external_data=False).graph
    gathers = [node for node in graph.node if node.op_type == "GatherElements"]
    assert len(gathers) == 2 * 5  # of a layer: q and k; v; o; gate and up; down
    text = (ordered / "openvino_model.xml").read_text()
    assert text.count('.in_order" type="Gather"') == 2 * 5


def test_what_is_stored_is_the_checkpoints_codes(ordered: Path) -> None:
    tensors, stored = load_file(ordered.with_name("checkpoint") / "model.safetensors"), read_header(
        open_package(ordered).weights).tensors  # fmt: skip
    raw = open_package(ordered).weights.read_bytes()
    entry = stored["layers.1.mlp.down.order"]
    order = np.frombuffer(raw, "<i4", 96, entry.offset)
    assert entry.dtype == "I32"
    np.testing.assert_array_equal(order, np.argsort(tensors[f"{NAME}.g_idx"], kind="stable"))
    codes = tensors[f"{NAME}.qweight"].view(np.uint32)[:, None] >> (np.arange(8, dtype=np.uint32) * 4)[:, None] & 15
    codes = codes.reshape(96, 64)[order].T
    entry = stored["layers.1.mlp.down.weight"]
    packed = np.frombuffer(raw, np.uint8, entry.length, entry.offset).reshape(64, 48)
    np.testing.assert_array_equal(packed & 15, codes[:, 0::2])
    np.testing.assert_array_equal(packed >> 4, codes[:, 1::2])


@pytest.mark.parametrize("name", ["cpu", "openvino"])
def test_an_adapter_reads_what_comes_before_the_order(name: str, ordered: Path, tmp_path: Path) -> None:
    package = open_package(ordered)
    shapes = {m.source: (m.rows, m.columns) for layer in package.decoder.layers for m in linears(layer)}
    about = config_of(ALL, 4, 4.0)
    adapter = read_adapter("some", write_factors(tmp_path / "adapter", shapes, about), package.decoder)
    expected = logits(engine(ordered, "reference", adapts=True), adapter)
    assert np.abs(expected - logits(engine(ordered, "reference"))).max() > 0.1
    np.testing.assert_allclose(logits(engine(ordered, name, adapts=True), adapter), expected, atol=ATOL, rtol=0)


def test_a_graph_is_written_anew_without_the_source(ordered: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ordered, tmp_path / "copy")
    for variant in ("generic-float32", "openvino", "wasm-float32"):
        write_variant(copy, variant)
    for name in ("model.onnx", "openvino_model.xml", "model.wasm.onnx", "embedllm.json"):
        assert (copy / name).read_bytes() == (ordered / name).read_bytes()


def test_directml_takes_the_graph_and_all_of_the_file_is_read(ordered: Path) -> None:
    assert check_directml(onnx.load(ordered / "model.dml.onnx", load_external_data=False)) == ()
    found = describe_package(open_package(ordered))
    assert all(graph.problems == () for graph in found.graphs)
    assert [way.matrices for way in found.packing if way.ordered] == [2 * 7]


def test_with_bits_the_columns_lie_as_ever(ordered: Path, tmp_path: Path) -> None:
    package = open_package(convert(ordered.with_name("checkpoint"), tmp_path / "out", Recipe(bits=8)))
    assert package.manifest["features"] == []
    assert not any(packing.column_order for packing in packings(package.manifest).values())


def test_an_order_that_names_a_column_twice_is_an_error(ordered: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ordered, tmp_path / "copy")
    entry = read_header(copy / WEIGHTS).tensors["layers.0.mlp.down.order"]
    with (copy / WEIGHTS).open("r+b") as file:
        file.seek(entry.offset)
        file.write(bytes(8))
    manifest = json.loads((copy / "embedllm.json").read_text())
    del manifest["files"][WEIGHTS]["sampled_sha256"]  # which is looked at before
    (copy / "embedllm.json").write_text(json.dumps(manifest))
    with pytest.raises(PackageError, match=r"'layers\.0\.mlp\.down\.order' does not name each column once"):
        logits(engine(copy, "reference"))


def test_a_manifest_with_an_order_of_no_name_is_an_error(ordered: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ordered, tmp_path / "copy")
    manifest = json.loads((copy / "embedllm.json").read_text())
    manifest["quantization"]["layers.0.mlp.up"]["column_order"] = 3
    (copy / "embedllm.json").write_text(json.dumps(manifest))
    with pytest.raises(PackageError, match="'quantization' is not understood: column_order is 3; expected the name"):
        ReferenceEngine(open_package(copy))


@pytest.mark.parametrize(("groups", "message"), [
    (np.repeat([0, 1, -1], 32), "is of the group -1; expected 0 to 2"),
    (np.repeat([0, 1, 2], [32, 40, 24]), r"group 1 of '.*down_proj.weight' has 40 columns by its g_idx; expected 32"),
    (np.repeat([2, 1, 0], [31, 32, 33]), r"group 0 of '.*' has 33 columns .* expected 32, by the group_size 32"),
])  # fmt: skip
def test_groups_that_are_none_are_named(groups: np.ndarray, message: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "c", gptq())
    check_refused(tmp_path / "c", "g_idx", groups.astype(np.int32), message)


def test_groups_of_other_sizes_can_be_rounded(tmp_path: Path) -> None:
    groups = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [20, 40, 36]))
    floats = checkpoint(tmp_path / "c", gptq(), lambda name, _: groups if name == f"{NAME}.weight" else None)
    source = opened(tmp_path / "c")
    np.testing.assert_array_equal(source.rows(f"{NAME}.weight", 0, 64), floats[f"{NAME}.weight"])
    source.close()
    assert open_package(convert(tmp_path / "c", tmp_path / "out", Recipe(bits=8))).manifest["features"] == []


@pytest.mark.parametrize("actorder", ["group", "dynamic"])
def test_compressed_tensors_have_it_too(actorder: str, tmp_path: Path) -> None:
    form = compressed()
    form.config["config_groups"]["group_0"]["weights"]["actorder"] = actorder
    checkpoint(tmp_path / "c", form, by_input)
    carried_over = convert(tmp_path / "c", tmp_path / "carried", Recipe(exact=True))
    floats = convert(tmp_path / "c", tmp_path / "floats", Recipe(bits=32))
    assert packings(open_package(carried_over).manifest)["layers.0.mlp.up"].column_order == "layers.0.mlp.gate"
    np.testing.assert_array_equal(logits(engine(carried_over, "reference")), logits(engine(floats, "reference")))


def test_groups_that_compressed_tensors_never_chose_are_plain(tmp_path: Path) -> None:
    floats = checkpoint(tmp_path / "c", compressed())
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    tensors[f"{NAME}.weight_g_idx"] = np.full(96, -1, np.int32)  # as it begins
    save_file(tensors, tmp_path / "c" / "model.safetensors")
    source = opened(tmp_path / "c")
    assert source.order(f"{NAME}.weight") is None
    np.testing.assert_array_equal(source.rows(f"{NAME}.weight", 0, 64), floats[f"{NAME}.weight"])
    source.close()


@pytest.mark.parametrize(("name", "variant"), [("cpu", "generic-float32"), ("openvino", "openvino")])
def test_experts_and_the_head_have_orders_too(name: str, variant: str, tmp_path: Path) -> None:
    """And minimums, whose sums are of groups in that order."""
    decoder = CASES["mixture, normalised, biases"](plain())
    head = dataclasses.replace(decoder.embedding, name="head", source="lm_head")
    decoder = dataclasses.replace(decoder, head=head)
    source = OrderedRandomSource(decoder, MINIMUMS, plain=decoder.embedding.source)
    folder = described_package(tmp_path / "package", decoder, Recipe(exact=True), variant=variant, source=source)
    found = packings(open_package(folder).manifest)
    assert found["head"].column_order == "head"
    assert found["layers.1.mlp.experts.2.up"].column_order != found["layers.1.mlp.experts.2.down"].column_order != ""
    expected = logits(engine(folder, "reference"))
    np.testing.assert_allclose(logits(engine(folder, name)), expected, atol=ATOL, rtol=0)


def test_a_table_in_another_order_is_refused() -> None:
    decoder = plain()
    with pytest.raises(ExportError, match=r"the columns of the table '.*' lie in another order .*--bits 4"):
        prequantized(OrderedRandomSource(decoder, MINIMUMS, plain="none of them"), decoder)
