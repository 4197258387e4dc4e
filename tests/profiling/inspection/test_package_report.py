"""What `inspect` computes, against numbers worked out by hand for the tiny qwen3 of tests/support/tiny.py."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from onnx import TensorProto, helper

from embedllm.export import Recipe, convert
from embedllm.export.eagle import add_eagle
from embedllm.export.layout import CONSTANTS
from embedllm.files.safetensors_header import Tensor, TensorFile, read_header
from embedllm.package.package import WEIGHTS, open_package
from embedllm.package.wasm_floats import FLOATS
from embedllm.profiling.inspection.graph_check import check_ir, check_model, unused
from embedllm.profiling.inspection.package_report import Description, Share, describe_package, memory, shares
from tests.support.decoder_cases import mixtures, plain
from tests.support.described import described_package
from tests.support.eagle_heads import tiny_eagle
from tests.support.tiny import tiny_checkpoint
from tests.support.vision import vision_checkpoint

# hidden 64, 2 layers, 4 heads and 2 key/value heads of 16, mlp 96, vocabulary 307, tied
EMBEDDING = 307 * 64
ATTENTION = 2 * (64 * 64 + 32 * 64 + 32 * 64 + 64 * 64)
MLP = 2 * 3 * 96 * 64
NORMS = 2 * (64 + 16 + 16 + 64) + 64

MakePackage = Callable[..., Path]


@pytest.fixture(scope="module")
def tiny(tiny_package: MakePackage) -> Description:
    return describe_package(open_package(tiny_package(recipe=Recipe(symmetric=True))))


def share(found: Description, kind: str) -> Share:
    return next(share for share in found.storage if share.kind == kind)


def test_the_shape_is_that_of_the_config(tiny: Description) -> None:
    model = tiny.architecture
    assert (model.model_type, model.layers, model.hidden, model.mlp) == ("qwen3", 2, 64, (96,))
    assert (model.vocabulary, model.tied, model.context) == (307, True, 128)
    (group,) = model.attention
    assert (group.layers, group.heads, group.kv_heads, group.head_dim, group.window) == (2, 4, 2, 16, None)
    assert model.rope == {"base": 10000.0, "rotated": 16, "scaling": None}


def test_a_mixture_is_told_by_its_experts_and_those_of_a_token(tiny: Description, tmp_path: Path) -> None:
    decoder = mixtures(experts=6, used=2, inner=48)(plain())
    model = describe_package(
        open_package(described_package(tmp_path / "package", decoder, Recipe(), variant="openvino"))
    ).architecture
    assert (model.experts, model.experts_used, model.mlp) == (6, 2, (48,))
    assert (tiny.architecture.experts, tiny.architecture.experts_used) == (0, 0)


def test_parameters_count_a_tied_head_once(tiny: Description) -> None:
    assert tiny.parameters == EMBEDDING + ATTENTION + MLP + NORMS


def test_four_bits_in_groups_of_32_are_half_a_byte_and_a_sixteenth(tiny: Description) -> None:
    """Every row is a multiple of 32 long, so nothing is filled up: 4 + 16/32 bits a weight."""
    for kind, weights in (("embedding", EMBEDDING), ("attention", ATTENTION), ("mlp", MLP)):
        assert (share(tiny, kind).values, share(tiny, kind).scales) == (weights // 2, weights // 16)
    assert tiny.matrix_bits_per_weight == 4.5
    assert share(tiny, "norms").total == 4 * NORMS
    assert share(tiny, "rotary tables").total == 2 * 128 * 8 * 4


@pytest.mark.parametrize(
    ("family", "recipe"),
    [
        ("qwen3", Recipe()),
        ("qwen2", Recipe(bits=8, group_size=16, symmetric=False)),  # biases, zero points, a head of its own
        ("llama", Recipe(bits=4, head_bits=16, embedding_bits=32)),
    ],
)
def test_the_shares_are_the_whole_file(tiny_package: MakePackage, family: str, recipe: Recipe) -> None:
    found = describe_package(open_package(tiny_package(family, recipe)))
    assert sum(share.total for share in found.storage) == found.weights_bytes
    assert all(s.total == s.values + s.scales + s.zero_points + s.biases for s in found.storage)
    assert "other" not in [share.kind for share in found.storage]


def test_zero_points_and_biases_are_counted_apart(tiny_package: MakePackage) -> None:
    found = describe_package(open_package(tiny_package("qwen2", Recipe(bits=8, group_size=16, symmetric=False))))
    assert share(found, "mlp").zero_points == MLP // 16
    assert share(found, "attention").biases == 2 * (64 + 32 + 32) * 4
    assert found.matrix_bits_per_weight == 8 + 16 / 16 + 8 / 16
    (packing,) = found.packing
    assert (packing.bits, packing.group_size, packing.symmetric) == (8, 16, False)
    assert share(found, "head").values == EMBEDDING


def test_plain_floats_have_no_group(tiny_package: MakePackage) -> None:
    found = describe_package(open_package(tiny_package("qwen3", Recipe(bits=16))))
    assert [(p.bits, p.group_size, p.symmetric) for p in found.packing] == [(16, None, None)]
    assert found.matrix_bits_per_weight == 16


def test_a_tensor_that_nobody_names_is_other(tiny_package: MakePackage) -> None:
    package = open_package(tiny_package())
    header = read_header(package.weights)
    stray = {**header.tensors, "stray.weight": Tensor(package.weights, "U8", (5,), 0, 5)}
    found = shares(TensorFile(stray, {}), package.decoder, package.weights.stat().st_size)
    assert [share.total for share in found if share.kind == "other"] == [5]


def test_memory_is_the_file_and_two_values_a_head_dimension_and_layer(tiny: Description) -> None:
    (whole,) = tiny.memory  # the package holds 128 tokens, less than any usual length
    per_token = 2 * 2 * 2 * 16  # layers, key and value, heads, size
    assert whole.context == 128
    assert (whole.kv_float32_bytes, whole.kv_float16_bytes) == (128 * per_token * 4, 128 * per_token * 2)
    assert whole.float32_bytes == tiny.weights_bytes + whole.kv_float32_bytes
    assert whole.float16_bytes == tiny.weights_bytes + whole.kv_float16_bytes


def test_memory_is_given_for_the_lengths_that_were_asked_for(tiny_package: MakePackage) -> None:
    decoder = open_package(tiny_package()).decoder
    assert [entry.context for entry in memory(decoder, 0, [100, 7, 100])] == [7, 100]


@pytest.mark.parametrize("context", [0, -1, 129])
def test_memory_of_a_length_that_does_not_fit_is_refused(tiny_package: MakePackage, context: int) -> None:
    decoder = open_package(tiny_package()).decoder
    with pytest.raises(ValueError, match=f"context is {context} tokens; expected 1 to 128"):
        memory(decoder, 0, [5, context])


def test_every_graph_of_an_export_fits_its_weights(tiny_package: MakePackage) -> None:
    for family in ("qwen3", "qwen2"):
        found = describe_package(open_package(tiny_package(family)))
        assert [graph.problems for graph in found.graphs] == [()] * len(found.graphs)
        assert [graph.unused_bytes for graph in found.graphs] == [0] * len(found.graphs)
        assert all(graph.weights for graph in found.graphs)


def test_a_vision_encoder_has_a_share_and_graphs_of_its_own(tmp_path: Path) -> None:
    out = convert(vision_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(bits=32))
    found = describe_package(open_package(out))
    assert found.task == "generates text, takes images"
    assert [graph.problems for graph in found.graphs] == [()] * len(found.graphs)
    # hidden 48, mlp 80, 2 layers, patches of 4 x 4, 64 positions, a projector of 4 patches
    matrices = 2 * (4 * 48 * 48 + 2 * 48 * 80) + 48 * 3 * 4 * 4 + 64 * 48 + 64 * 4 * 48
    assert share(found, "vision").values == 4 * matrices
    text, seen = (next(g for g in found.graphs if g.variant == name) for name in ("generic-float32", "vision-float32"))
    assert text.weights
    assert seen.weights
    assert text.unused_bytes
    assert seen.unused_bytes  # each reads what is its own


def test_a_head_without_rotary_tables_of_its_own_has_no_fewer_bits_for_them(tmp_path: Path) -> None:
    """They are the target model's, and larger than a tiny head."""
    package = convert(tiny_checkpoint(tmp_path / "checkpoint", num_hidden_layers=4), tmp_path / "package", Recipe())
    found = describe_package(open_package(add_eagle(package, tiny_eagle(tmp_path / "head"))))
    assert found.bits_per_weight == pytest.approx(8 * found.weights_bytes / found.parameters)


