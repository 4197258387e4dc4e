"""The OpenVINO model of a folder, read as any program of OpenVINO reads it: what it computes and how it is executed.

Everything runs at the exact settings of backends/openvino/engine.py unless a test is about others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedllm.backends.openvino.properties import EXACT
from embedllm.backends.openvino.runtime import core
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.layout import CONSTANTS
from embedllm.export.openvino import decoder as openvino_graph
from embedllm.export.openvino.ir import Ir
from embedllm.export.verify import compare
from embedllm.export.writing.plan import plan
from embedllm.files.safetensors_header import read_header
from embedllm.package.package import WEIGHTS, open_package
from embedllm.package.packing import Packing
from tests.support.tiny import tiny_checkpoint, tiny_config

if TYPE_CHECKING:
    import openvino as ov
    from numpy.typing import NDArray

MakePackage = Callable[..., Path]
ATOL = 1e-4  # of logits up to 5, measured 2e-6 to 5e-6: the order of float32 sums differs
LAYERS, VOCABULARY = 2, 307  # of tests/support/tiny.py
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {}),
    "mistral, window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3, untied": ("qwen3", {"tie_word_embeddings": False}),
}
# matrices have 80 or 96 columns here: 3 groups of 32, the last one of 16 values where there are 80; 5 or 6 groups of 16
RECIPES = {
    "default": Recipe(),
    "int4": Recipe(symmetric=True),
    "int4, group 16": Recipe(group_size=16, symmetric=True),
    "int4, group 64": Recipe(group_size=64, symmetric=True),
    "int4, group 128": Recipe(group_size=128, symmetric=True),
    "int4 asymmetric": Recipe(symmetric=False),  # an odd number of zero points, half a byte of a row is empty
    "int4 asymmetric, group 16": Recipe(symmetric=False, group_size=16),  # odd in some matrices, even in others
    "int4 asymmetric, group 64": Recipe(symmetric=False, group_size=64),  # even
    "int4, head 8": Recipe(head_bits=8),
    "int8": Recipe(bits=8),
    "int8 asymmetric": Recipe(bits=8, symmetric=False),
    "16 bits": Recipe(bits=16),
    "32 bits": Recipe(bits=32),
}
ODD: dict[str, object] = {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 1}


def read(folder: Path) -> ov.Model:
    return core().read_model(folder / openvino_graph.FILE, folder / WEIGHTS)


def compiled(folder: Path, **properties: object) -> ov.CompiledModel:
    return core().compile_model(read(folder), "CPU", properties or EXACT)


def feed(
    request: ov.InferRequest,
    rows: Sequence[Sequence[int]],
    *,
    mask: Sequence[Sequence[int]],
    beams: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """The logits [B, T, V] of every position. mask: of all tokens so far, 0 for what is padding."""
    total = np.array(mask, np.int64)
    positions = np.maximum(total.cumsum(axis=1) - 1, 0)[:, -len(rows[0]) :]
    inputs = {
        "input_ids": np.array(rows, np.int64),
        "attention_mask": total,
        "position_ids": positions,
        "beam_idx": np.array(beams or range(len(rows)), np.int32),
    }
    request.infer(inputs)
    return request.get_tensor("logits").data.copy()


def in_pieces(model: ov.CompiledModel, tokens: list[int], lengths: Sequence[int]) -> NDArray[np.float32]:
    """The logits [T, V] of a sequence that is fed in pieces of these lengths."""
    request, pieces, end = model.create_infer_request(), [], 0
    for length in lengths:
        start, end = end, end + length
        pieces.append(feed(request, [tokens[start:end]], mask=[[1] * end])[0])
    return np.concatenate(pieces)


def by_reference(folder: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    return ReferenceEngine(open_package(folder)).open().feed_all(tokens)


def some_tokens(count: int, seed: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def executed(model: ov.CompiledModel) -> Counter[tuple[str, str]]:
    """(operation, element type that it computes in) of what the plugin made of a model."""
    found: Counter[tuple[str, str]] = Counter()
    for node in model.get_runtime_model().get_ops():
        kind, type_ = (node.rt_info[key].astype(str) for key in ("layerType", "runtimePrecision"))
        found[kind, type_] += 1
    return found


def kinds(model: ov.CompiledModel) -> Counter[str]:
    found: Counter[str] = Counter()
    for (kind, _), count in executed(model).items():
        found[kind] += count
    return found


# --- what it computes


# each recipe with matrices that have biases, or a head of their own, and each family with one
@pytest.mark.parametrize(
    ("family", "recipe"),
    [*(("llama" if recipe.startswith("int4,") else "qwen2", recipe) for recipe in RECIPES),
     *((family, recipe) for family in FAMILIES for recipe in ("int4", "int4 asymmetric"))],
)  # fmt: skip
def test_logits_follow_the_reference(family: str, recipe: str, tiny_package: MakePackage) -> None:
    model_type, config = FAMILIES[family]
    folder = tiny_package(model_type, RECIPES[recipe], **ODD, **config)
    tokens = some_tokens(40)
    ours = in_pieces(compiled(folder), tokens, [30, 1, 9])  # a prompt, a step, several tokens on top
    found = compare(by_reference(folder, tokens), ours)
    assert found.max_difference <= ATOL, found


@pytest.mark.parametrize("head_dim", [32, 64, 80, 128])
def test_heads_of_any_size_follow_the_reference(head_dim: int, tiny_package: MakePackage) -> None:
    folder = tiny_package("qwen3", Recipe(), head_dim=head_dim)
    tokens = some_tokens(30)
    found = compare(by_reference(folder, tokens), in_pieces(compiled(folder), tokens, [25, 1, 4]))
    assert found.max_difference <= ATOL, found


@pytest.mark.parametrize("family", ["mistral, window", "qwen3"])
def test_any_pieces_give_the_logits_of_the_whole(family: str, tiny_package: MakePackage) -> None:
    model_type, config = FAMILIES[family]
    model = compiled(tiny_package(model_type, Recipe(), **config))
    tokens = some_tokens(60)
    whole = in_pieces(model, tokens, [60])

    @settings(max_examples=15)
    @given(st.sets(st.integers(1, 59), max_size=12))
    def check(cuts: set[int]) -> None:
        bounds = [0, *sorted(cuts), 60]
        lengths = [stop - start for start, stop in pairwise(bounds)]
        np.testing.assert_allclose(in_pieces(model, tokens, lengths), whole, atol=ATOL)

    check()


def test_a_window_hides_what_lies_before_it(tiny_package: MakePackage) -> None:
    model = compiled(tiny_package("mistral", Recipe(), sliding_window=8, num_hidden_layers=1))
    ours, theirs = (in_pieces(model, [token] * 20 + some_tokens(9), [29]) for token in (5, 9))
    np.testing.assert_allclose(ours[-2:], theirs[-2:], atol=ATOL)  # of these, all eight in sight are equal
    assert np.abs(ours[-3] - theirs[-3]).max() > 100 * ATOL  # this one still sees one token that is not


@pytest.mark.parametrize("family", ["llama", "mistral, window", "qwen3"])
def test_rows_of_a_padded_batch_get_their_own_logits(family: str, tiny_package: MakePackage) -> None:
    """As openvino-genai pads: on the left, hidden by the mask, positions counted from the first real token."""
    model_type, config = FAMILIES[family]
    folder = tiny_package(model_type, Recipe(), **config)
    long, short = some_tokens(22, 1), some_tokens(15, 2)
    request = compiled(folder).create_infer_request()
    padded = [0] * 7
    first = feed(request, [long[:20], padded + short[:13]], mask=[[1] * 20, padded + [1] * 13])
    steps = [
        feed(request, [[long[20 + n]], [short[13 + n]]], mask=[[1] * (21 + n), padded + [1] * (14 + n)])
        for n in range(2)
    ]
    ours = np.concatenate([first, *steps], axis=1)
    np.testing.assert_allclose(ours[0], by_reference(folder, long), atol=ATOL)
    np.testing.assert_allclose(ours[1, 7:], by_reference(folder, short), atol=ATOL)


def test_beam_idx_says_which_past_a_row_goes_on_with(tiny_package: MakePackage) -> None:
    folder = tiny_package("qwen3", Recipe())
    request = compiled(folder).create_infer_request()
    one, other = some_tokens(12, 1), some_tokens(12, 2)
    feed(request, [one, other], mask=[[1] * 12] * 2)
    ours = feed(request, [[7], [8]], mask=[[1] * 13] * 2, beams=[1, 1])
    for row, token in ((0, 7), (1, 8)):
        np.testing.assert_allclose(ours[row, 0], by_reference(folder, [*other, token])[-1], atol=ATOL)


# --- how the plugin executes it


# not bf16, in which the CPU plugin unpacks an odd number of groups of 16 (OpenVINO 2026.4)
@pytest.mark.parametrize("properties", [EXACT, {"INFERENCE_PRECISION_HINT": "f32"}], ids=["exact", "rounded to int8"])
@pytest.mark.parametrize("recipe", [name for name, recipe in RECIPES.items() if recipe.body_bits < 16])
@pytest.mark.parametrize(
    "family",
    ["qwen3", pytest.param("qwen2", marks=pytest.mark.slow)],  # the second with biases and a head of its own
)
def test_weights_stay_packed(
    family: str, recipe: str, properties: dict[str, object], tiny_package: MakePackage
) -> None:
    found = executed(compiled(tiny_package(family, RECIPES[recipe], **ODD), **properties))
    body = f"u{RECIPES[recipe].body_bits}"
    head = f"u{RECIPES[recipe].head_bits or RECIPES[recipe].body_bits}"
    products = Counter({("FullyConnected", body): 5 * LAYERS}) + Counter({("FullyConnected", head): 1})
    assert {key: count for key, count in found.items() if key[0] == "FullyConnected"} == products
    assert found["Gather", head] == 1  # the embedding
    assert not [key for key in found if key[0] == "MatMul"]


@pytest.mark.parametrize(
    ("family", "head_dim"),
    [*((family, 64) for family in FAMILIES), *(("qwen3", head_dim) for head_dim in (16, 80, 128))],
)
def test_norms_rotations_and_attention_are_recognised(family: str, head_dim: int, tiny_package: MakePackage) -> None:
    model_type, config = FAMILIES[family]
    found = kinds(compiled(tiny_package(model_type, Recipe(), head_dim=head_dim, **config)))
    norms = (4 if model_type == "qwen3" else 2) * LAYERS + 1
    assert (found["RMS"], found["RoPE"], found["ScaledDotProductAttention"]) == (norms, 2 * LAYERS, LAYERS)
    assert (found["MemoryInput"], found["MemoryOutput"]) == (2 * LAYERS, 2 * LAYERS)
    assert not {"Softmax", "MVN", "Math", "Tile"} & set(found)
    # an empty KV to begin with, and the mask of a window; that of shared heads is attention's own
    assert found["Broadcast"] <= 1 + ("window" in family)


# --- the file


def constant_layers(text: str) -> list[dict[str, str]]:
    layers = ElementTree.fromstring(text).iterfind("layers/layer[@type='Const']")
    return [{"name": layer.get("name", ""), **data.attrib} for layer in layers for data in layer.iterfind("data")]


BITS = {"f32": 32, "f16": 16, "i64": 64, "i32": 32, "u8": 8, "u4": 4}


@pytest.mark.parametrize("recipe", ["int4", "int4 asymmetric", "int8 asymmetric", "16 bits"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_every_constant_is_a_part_of_the_weights_file(family: str, recipe: str, tiny_package: MakePackage) -> None:
    folder = tiny_package(family, RECIPES[recipe], **ODD)
    header = read_header(folder / WEIGHTS)
    small = header.tensors[CONSTANTS]
    starts, stops = header.bounds
    constants = constant_layers((folder / openvino_graph.FILE).read_text())
    assert len(constants) > 30
    for constant in constants:
        start, size = int(constant["offset"]), int(constant["size"])
        values = np.prod([int(n) for n in constant["shape"].split(",") if n.strip()], dtype=np.int64)
        assert size == (values * BITS[constant["element_type"]] + 7) // 8, constant
        inside = small.offset <= start and start + size <= small.offset + small.length
        assert inside or (start in starts and start + size in stops), constant
    data = (folder / WEIGHTS).read_bytes()[small.offset : small.offset + small.length]
    package = open_package(folder)
    packing = {name: Packing(**entry) for name, entry in package.manifest["quantization"].items()}  # type: ignore[attr-defined]
    assert data == openvino_graph.constants(package.decoder, packing)


@pytest.mark.parametrize("recipe", ["int4", "int4 asymmetric"])
def test_a_model_of_28_layers_is_small(recipe: str) -> None:
    """The sizes of Qwen3 0.6B; nothing but text is made."""
    sizes: dict[str, object] = {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
    }  # fmt: skip
    decided = plan(describe(Config(tiny_config("qwen3", **sizes)), None), RECIPES[recipe])
    text = openvino_graph.build(decided.decoder, decided.layout, decided.packing)
    assert 500_000 < len(text.encode()) < 2_000_000
    assert 0 < len(decided.constants[CONSTANTS]) < 4096
    assert decided.layout.placed[CONSTANTS].entry.length == len(decided.constants[CONSTANTS])
    assert all(int(one["offset"]) + int(one["size"]) <= decided.layout.size for one in constant_layers(text))


def layers_by_name(text: str) -> dict[str, tuple[str, str, dict[str, str]]]:
    """name -> type, version and attributes; without what says where a constant lies."""
    found: dict[str, tuple[str, str, dict[str, str]]] = {}
    for layer in ElementTree.fromstring(text).iterfind("layers/layer"):
        data = layer.find("data")
        attributes = {} if data is None else {k: v for k, v in data.attrib.items() if k not in ("offset", "size")}
        found[layer.get("name", "")] = layer.get("type", ""), layer.get("version", ""), attributes
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_openvino_writes_the_same_operations_again(family: str, tiny_package: MakePackage, tmp_path: Path) -> None:
    import openvino as ov

    model_type, config = FAMILIES[family]
    folder = tiny_package(model_type, RECIPES["int4 asymmetric"], **ODD, **config)
    ov.serialize(read(folder), tmp_path / "again.xml", tmp_path / "again.bin")
    ours = layers_by_name((folder / openvino_graph.FILE).read_text())
    theirs = layers_by_name((tmp_path / "again.xml").read_text())
    assert {name: layer[:2] for name, layer in ours.items()} == {name: layer[:2] for name, layer in theirs.items()}
    assert {name: layer[2] for name, layer in ours.items()} == {name: layer[2] for name, layer in theirs.items()}


def test_two_exports_are_equal_byte_for_byte(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "qwen2")
    one, other = (convert(checkpoint, tmp_path / name, Recipe(symmetric=False)) for name in ("one", "other"))
    assert (one / openvino_graph.FILE).read_bytes() == (other / openvino_graph.FILE).read_bytes()
    assert (one / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()
    assert b"\r" not in (one / openvino_graph.FILE).read_bytes()


def test_the_interface_is_what_openvino_genai_expects(tiny_package: MakePackage) -> None:
    model = read(tiny_package("qwen3", Recipe()))
    names = {value.get_any_name(): value.get_element_type().get_type_name() for value in model.inputs}
    assert names == {"input_ids": "i64", "attention_mask": "i64", "position_ids": "i64", "beam_idx": "i32"}
    assert [value.get_any_name() for value in model.outputs] == ["logits"]
    assert model.output("logits").get_element_type().get_type_name() == "f32"
    assert [str(n) for n in model.output("logits").get_partial_shape()] == ["?", "?", str(VOCABULARY)]
    variables = {variable.get_info().variable_id for variable in model.get_variables()}
    expected = {f"past_key_values.{i}.{part}present.{i}.{part}" for i in range(LAYERS) for part in ("key", "value")}
    assert variables == expected


# --- ir.py


def test_equal_small_constants_are_one_and_lie_at_multiples_of_eight() -> None:
    ir = Ir(None)
    assert ir.packed_number(8, "u4") is ir.packed_number(8, "u4")
    assert ir.constant([1, 2]) is ir.constant([1, 2])
    assert ir.constant([1]) is not ir.constant(1)  # a vector is no number
    expected = bytes([8, *[0] * 7]) + np.array([1, 2, 1, 1], "<i8").tobytes()
    assert ir.pool == expected


def test_two_layers_of_one_name_are_refused() -> None:
    ir = Ir(None)
    ir.parameter("x", "i64", 1)
    with pytest.raises(ValueError, match="there are two layers 'x'"):
        ir.parameter("x", "i64", 1)


def test_names_and_attributes_are_escaped() -> None:
    ir = Ir(None)
    ir.parameter('a<b>&"c"', "f32", 2)
    layer = ElementTree.fromstring(ir.xml('<"&')).find("layers/layer")
    assert layer is not None
    assert layer.get("name") == 'a<b>&"c"'
    assert [data.attrib for data in layer.iterfind("data")] == [{"shape": "?,?", "element_type": "f32"}]
