"""convert(): what is in the folder. Every tensor is stored once, every graph points at it, the bytes are the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from embedllm.errors import ExportError
from embedllm.export import Progress, Recipe, convert
from embedllm.export.layout import CONSTANTS
from embedllm.export.rounding.quantize import quantize
from embedllm.files.safetensors_header import read_header
from embedllm.package.file_state import sampled_sha256
from embedllm.package.package import MANIFEST, WEIGHTS, open_package, sha256
from embedllm.package.packing import Packing
from embedllm.profiling.inspection.graph_check import check_ir
from tests.support.tiny import tiny_checkpoint, tiny_config, tiny_tensors

GENERIC = ("model.onnx", "model.fp16.onnx", "model.fp32.onnx", "model.webgpu.onnx")
DML = "model.dml.onnx"
GRAPHS = (*GENERIC, DML)
WASM = "model.wasm.onnx"  # reads a file that is on no disk: tests/package/test_wasm_floats.py
IR = "openvino_model.xml"
ITEM_BYTES: dict[int, int] = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.UINT8: 1}
NEAREST = Recipe(method="nearest")  # for what goes beside the weights: of a third of the default's time
STORED_AS = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "U8": TensorProto.UINT8}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def graphs_of(package: Path) -> list[str]:
    """Those that the folder has; DirectML has no windows."""
    windows = any(attention.window for attention in open_package(package).decoder.attentions)
    found = [file for file in GRAPHS if (package / file).exists()]
    assert found == list(GENERIC if windows else GRAPHS)
    return found


def manifest_of(package: Path) -> dict[str, object]:
    return json.loads((package / MANIFEST).read_text(encoding="utf-8"))


# What is in the folder


def test_the_folder_holds_what_the_manifest_says_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "LICENSE").write_text("do as you like")
    (checkpoint / "NOTICE.txt").write_text("and say so")
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
    (checkpoint / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model")
    (checkpoint / "training_args.bin").write_bytes(b"not for others")
    package = convert(checkpoint, tmp_path / "package")
    manifest = manifest_of(package)
    files = manifest["files"]
    assert isinstance(files, dict)
    expected = {WEIGHTS, *GRAPHS, WASM, IR, "genai_config.json", "tokenizer.json", "tokenizer_config.json",
                "generation_config.json", "chat_template.jinja", "LICENSE", "NOTICE.txt"}  # fmt: skip
    assert set(files) == expected
    assert {path.name for path in package.iterdir()} == {MANIFEST, *expected}
    for name, entry in files.items():
        sampled = {"sampled_sha256": sampled_sha256(package / name)} if name == WEIGHTS else {}
        assert entry == {"bytes": (package / name).stat().st_size, "sha256": sha256(package / name), **sampled}
    assert manifest["license"] == "apache-2.0"
    for name in ("LICENSE", "tokenizer.json", "chat_template.jinja"):
        assert (package / name).read_bytes() == (checkpoint / name).read_bytes()


def test_the_manifest_says_how_it_was_made(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "qwen2-tiny", "qwen2")
    recipe = Recipe(bits=4, group_size=16, symmetric=False, head_bits=8, embedding_bits=16, context=100)
    manifest = manifest_of(convert(checkpoint, tmp_path / "package", recipe))
    assert (manifest["format"], manifest["features"], manifest["name"], manifest["source"]) == (
        1,
        [],
        "package",
        "qwen2-tiny",
    )
    assert manifest["context"] == 100
    assert manifest["tokens"] == {"bos": None, "pad": 0, "stop": [2, 0]}
    assert manifest["recipe"] == {"bits": 4, "group_size": 16, "symmetric": False, "head_bits": 8, "embedding_bits": 16,
                                  "method": "weighted", "context": 100, "exact": False,
                                  "size": None, "mean_bits": None, "rotate": False}  # fmt: skip
    quantization = manifest["quantization"]
    assert isinstance(quantization, dict)
    assert quantization["layers.0.attention.q"] == {"bits": 4, "group_size": 16, "symmetric": False}
    assert (quantization["head"]["bits"], quantization["embedding"]["bits"]) == (8, 16)
    assert len(quantization) == 2 * 7 + 2


def test_no_path_of_this_machine_is_in_the_folder(checkpoint: Path, tmp_path: Path) -> None:
    for name, data in contents(convert(checkpoint, tmp_path / "package")).items():
        assert str(tmp_path).encode() not in data, name


@pytest.mark.parametrize(
    ("generation", "config", "stop"),
    [
        ({"eos_token_id": [2, 5]}, {"eos_token_id": 7}, [2, 5]),
        ({"eos_token_id": None}, {"eos_token_id": 7}, [7, 2]),
        ({}, {"eos_token_id": [7, 8]}, [7, 8, 2]),
        (None, {"eos_token_id": 7}, [7, 2]),
        (None, {"eos_token_id": None}, [2]),
    ],
)
def test_generation_settings_go_before_the_config(
    generation: dict[str, object] | None, config: dict[str, object], stop: list[int], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", **config)  # type: ignore[arg-type]
    (checkpoint / "generation_config.json").unlink()
    if generation is not None:
        (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    found = open_package(convert(checkpoint, tmp_path / "package", NEAREST)).stop_tokens
    assert found == (*stop, 0)  # the last by its text, "<|endoftext|>"


@pytest.mark.parametrize(("given", "taken"), [(-1, None), (0, 0), (306, 306), (307, None), (None, None)])
def test_a_bos_or_pad_token_outside_of_the_vocabulary_is_none(
    given: int | None, taken: int | None, checkpoint: Path, tmp_path: Path
) -> None:
    """Configs say -1, or one more than there are, for a token that they do not have."""
    (checkpoint / "generation_config.json").write_text(json.dumps({"bos_token_id": given, "pad_token_id": given}))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "pad_token_id": None, "bos_token_id": None}))
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    assert manifest_of(package)["tokens"] == {"bos": taken, "pad": taken, "stop": [2, 0]}
    model = json.loads((package / "genai_config.json").read_text())["model"]
    assert model.get("bos_token_id") == taken
    assert model["pad_token_id"] == (2 if taken is None else taken)  # onnxruntime-genai wants one: the stop token


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ('---\nlicense: "llama3.1"\n---\n', "llama3.1"),
        ("---\r\nlicence: 'other'\r\n---\r\n", "other"),
        ("# license: mit", None),
        ("---\ntitle: x\n---\nlicense: mit", None),
        ("", None),
        (None, None),
    ],
)
def test_the_license_is_that_of_the_model_card(
    card: str | None, expected: str | None, checkpoint: Path, tmp_path: Path
) -> None:
    if card is not None:
        (checkpoint / "README.md").write_bytes(card.encode())
    assert manifest_of(convert(checkpoint, tmp_path / "package", NEAREST))["license"] == expected


# The weights

RECIPES = {
    "4 bits": Recipe(),
    "4 bits, zero points, odd groups": Recipe(group_size=64, symmetric=False),
    "8 bits, zero points": Recipe(bits=8, group_size=16, symmetric=False),
    "16 bits": Recipe(bits=16),
    "32 bits": Recipe(bits=32),
    "mixed": Recipe(bits=4, head_bits=8, embedding_bits=16),
}
MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral, window": ("mistral", {"sliding_window": 8}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True, "hidden_size": 72, "intermediate_size": 136}),
    "qwen3, tied": ("qwen3", {}),
}
CASES = [
    pytest.param(family, config, recipe, id=f"{model}, {name}")
    for model, (family, config) in MODELS.items()
    for name, recipe in RECIPES.items()
    if not (recipe.embedding_bits and "tied" in model)
]


@pytest.mark.parametrize(("family", "config", "recipe"), CASES)
def test_every_tensor_is_stored_once_and_every_graph_points_at_it(
    family: str, config: dict[str, object], recipe: Recipe, tiny_package: Callable[..., Path]
) -> None:
    """Every external initializer is a run of whole entries of its type; together they are the file but for gaps."""
    package = tiny_package(family, recipe, **config)
    header = read_header(package / WEIGHTS)
    entries = {t.offset: (name, t) for name, t in header.tensors.items()}
    names = {name for name, _ in entries.values() if not name.startswith("gap.")} - {CONSTANTS}
    root = ElementTree.parse(package / IR).getroot()
    spans, problems = check_ir(root, header, (package / WEIGHTS).stat().st_size)
    assert problems == ()
    covered = {at for span in spans for at in entries if span.start <= at < span.stop}
    assert {entries[at][0] for at in covered} == names
    for file in graphs_of(package):
        model = onnx.load(package / file, load_external_data=False)
        assert (package / file).stat().st_size < 100_000
        seen: set[str] = set()
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                assert tensor.data_type in (TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT16)
                assert tensor.ByteSize() < 200
                continue
            place = {entry.key: entry.value for entry in tensor.external_data}
            assert place.pop("location") == WEIGHTS
            offset, length = int(place.pop("offset")), int(place.pop("length"))
            assert not place
            assert length == np.prod(tensor.dims, dtype=np.int64) * ITEM_BYTES[tensor.data_type]
            while length > 0:
                name, entry = entries[offset]
                assert STORED_AS[entry.dtype] == tensor.data_type
                assert name in names
                seen.add(name)
                offset, length = offset + entry.length, length - entry.length
            assert length == 0
        assert seen == names


def test_the_graphs_do_not_grow_with_the_weights(tiny_package: Callable[..., Path]) -> None:
    small, large = tiny_package("llama"), tiny_package("llama", hidden_size=512, intermediate_size=1024)
    assert (large / WEIGHTS).stat().st_size > 8 * (small / WEIGHTS).stat().st_size
    for file in GRAPHS:
        assert abs((large / file).stat().st_size - (small / file).stat().st_size) < 1000


@pytest.mark.parametrize(("family", "config", "recipe"), CASES[:: len(CASES) // 5])
def test_onnx_understands_the_graphs_and_onnx_runtime_loads_them(
    family: str, config: dict[str, object], recipe: Recipe, tiny_package: Callable[..., Path]
) -> None:
    package = tiny_package(family, recipe, **config)
    for file in graphs_of(package):
        # no onnx.checker: SimplifiedLayerNormalization is of the default domain in ONNX Runtime only
        onnx.shape_inference.infer_shapes(onnx.load(package / file, load_external_data=False), check_type=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(package / file), options, providers=["CPUExecutionProvider"])
        layers = range(2)
        kv = [f"{index}.{part}" for index in layers for part in ("key", "value")]
        given = ["attention_mask"], []
        if file == DML:
            given = ["position_ids", "seqlens_k", "total_sequence_length"], ["logits_at"]
        inputs = ["input_ids", *given[0], *(f"past_key_values.{name}" for name in kv), *given[1]]
        assert [i.name for i in session.get_inputs()] == inputs
        assert [o.name for o in session.get_outputs()] == ["logits", *(f"present.{name}" for name in kv)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("bits", [16, 32])
def test_float_weights_are_those_of_the_source(family: str, dtype: str, bits: int, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", family, dtype=dtype)
    package = open_package(convert(checkpoint, tmp_path / "package", Recipe(bits=bits)))
    stored = dict(read_tensors(package.weights))
    source = {name: as_stored(value, dtype) for name, value in tiny_tensors(tiny_config(family), seed=0).items()}
    names = {f"{m.source}.{kind}": f"{m.name}.{kind}" for m in matrices_of(package) for kind in ("weight", "bias")}
    for name, value in source.items():
        ours = stored[names.get(name) or norm_name(name)]
        kind = np.float16 if bits == 16 and value.ndim == 2 else np.float32  # small tensors stay exact
        assert ours.dtype == kind
        assert np.array_equal(ours, value.astype(kind)), name


@pytest.mark.parametrize("piece", [1, 1000, 1 << 18])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(method="search", symmetric=True),
        Recipe(method="search", symmetric=False),
        Recipe(method="nearest", symmetric=True),
        Recipe(bits=8, group_size=16, symmetric=False),
    ],
    ids=["4", "4, zero points", "4, nearest", "8"],
)
def test_pieces_make_the_matrix_that_quantizing_it_whole_makes(
    piece: int, recipe: Recipe, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows are read at once, on however many cores."""
    monkeypatch.setattr("embedllm.export.writing.stream._PIECE", piece)
    package = open_package(convert(checkpoint, tmp_path / "package", recipe))
    stored = dict(read_tensors(package.weights))
    source = tiny_tensors(tiny_config(), seed=0)
    packing = Packing(bits=recipe.body_bits, group_size=recipe.group_size, symmetric=recipe.symmetric is True)
    for matrix in matrices_of(package):
        packed = quantize(source[f"{matrix.source}.weight"], packing, search=recipe.method == "search")
        assert np.array_equal(stored[f"{matrix.name}.weight"], packed.weight), matrix.name
        assert np.array_equal(stored[f"{matrix.name}.scale"], packed.scale)
        if packed.zero is not None:
            assert np.array_equal(stored[f"{matrix.name}.zero"], packed.zero)