def test_without_onnx_the_graphs_are_not_looked_at(tiny_package: MakePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    graph = describe_package(open_package(tiny_package())).graphs[0]
    assert (graph.weights, graph.unused_bytes, graph.problems) == (None, None, ())


def test_a_graph_that_is_no_onnx_is_a_problem(tiny_package: MakePackage, tmp_path: Path) -> None:
    folder = copy(tiny_package(), tmp_path)
    (folder / "model.onnx").write_bytes(b"\xff" * (folder / "model.onnx").stat().st_size)
    graph = describe_package(open_package(folder)).graphs[0]
    assert graph.weights is None
    assert "cannot be read as ONNX" in graph.problems[0]


def test_a_missing_graph_is_a_problem_of_its_own_only(tiny_package: MakePackage, tmp_path: Path) -> None:
    folder = copy(tiny_package(), tmp_path)
    (folder / "model.dml.onnx").unlink()
    package = open_package(folder, whole=False)
    graphs = {graph.file: graph for graph in describe_package(package).graphs}
    assert set(graphs) == {graph.file for graph in package.listed}
    assert graphs.pop("model.dml.onnx").problems == (package.damaged["directml-float16"],)
    assert [graph.problems for graph in graphs.values()] == [()] * len(graphs)


def test_what_a_graph_is_held_to_is_told(tiny: Description) -> None:
    assert {graph.file: graph.held_to for graph in tiny.graphs if graph.held_to} == {
        "model.dml.onnx": "DirectML's kernels"
    }


def test_a_description_is_plain_json(tiny: Description) -> None:
    assert json.loads(json.dumps(dataclasses.asdict(tiny)))["architecture"]["attention"][0]["kv_heads"] == 2


# a weights file of two tensors, bytes 100 to 110 and 110 to 130, with a gap behind them
HEADER = TensorFile(
    {
        "a.weight": Tensor(Path(WEIGHTS), "U8", (10,), 100, 10),
        "b.weight": Tensor(Path(WEIGHTS), "U8", (20,), 110, 20),
        "gap.2": Tensor(Path(WEIGHTS), "U8", (70,), 130, 70),
    },
    {},
)


def external(name: str, offset: int | str, length: int, location: str = WEIGHTS) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[length])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (external("whole", 100, 10), None),
        (external("run", 100, 30), None),  # two neighbours as one
        (external("elsewhere", 100, 10, "other.bin"), "'elsewhere' lies in 'other.bin', not in weights.safetensors"),
        (external("beyond", 190, 11), "'beyond' ends at byte 201; weights.safetensors has 200"),
        (external("across", 105, 10), "'across' is bytes 105 to 115, which are no whole tensors"),
        (external("negative", -5, 10), "'negative' has no offset and length"),
        (helper.make_tensor("small", TensorProto.FLOAT, [3], [1, 2, 3]), None),
        (helper.make_tensor("large", TensorProto.UINT8, [2000], b"x" * 2000, raw=True), "'large' is stored in the"),
    ],
    ids=lambda value: value.name if isinstance(value, TensorProto) else "",
)
def test_a_graph_is_held_to_whole_tensors_of_the_weights_file(tensor: TensorProto, problem: str | None) -> None:
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=[tensor]))
    _, problems = check_model(model, HEADER, 200)
    assert [found[: len(problem or "")] for found in problems] == ([problem] if problem else [])


