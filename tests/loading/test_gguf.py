"""Exports of GGUF files: the folder that the checkpoint's own export has, and errors that name the file's fault."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from embedllm.backends.ort import engine as ort
from embedllm.backends.ort.engine import OrtEngine
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.gguf.iq_grids import ALL_FORMS
from embedllm.export.gguf.reader import read_model
from embedllm.export.gguf.source import GgufSource
from embedllm.export.writing.plan import plan
from embedllm.export.writing.stream import check_source
from embedllm.package.architecture.decoder import Decoder
from embedllm.package.architecture.rope import LongRopeScaling
from embedllm.package.package import open_package
from tests.support import gguf_bytes
from tests.support.gguf_bytes import damaged
from tests.support.gguf_files import Change, Tensors, loaded, write_gguf
from tests.support.tiny import TEMPLATE, tiny_checkpoint

WHOLE = Recipe(bits=32, head_bits=32, embedding_bits=32)
FACTORS = np.array([1, 1, 1.5, 2, 4, 8, 8, 8], np.float32)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama", attention_bias=True)


def weights_of(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("recipe", [WHOLE, Recipe()], ids=["32", "4"])
def test_an_export_is_that_of_the_checkpoint(recipe: Recipe, llama: Path, tmp_path: Path) -> None:
    ours = convert(write_gguf(tmp_path / "m.gguf", llama), tmp_path / "ours", recipe)
    theirs = convert(llama, tmp_path / "theirs", recipe)
    assert (ours / "weights.safetensors").read_bytes() == (theirs / "weights.safetensors").read_bytes()
    for graph in theirs.glob("*.onnx"):
        assert (ours / graph.name).read_bytes() == graph.read_bytes()


def test_an_export_of_blocks_is_that_of_the_floats_that_they_stand_for(llama: Path, tmp_path: Path) -> None:
    """Turned rows among them: the checkpoint has what the GGUF package reads from its own blocks."""
    q8 = gguf.GGMLQuantizationType.Q8_0
    rounded = {
        name: gguf.dequantize(gguf.quantize(values, q8), q8) if values.ndim > 1 else values
        for name, values in loaded(llama / "model.safetensors").items()
    }
    same = tmp_path / "same"
    shutil.copytree(llama, same)
    save_file(rounded, same / "model.safetensors")
    ours = convert(write_gguf(tmp_path / "m.gguf", llama, kind="Q8_0"), tmp_path / "ours", WHOLE)
    theirs = convert(same, tmp_path / "theirs", WHOLE)
    assert (ours / "weights.safetensors").read_bytes() == (theirs / "weights.safetensors").read_bytes()


def test_templates_licence_and_stop_tokens_come_along(llama: Path, tmp_path: Path) -> None:
    more = {"tokenizer.chat_template": TEMPLATE, "tokenizer.chat_template.tool_use": "tools",
            "tokenizer.chat_template.../x": "no name of a file"}  # fmt: skip
    out = convert(write_gguf(tmp_path / "m.gguf", llama, more=more), tmp_path / "out")
    assert (out / "chat_template.jinja").read_text() == TEMPLATE
    assert [(path.name, path.read_text()) for path in (out / "additional_chat_templates").iterdir()] == [
        ("tool_use.jinja", "tools")]  # fmt: skip
    said = json.loads((out / "embedllm.json").read_text())
    # of ChatML's tokens <|im_end|> (2) is the EOS, and <|endoftext|> (0) an end by its text
    assert (said["source"], said["license"], said["tokens"]["stop"]) == ("m.gguf", "apache-2.0", [0, 2])


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_quantized_values_are_those_of_the_gguf_package(kind: str, llama: Path, tmp_path: Path) -> None:
    kept: Tensors = {}

    def remember(tensors: Tensors) -> Tensors:
        kept.update(tensors)
        return tensors

    source = GgufSource(write_gguf(tmp_path / "m.gguf", llama, kind=kind, change=remember))
    try:
        number = gguf.GGMLQuantizationType[kind]
        expected = gguf.dequantize(gguf.quantize(kept["blk.1.ffn_down.weight"], number), number)
        _, tensors = source.tensors(described(source))
        assert np.array_equal(tensors.rows("model.layers.1.mlp.down_proj.weight", 0, 64), expected)
        assert np.array_equal(tensors.rows("model.layers.1.mlp.down_proj.weight", 5, 7), expected[5:7])
    finally:
        source.close()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"])
def test_what_is_quantized_is_carried_over(kind: str, llama: Path, tmp_path: Path) -> None:
    """Rows of q and k, too, which llama.cpp's converter puts in another order."""
    file = write_gguf(tmp_path / "m.gguf", llama, kind=kind)
    carried = open_package(convert(file, tmp_path / "carried", Recipe(exact=True)))
    floats = open_package(convert(file, tmp_path / "floats", Recipe(bits=32)))
    quantization = carried.manifest["quantization"]
    assert isinstance(quantization, dict)
    assert quantization["layers.0.attention.q"] == ALL_FORMS[kind].packing.entry
    assert carried.weights.stat().st_size < 0.6 * floats.weights.stat().st_size
    tokens = list(range(20, 60))
    expected = ReferenceEngine(floats).open().feed_all(tokens)
    np.testing.assert_array_equal(ReferenceEngine(carried).open().feed_all(tokens), expected)
    graph = carried.graph("generic-float32")
    assert graph is not None
    found = OrtEngine(carried, graph, ort.devices()[0]).open().feed_all(tokens)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)  # as in test_passthrough.py


