"""Matrices that a source holds quantized already: stored as they are, and multiplied by without loss."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from embedllm.backends.base import Engine, FeedsAll, TakesAdapters
from embedllm.backends.devices.registry import devices, open_engine
from embedllm.backends.ort import engine as ort
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import DeviceUnavailable, ExportError, PackageError
from embedllm.export import Recipe, convert, open_source
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.graphs import write_variant
from embedllm.export.onnx.directml_rules import check_directml
from embedllm.export.sharding import join, shard
from embedllm.export.writing.passthrough import prequantized, read_packed
from embedllm.files.safetensors_header import read_header
from embedllm.hub.location import locate
from embedllm.package.features import FLOAT32_SCALES, MINIMUMS, SHARDS, listed_features
from embedllm.package.lora.adapter import Adapter
from embedllm.package.lora.peft import read_adapter
from embedllm.package.package import open_package
from embedllm.package.packing import Packed, Packing, dequantize, pack_bits
from embedllm.profiling.inspection.package_report import describe_package
from tests.support.decoder_cases import CASES, UNTIED, plain
from tests.support.described import RandomSource, described_package
from tests.support.held import PACKINGS, HeldRandomSource, rounded
from tests.support.packed_matrices import as_runtimes_see, assert_same_floats, product_of_rounded
from tests.support.peft_folders import write_adapter
from tests.support.tiny import tiny_checkpoint


def some_packed(random: np.random.Generator, packing: Packing, rows: int, columns: int) -> Packed:
    """Any integers and zero points; scales of either sign, small, large and 0."""
    groups, kind = packing.groups(columns), np.float32 if packing.scale_bits == 32 else np.float16
    levels = packing.levels or 1 << packing.bits

    def integers(*shape: int) -> np.ndarray:
        return random.integers(0, levels, shape, dtype=np.uint8)

    def floats() -> np.ndarray:
        values = random.standard_normal((rows, groups)) * np.exp2(random.integers(-9, 3, (rows, groups)))
        return np.where(random.random((rows, groups)) < 0.1, 0, values).astype(kind)

    values = integers(rows, groups, packing.group_size)
    zero = pack_bits(integers(rows, groups), packing.bits) if packing.stores_zeros else None
    return Packed(pack_bits(values, packing.bits), floats(), zero, floats() if packing.has_minimum else None)


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize(("rows", "columns"), [(24, 128), (7, 80)])  # 80: no multiple of 32, an odd number of groups
def test_every_runtime_multiplies_by_the_floats_that_are_meant(
    name: str, rows: int, columns: int, tmp_path: Path
) -> None:
    packing = PACKINGS[name]
    packed = some_packed(np.random.default_rng(3), packing, rows, columns)
    found = dict(as_runtimes_see(tmp_path, packed, packing, columns))
    expected = found["reference"]
    assert expected.shape == (rows, columns)
    for how, floats in found.items():
        assert_same_floats(floats, expected, packed, packing, how)


@pytest.mark.parametrize("name", [name for name, packing in PACKINGS.items() if packing.has_minimum])
def test_what_is_lost_by_rounding_the_input_is_as_little_as_beside_zero_points(name: str, tmp_path: Path) -> None:
    random, packing = np.random.default_rng(5), PACKINGS[name]
    rows = random.standard_normal((64, 256)).astype(np.float32)
    x = random.standard_normal((48, 256)).astype(np.float32)

    def lost(packing: Packing, folder: Path) -> np.floating:
        folder.mkdir()
        packed = rounded(rows, packing)
        expected = x @ dequantize(packed, packing, 256).T
        return np.square(product_of_rounded(folder, packed, packing, x) - expected).mean()

    plain_packing = Packing(bits=packing.bits, group_size=packing.group_size, symmetric=False)
    assert lost(packing, tmp_path / "minimums") < 1.6 * lost(plain_packing, tmp_path / "zero points")


def test_a_value_is_its_integer_times_the_scale_plus_the_minimum() -> None:
    packing = Packing(bits=4, group_size=16, symmetric=False, has_minimum=True, scale_bits=32)
    weight = pack_bits(np.arange(16, dtype=np.uint8).reshape(1, 1, 16), 4)
    packed = Packed(weight, np.array([[0.5]], np.float32), None, np.array([[-2.0]], np.float32))
    np.testing.assert_array_equal(dequantize(packed, packing, 16), [np.arange(16) * 0.5 - 2])


@pytest.mark.parametrize("name", PACKINGS)
def test_what_a_matrix_is_multiplied_by_multiplies_its_scales(name: str) -> None:
    decoder, packing = UNTIED(plain()), PACKINGS[name]
    source, linear = HeldRandomSource(decoder, packing), replace(decoder.head, weight_multiplier=0.3)
    found = prequantized(source, replace(decoder, head=linear))[linear.name]
    assert found == replace(packing, scale_bits=32)
    packed = read_packed(source, linear, 3, 40)
    assert packed.scale.dtype == np.float32
    expected = dequantize(read_packed(source, decoder.head, 3, 40), packing, linear.columns) * np.float32(0.3)
    np.testing.assert_allclose(dequantize(packed, found, linear.columns), expected, rtol=1e-5, atol=1e-6)


def test_plain_packings_look_as_they_always_did_in_a_manifest() -> None:
    assert Packing(bits=4).entry == {"bits": 4, "group_size": 32, "symmetric": True}
    wide = Packing(bits=8, symmetric=False, has_minimum=True, scale_bits=32)
    assert wide.entry == {"bits": 8, "group_size": 32, "symmetric": False, "scale_bits": 32, "has_minimum": True}


@pytest.mark.parametrize(("scale_bits", "minimum", "levels"), [(64, False, 0), (16, True, 0), (16, False, 8)])
def test_packings_that_make_no_sense_are_refused(scale_bits: int, minimum: bool, levels: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        Packing(bits=4, symmetric=True, scale_bits=scale_bits, has_minimum=minimum, levels=levels)


# a model, whose tensors are made up: keys and values are packed otherwise than queries, as in llama.cpp's Q4_K_M
WAYS = {
    "q_proj": PACKINGS["4 bits, minimums"], "k_proj": PACKINGS["4 bits, minimums"],
    "v_proj": PACKINGS["8 bits, groups of 16, wide scales"], "o_proj": PACKINGS["8 bits"],
    "gate_proj": PACKINGS["4 bits, minimums"], "up_proj": PACKINGS["4 bits, groups of 16, half minimums"],
    "down_proj": PACKINGS["8 bits, minimums"], "embed_tokens": PACKINGS["4 bits, minimums"],
    "lm_head": Packing(bits=32),
}  # fmt: skip


class HeldSource(HuggingFaceSource):
    """A checkpoint that says of its floats that they are packed: each group between its least and its largest."""

    def packing(self, name: str) -> Packing | None:
        return WAYS.get(name.split(".")[-2])

    def packed(self, name: str, start: int, stop: int) -> Packed:
        packing = self.packing(name)
        assert packing is not None
        return rounded(self.rows(name, start, stop), packing)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exports of held checkpoints: "llama" (untied, biases), "qwen3" (tied), each exact."""
    folder = tmp_path_factory.mktemp("held")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_source, "HuggingFaceSource", HeldSource)
        return {
            family: convert(
                tiny_checkpoint(folder / family, family, attention_bias=family == "llama"),
                folder / f"{family}.out",
                Recipe(exact=True),
            )
            for family in ("llama", "qwen3")
        }


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_what_a_source_holds_is_stored_bit_for_bit(family: str, folders: dict[str, Path]) -> None:
    package = open_package(folders[family])
    assert {*listed_features(package.manifest)} & {MINIMUMS, FLOAT32_SCALES}
    stored = read_header(package.weights).tensors
    source = HeldSource(locate(folders[family].with_suffix(""), None))
    for name, place in (("layers.1.attention.v", "model.layers.1.self_attn.v_proj"),
                        ("layers.0.mlp.up", "model.layers.0.mlp.up_proj"),
                        ("embedding", "model.embed_tokens")):  # fmt: skip
        packed = source.packed(f"{place}.weight", 0, stored[f"{name}.weight"].shape[0])
        with package.weights.open("rb") as file:
            for kind in ("weight", "scale", "minimum"):
                values = getattr(packed, kind)
                assert (f"{name}.{kind}" in stored) == (values is not None)
                if values is not None:
                    file.seek(stored[f"{name}.{kind}"].offset)
                    assert file.read(values.nbytes) == values.tobytes(), (name, kind)
    source.close()