FLOATS_OF = {"a": (0, 40), "b": (40, 80)}  # in the file that a browser makes: docs/format.md#weightsfloat32


@pytest.mark.parametrize(
    ("tensors", "unread", "problem"),
    [
        ([external("a+1", 0, 120, FLOATS)], 0, None),  # neighbours as one
        ([external("a", 0, 40, FLOATS), external("b", 40, 80, FLOATS)], 0, None),
        ([external("a", 0, 40, FLOATS)], 20, None),
        ([external("a", 0, 40, FLOATS), external("rows", 100, 10)], 20, None),  # the packed table, to look up
        ([external("a+1", 0, 120, FLOATS), external("b", 40, 80, FLOATS)], 0, "'b' is made once more of 'b'"),
        ([external("half", 0, 20, FLOATS)], 30, "'half' is bytes 0 to 20 of weights.float32, which are no whole"),
        ([external("across", 20, 80, FLOATS)], 30, "'across' is bytes 20 to 100 of weights.float32, which"),
        ([external("beyond", 40, 90, FLOATS)], 30, "'beyond' ends at byte 130; weights.float32 has 120"),
        ([external("negative", -40, 40, FLOATS)], 30, "'negative' has no offset and length"),
    ],
    ids=lambda value: "+".join(tensor.name for tensor in value) if isinstance(value, list) else "",
)
def test_floats_are_held_to_whole_matrices_and_to_one_reader(
    tensors: list[TensorProto], unread: int, problem: str | None
) -> None:
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=tensors))
    spans, problems = check_model(model, HEADER, 200, FLOATS_OF)
    assert [found[: len(problem or "")] for found in problems] == ([problem] if problem else [])
    assert unused(spans, HEADER) == unread