def read_tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    data = file.read_bytes()
    for name, tensor in read_header(file).tensors.items():
        kind = {"F32": np.float32, "F16": np.float16, "U8": np.uint8}[tensor.dtype]
        yield name, np.frombuffer(data[tensor.offset : tensor.offset + tensor.length], kind).reshape(tensor.shape)


def as_stored(value: np.ndarray, dtype: str) -> np.ndarray:
    """What a checkpoint of that type holds of a float32 value."""
    if dtype == "BF16":
        return (value.view(np.uint32) >> 16 << 16).view(np.float32)
    return value.astype(np.float16 if dtype == "F16" else np.float32).astype(np.float32)


def matrices_of(package: object) -> list:
    from embedllm.package.tensors import linears

    decoder = package.decoder  # type: ignore[attr-defined]
    return [linear for layer in decoder.layers for linear in linears(layer)] + [decoder.embedding, decoder.head]


def norm_name(source: str) -> str:
    """model.layers.1.self_attn.q_norm.weight -> layers.1.attention.q_norm.weight"""
    for theirs, ours in (("model.", ""), ("self_attn", "attention"), ("input_layernorm", "attention_norm"),
                         ("post_attention_layernorm", "mlp_norm")):  # fmt: skip
        source = source.replace(theirs, ours)
    return source