def described(source: GgufSource) -> Decoder:
    return describe(Config(source.config))


def test_factors_of_the_rotation_are_a_tensor(llama: Path, tmp_path: Path) -> None:
    """As llama.cpp's converter writes Llama 3's scaling."""
    source = GgufSource(write_gguf(tmp_path / "m.gguf", llama, change=lambda t: {**t, "rope_freqs.weight": FACTORS}))
    scaling = described(source).rope.scaling
    source.close()
    assert isinstance(scaling, LongRopeScaling)
    assert (scaling.short, scaling.long, scaling.attention_factor) == (tuple(FACTORS.tolist()),) * 2 + (1.0,)


def without(name: str) -> Change:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(("more", "change", "message"), [
    ({"llama.block_count": None}, None, "has no 'block_count'"),
    ({"llama.block_count": 3}, None, "has tensors of 2 layers; its metadata calls for 3"),
    ({"llama.embedding_length": 32}, None, r"tensor '.*' is .*; the file's metadata calls for"),
    ({"llama.attention.head_count": 0}, None, "'attention.head_count' is 0; expected a whole number >= 1"),
    ({}, without("token_embd.weight"), "has no tensor 'token_embd.weight'; expected a whole model"),
    ({}, without("blk.1.ffn_up.weight"), r"has no tensor 'blk\.1\.ffn_up\.weight' \(for 'model\.layers\.1\.mlp\.up"),
    ({}, lambda tensors: {**tensors, "rope_freqs.weight": -FACTORS}, "values that are not above 0"),
    ({"tokenizer.ggml.pre": "no-such"}, None, "unknown pre-tokenizer 'no-such'"),
    ({"tokenizer.ggml.merges": ["no such"]}, None, "the tokenizer of '.*' cannot be used"),
])  # fmt: skip
def test_what_cannot_be_read_is_named(
    more: Mapping[str, Any], change: Change | None, message: str, llama: Path, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "m.gguf", llama, more=more, change=change or (lambda tensors: tensors))
    with pytest.raises(ExportError, match=message):
        convert(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(("more", "message"), [
    ({"llama.some_new_key": 1}, "says 'llama.some_new_key', which is not known here"),
    ({"llama.attention.value_length": 8}, "keys and values of different sizes"),
    ({"llama.attention.scale": 0.5}, "says 'llama.attention.scale'"),
    ({"llama.rope.scaling.type": "magic", "llama.rope.scaling.factor": 2.0}, "scales its rotation by 'magic'"),
])  # fmt: skip
def test_a_variant_that_is_not_described_is_refused(
    more: Mapping[str, Any], message: str, llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        convert(write_gguf(tmp_path / "m.gguf", llama, more=more), tmp_path / "out")


def test_a_tensor_that_no_part_reads_is_refused(llama: Path, tmp_path: Path) -> None:
    more = {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}
    file = write_gguf(tmp_path / "m.gguf", llama, change=lambda tensors: {**tensors, **more})
    with pytest.raises(UnsupportedModel, match=r"has a tensor 'blk\.0\.attn_q_norm\.weight' that is of no part"):
        convert(file, tmp_path / "out")


@pytest.mark.parametrize(("name", "message"), [
    ("starship", "architecture 'starship', which is not read from GGUF. Known: llama, llama4, qwen2"),
    ("mamba", "architecture 'mamba', which is not read: it has layers of a state space model"),
    ("qwen4", "The nearest is 'qwen"),
])  # fmt: skip
def test_an_architecture_that_is_not_known_is_refused(name: str, message: str, tmp_path: Path) -> None:
    said = gguf_bytes.entry("general.architecture", gguf_bytes.STRING, gguf_bytes.text(name))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes.file([said]))
    with pytest.raises(UnsupportedModel, match=message):
        convert(tmp_path / "m.gguf", tmp_path / "out")


def test_a_type_that_is_not_read_is_named(llama: Path, tmp_path: Path) -> None:
    whole = {"blk.1.ffn_up.weight": np.ones((96, 64), np.int8)}
    file = write_gguf(tmp_path / "m.gguf", llama, change=lambda tensors: {**tensors, **whole})
    with pytest.raises(ExportError, match="is I8, which is not read; known: F32, F16, BF16, Q4_0, Q4_1"):
        convert(file, tmp_path / "out")


@pytest.mark.slow
def test_metadata_of_any_values_is_refused_or_read_in_little_memory(llama: Path, tmp_path: Path) -> None:
    rng, refused = random.Random(0), 0
    file = write_gguf(tmp_path / "whole.gguf", llama)
    keys = [key for key in read_model(file).metadata if not key.startswith(("GGUF.", "general.arch"))]
    keys += ["llama.expert_count", "llama.attention.sliding_window", "llama.attention.sliding_window_pattern",
             "llama.rope.scaling.factor", "llama.rope.scaling.type", "llama.rope.scaling.attn_factor"]  # fmt: skip
    for _ in range(100):
        file = write_gguf(tmp_path / "m.gguf", llama, more=damaged(rng, keys))
        tracemalloc.start()
        try:
            source = GgufSource(file)
            try:
                decoder, tensors = source.tensors(described(source))
                check_source(tensors, plan(decoder, Recipe()))
            finally:
                source.close()
        except ExportError:
            refused += 1
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 20_000_000, "a file of 300 kB"
    assert 30 < refused < 100