def test_no_other_graph_may_read_floats() -> None:
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=[external("a", 0, 40, FLOATS)]))
    assert check_model(model, HEADER, 200)[1] == ("'a' lies in 'weights.float32', not in weights.safetensors",)


def test_a_weight_hidden_in_a_constant_node_is_found() -> None:
    hidden = helper.make_tensor("hidden", TensorProto.UINT8, [2000], b"x" * 2000, raw=True)
    node = helper.make_node("Constant", [], ["y"], value=hidden)
    _, problems = check_model(helper.make_model(helper.make_graph([node], "g", [], [])), HEADER, 200)
    assert problems[0].startswith("'hidden' is stored in the graph itself")


def ir(data: str) -> ElementTree.Element:
    """An OpenVINO model of one constant, and of a layer that is none."""
    other = '<layer id="1" name="y" type="Add"><data offset="-1" size="x"/></layer>'
    constant = f'<layer id="0" name="x" type="Const">{data}</layer>'
    return ElementTree.fromstring(f"<net><layers>{constant}{other}</layers></net>")


# as HEADER, with small constants behind it: bytes 200 to 240
WITH_CONSTANTS = TensorFile({**HEADER.tensors, CONSTANTS: Tensor(Path(WEIGHTS), "U8", (40,), 200, 40)}, {})


@pytest.mark.parametrize(
    ("data", "weights", "problem"),
    [
        ('<data offset="100" size="10"/>', 1, None),
        ('<data offset="100" size="30"/>', 1, None),  # two neighbours as one
        ('<data offset="200" size="40"/>', 0, None),  # what is no weight is not counted
        ('<data offset="208" size="8"/>', 0, None),  # any part of the small ones
        ('<data offset="232" size="16"/>', 0, "'x' ends at byte 248; weights.safetensors has 240"),
        ('<data offset="196" size="8"/>', 1, "'x' is bytes 196 to 204, which are no whole tensors"),
        ('<data offset="105" size="10"/>', 1, "'x' is bytes 105 to 115, which are no whole tensors"),
        ('<data offset="100" size="9"/>', 1, "'x' is bytes 100 to 109, which are no whole tensors"),
        ('<data offset="240" size="1"/>', 0, "'x' ends at byte 241; weights.safetensors has 240"),
        ('<data offset="-8" size="10"/>', 0, "'x' has no offset and length"),
        ('<data offset="100"/>', 0, "'x' has no offset and length"),
        ("", 0, "'x' has no offset and length"),
    ],
)
def test_an_openvino_model_is_held_to_whole_tensors_too(data: str, weights: int, problem: str | None) -> None:
    spans, problems = check_ir(ir(data), WITH_CONSTANTS, 240)
    assert problems == ((problem,) if problem else ())
    assert len(spans) == weights


@pytest.mark.parametrize("text", ["", "<net", "no xml"])
def test_an_openvino_model_that_is_no_xml_is_a_problem(text: str, tiny_package: MakePackage, tmp_path: Path) -> None:
    folder = copy(tiny_package(), tmp_path)
    path = folder / "openvino_model.xml"
    path.write_text(text.ljust(path.stat().st_size))
    graph = next(graph for graph in describe_package(open_package(folder)).graphs if graph.variant == "openvino")
    assert (graph.weights, graph.unused_bytes) == (None, None)
    assert graph.problems[0].startswith("cannot be read as XML: ")


def test_a_moved_constant_of_an_export_is_found(tiny_package: MakePackage, tmp_path: Path) -> None:
    folder = copy(tiny_package(), tmp_path)
    path, header = folder / "openvino_model.xml", read_header(folder / WEIGHTS)
    offset = header.tensors["embedding.weight"].offset
    text = path.read_text()
    assert f'offset="{offset}"' in text
    path.write_text(text.replace(f'offset="{offset}"', f'offset="{offset + 1}"'))
    graph = next(graph for graph in describe_package(open_package(folder)).graphs if graph.variant == "openvino")
    assert len(graph.problems) == 2  # of the embedding, and of the head that is tied to it
    assert all(problem.endswith("which are no whole tensors") for problem in graph.problems)
    assert graph.unused_bytes  # the table that nothing reads now


def copy(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to