# The same bytes


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(bits=8, symmetric=False), Recipe(bits=16)], ids=str)
def test_two_exports_are_equal_byte_for_byte(recipe: Recipe, checkpoint: Path, tmp_path: Path) -> None:
    first = contents(convert(checkpoint, tmp_path / "a" / "package", recipe))
    second = contents(convert(checkpoint, tmp_path / "b" / "package", recipe, verify=False))
    assert first == second


def test_shards_give_the_same_bytes_as_one_file(tmp_path: Path) -> None:
    whole = tiny_checkpoint(tmp_path / "one" / "model", "qwen2")
    shards = tiny_checkpoint(tmp_path / "three" / "model", "qwen2", shards=3)
    assert not (shards / "model.safetensors").exists()
    assert contents(convert(whole, tmp_path / "a" / "package")) == contents(convert(shards, tmp_path / "b" / "package"))


def test_a_link_to_a_source_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(checkpoint, target_is_directory=True)
    direct = convert(checkpoint, tmp_path / "a" / "package", NEAREST)
    assert contents(direct) == contents(convert(tmp_path / "link", tmp_path / "b" / "package", NEAREST))


def test_a_download_cache_of_links_into_blobs_is_a_source(checkpoint: Path, tmp_path: Path) -> None:
    """models--org--name/snapshots/REVISION/file -> ../../blobs/HASH, relative, as the hub's client writes it."""
    direct = contents(convert(checkpoint, tmp_path / "a" / "package", NEAREST))
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / checkpoint.name
    (cache / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in list(checkpoint.iterdir()):
        blob = cache / "blobs" / sha256(path)
        path.rename(blob)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    package = convert(snapshot, tmp_path / "b" / "package", NEAREST)
    assert contents(package) == direct
    assert not any(path.is_symlink() for path in package.iterdir())


def test_progress_counts_every_byte_and_graph(checkpoint: Path, tmp_path: Path) -> None:
    reports: list[Progress] = []
    package = convert(checkpoint, tmp_path / "package", verify=True, on_progress=reports.append)
    stages = list(dict.fromkeys(report.stage for report in reports))
    assert stages == ["inputs", "weights", "graphs", "verify"]
    for stage in stages:
        done = [report.done for report in reports if report.stage == stage]
        assert done == sorted(done)
        assert {report.total for report in reports if report.stage == stage} == {done[-1]}
    assert {report.total for report in reports if report.stage == "weights"} == {(package / WEIGHTS).stat().st_size}


def test_a_verified_package_is_whole_and_says_what_was_measured(checkpoint: Path, tmp_path: Path) -> None:
    package = convert(checkpoint, tmp_path / "package", verify=True)
    open_package(package).check()
    verification = manifest_of(package)["verification"]
    assert isinstance(verification, dict)
    assert set(verification) == {"tokens", "seed", *GRAPHS, WASM, IR}
    assert 0 < verification["model.onnx"]["max_difference"] < 0.2


def test_templates_licences_and_notices_go_along(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")
    texts = {
        "License.txt": "free",
        "NOTICE": "thanks",
        "chat_template.json": "{}",
        "additional_chat_templates/tool_use.jinja": "{{ tools }}",
    }
    for name, content in texts.items():
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text(content)
    (checkpoint / "LICENSES").mkdir()
    (checkpoint / "notes.txt").write_text("not for others")
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    assert {name: (package / name).read_text() for name in texts} == texts
    assert not (package / "LICENSES").exists()
    assert not (package / "notes.txt").exists()
    assert texts.keys() <= open_package(package).files.keys()


def test_without_a_method_an_export_goes_on_where_calibration_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the tokenizer has tokens that the embedding has no rows for. Asked for by name, a method fails."""
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama", vocab_size=200)
    manifest = manifest_of(convert(checkpoint, tmp_path / "package"))
    recipe = manifest["recipe"]
    assert isinstance(recipe, dict)
    assert recipe["method"] == "search"
    assert "calibration" not in manifest
    assert "exported without calibration, by the method 'search': the tokenizer of" in caplog.text
    with pytest.raises(ExportError, match="expected less than 200, the rows of the model's embedding"):
        convert(checkpoint, tmp_path / "other", Recipe(method="weighted"))