ATOL = 2e-5  # of logits up to 5: the order of float32 sums differs
TOKENS = np.random.default_rng(3).integers(0, 307, 40).tolist()


def engine(folder: Path, name: str, *, adapts: bool = False) -> Engine:
    device = next(device for device in devices() if device.name == name)
    return open_engine(open_package(folder), device, exact=True, adapts=adapts)


def logits(opened: Engine, adapter: Adapter | None = None) -> np.ndarray:
    session = opened.open()
    if adapter is not None:
        assert isinstance(session, TakesAdapters)
        session.adapt(adapter)
    assert isinstance(session, FeedsAll)
    found = session.feed_all(TOKENS)
    session.close()
    opened.close()
    return found


@pytest.mark.parametrize("name", ["cpu", "openvino"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_runtime_computes_what_the_reference_does(family: str, name: str, folders: dict[str, Path]) -> None:
    expected = logits(engine(folders[family], "reference"))
    np.testing.assert_allclose(logits(engine(folders[family], name)), expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", ["cpu", "openvino"])
def test_adapters_find_the_products(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Also those of queries, keys and values that are several."""
    checkpoint = folders["qwen3"].with_suffix("")
    decoder = open_package(folders["qwen3"]).decoder
    adapter = read_adapter("some", write_adapter(tmp_path / "adapter", checkpoint), decoder)
    expected = logits(engine(folders["qwen3"], "reference", adapts=True), adapter)
    assert np.abs(expected - logits(engine(folders["qwen3"], "reference"))).max() > 0.1
    found = logits(engine(folders["qwen3"], name, adapts=True), adapter)
    np.testing.assert_allclose(found, expected, atol=ATOL, rtol=0)


def test_the_graphs_for_gpus_compute_the_same(folders: dict[str, Path]) -> None:
    package = open_package(folders["llama"])
    graph = package.graph("gpu-float32")
    assert graph is not None
    expected = ReferenceEngine(package).open().feed_all(TOKENS)
    found = OrtEngine(package, graph, ort.devices()[0]).open().feed_all(TOKENS)
    np.testing.assert_allclose(found, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", ["model.onnx", "model.fp16.onnx", "model.webgpu.onnx"])
def test_constants_are_computed_when_a_graph_loads(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    """ONNX Runtime has no float16 kernels to do it with: such constants would be computed in every step."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(folders["llama"] / name, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph
    constants = {each.name for each in graph.initializer}
    left = [node.name for node in graph.node if node.input and constants.issuperset(filter(None, node.input))]
    assert left == []


def test_what_has_the_same_input_shares_the_sums_of_its_groups(folders: dict[str, Path]) -> None:
    graph = onnx.load(folders["llama"] / "model.onnx", load_external_data=False).graph
    sums = [node for node in graph.node if node.op_type == "ReduceSum" and "block_sum" in node.name]
    # of a layer: one for q and k, one for gate, one of smaller groups for up; down is unpacked to floats when exact
    assert len(sums) == 2 * 3


def test_directml_takes_the_graph(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        assert check_directml(onnx.load(folder / "model.dml.onnx", load_external_data=False)) == ()


class HeldExperts(RandomSource):
    """Experts with minimums, the rest as floats."""

    def packing(self, name: str) -> Packing | None:
        return PACKINGS["4 bits, minimums"] if ".experts." in name else None

    def packed(self, name: str, start: int, stop: int) -> Packed:
        return rounded(self.rows(name, start, stop), PACKINGS["4 bits, minimums"])


@pytest.mark.parametrize(("name", "variant"), [("cpu", "generic-float32"), ("openvino", "openvino")])
def test_experts_have_minimums_too(name: str, variant: str, tmp_path: Path) -> None:
    decoder = CASES["mixture, normalised, biases"](plain())
    folder = described_package(tmp_path / "package", decoder, Recipe(exact=True), variant=variant,
                               source=HeldExperts(decoder))  # fmt: skip
    package = open_package(folder)
    up = section(package.manifest, "layers.0.mlp.experts.0.up")
    assert (up["has_minimum"], up["scale_bits"]) == (True, 32)
    assert section(package.manifest, "layers.0.attention.q")["bits"] == 16
    found, expected = logits(engine(folder, name)), logits(engine(folder, "reference"))
    np.testing.assert_allclose(found, expected, atol=ATOL, rtol=0)
    session = engine(folder, name).open()  # a token alone leaves experts without any
    np.testing.assert_allclose(session.feed(TOKENS[:1]).values(range(307)), expected[0], atol=ATOL, rtol=0)


def section(manifest: Mapping[str, object], matrix: str) -> dict[str, object]:
    entries = manifest["quantization"]
    assert isinstance(entries, dict)
    return entries[matrix]


def test_with_bits_the_matrices_are_rounded_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "qwen3")
    monkeypatch.setattr(open_source, "HuggingFaceSource", HeldSource)
    again = convert(checkpoint, tmp_path / "again", Recipe(bits=4))
    monkeypatch.undo()
    plain_folder = convert(checkpoint, tmp_path / "plain")
    for name in ("weights.safetensors", "model.onnx", "openvino_model.xml"):
        assert (again / name).read_bytes() == (plain_folder / name).read_bytes()
    recipes = [json.loads((folder / "embedllm.json").read_text())["recipe"] for folder in (again, plain_folder)]
    assert recipes[0] == recipes[1]
    assert open_package(again).manifest["features"] == []


def test_mean_bits_round_once_more_as_bits_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "qwen3")
    monkeypatch.setattr(open_source, "HuggingFaceSource", HeldSource)
    manifest = open_package(convert(checkpoint, tmp_path / "out", Recipe(mean_bits=7.0))).manifest
    assert manifest["recipe"]["mean_bits"] == 7.0  # type: ignore[index]
    assert "sensitivity" in manifest


def test_one_table_can_be_rounded_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    monkeypatch.setattr(open_source, "HuggingFaceSource", HeldSource)
    manifest = open_package(convert(checkpoint, tmp_path / "out", Recipe(embedding_bits=8))).manifest
    assert section(manifest, "embedding") == Packing(bits=8).entry
    assert section(manifest, "head") == WAYS["lm_head"].entry
    assert section(manifest, "layers.0.attention.q") == WAYS["q_proj"].entry


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        (Recipe(method="gptq"), "the method 'gptq'"),
        (Recipe(rotate=True), "recipe.rotate"),
        (Recipe(size=100_000), "recipe.size"),
    ],
)
def test_what_would_change_the_integers_is_refused(
    recipe: Recipe, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "qwen3")
    monkeypatch.setattr(open_source, "HuggingFaceSource", HeldSource)
    with pytest.raises(ExportError, match=f"quantized already .* which {what} would change.*--bits 4"):
        convert(checkpoint, tmp_path / "out", recipe)
    assert not (tmp_path / "out").exists()


def test_scales_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Broken(HeldSource):
        def packed(self, name: str, start: int, stop: int) -> Packed:
            packed = super().packed(name, start, stop)
            if "v_proj" in name and start == 0:
                packed.scale[0, 0] = np.nan
            return packed

    monkeypatch.setattr(open_source, "HuggingFaceSource", Broken)
    with pytest.raises(ExportError, match=r"v_proj\.weight', rows 0 to .*not finite"):
        convert(tiny_checkpoint(tmp_path / "checkpoint", "qwen3"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_graph_is_written_anew_without_the_source(folders: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folders["llama"], tmp_path / "copy")
    for variant in ("generic-float32", "openvino"):
        write_variant(copy, variant)
    for name in ("model.onnx", "openvino_model.xml", "embedllm.json"):
        assert (copy / name).read_bytes() == (folders["llama"] / name).read_bytes()


def test_a_sharded_copy_needs_the_same_features(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["qwen3"]
    hosted = shard(folder, tmp_path / "hosted", 60_000)
    manifest = json.loads((hosted / "embedllm.json").read_text())
    assert manifest["features"] == [SHARDS, MINIMUMS, FLOAT32_SCALES]
    assert "shards" in manifest
    joined = join(hosted, tmp_path / "joined")
    assert (joined / "embedllm.json").read_bytes() == (folder / "embedllm.json").read_bytes()


def test_what_is_inspected_names_minimums(folders: dict[str, Path]) -> None:
    found = describe_package(open_package(folders["llama"]))
    assert all(graph.problems == () for graph in found.graphs)
    assert any(way.has_minimum and way.bits == 4 and way.group_size == 32 for way in found.packing)


def test_the_npu_is_not_given_wide_scales(folders: dict[str, Path], tmp_path: Path) -> None:
    npu = next(device for device in devices() if device.name == "npu-on-cpu")
    with pytest.raises(DeviceUnavailable, match="have zero points"):
        open_engine(open_package(folders["qwen3"]), npu)


def test_a_manifest_that_makes_no_sense_is_an_error(folders: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(folders["qwen3"], tmp_path / "copy")
    manifest = json.loads((copy / "embedllm.json").read_text())
    manifest["quantization"]["embedding"]["has_minimum"] = "low"
    (copy / "embedllm.json").write_text(json.dumps(manifest))
    with pytest.raises(PackageError, match="'quantization' is not understood"):
        ReferenceEngine(open_package(copy))
