"""Exports that onnxruntime-genai reads images with: their files, and what is refused; without it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tokenizers import Tokenizer

from embedllm.errors import ExportError
from embedllm.export import Recipe, convert
from embedllm.export.genai_images import PROCESSOR
from embedllm.files.safetensors_header import read_header
from embedllm.package.package import WEIGHTS, open_package
from tests.cli.test_commands import embed
from tests.support.dynamic_vision import dynamic_chat_checkpoint
from tests.support.genai_images import FAMILIES, genai_checkpoint
from tests.support.tiny import tiny_checkpoint
from tests.support.vision import chat_checkpoint, gemma_chat_checkpoint

RECIPE, CONFIG = Recipe(method="nearest"), "genai_config.json"
GRAPHS = {"genai.embedding.onnx", "genai.decoder.onnx"}
ENCODER = "genai.vision.onnx"  # of images of any size


def more_files(family: str) -> set[str]:
    """Those that an export has with the option only."""
    return GRAPHS | {PROCESSOR} | (set() if family == "gemma3" else {ENCODER})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_option_adds_small_files_alone(tmp_path: Path, family: str) -> None:
    checkpoint = genai_checkpoint(tmp_path / "checkpoint", family)
    plain = convert(checkpoint, tmp_path / "plain", RECIPE)
    seeing = convert(checkpoint, tmp_path / "package", RECIPE, genai_images=True)
    before, after = open_package(plain), open_package(seeing)
    after.check()
    assert after.files.keys() - before.files.keys() - {CONFIG} == more_files(family)
    assert after.graphs == before.graphs
    changed = {name for name in before.files if (plain / name).read_bytes() != (seeing / name).read_bytes()}
    assert changed <= {CONFIG}
    assert json.loads((plain / CONFIG).read_text())["model"]["type"] == "decoder"


@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_is_stored_twice(tmp_path: Path, family: str) -> None:
    checkpoint = genai_checkpoint(tmp_path / "checkpoint", family)
    folder = convert(checkpoint, tmp_path / "package", RECIPE, genai_images=True)
    header = read_header(folder / WEIGHTS)
    starts, end = {tensor.offset for tensor in header.tensors.values()}, (folder / WEIGHTS).stat().st_size
    read: set[int] = set()
    for file in more_files(family) - {PROCESSOR}:
        for tensor in onnx.load(folder / file, load_external_data=False).graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                assert tensor.ByteSize() < 1000, f"{file} has {tensor.name} inside"
                continue
            found = {entry.key: entry.value for entry in tensor.external_data}
            assert found["location"] == WEIGHTS
            assert int(found["offset"]) in starts
            assert int(found["offset"]) + int(found["length"]) <= end
            read.add(int(found["offset"]))
    assert len(read) > 20


def test_the_command_line_has_it(tmp_path: Path) -> None:
    checkpoint = genai_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    embed("export", str(checkpoint), str(tmp_path / "out"), "--method", "nearest", "--genai-images", "--quiet")
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert config["model"]["type"] == "qwen2_5_vl"
    assert config["model"]["vision"]["filename"] == ENCODER


def test_what_it_has_no_type_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name, checkpoint, said in (
        ("text", tiny_checkpoint(tmp_path / "text"), "'qwen3' .* it takes no images. Those that can: gemma3, mistral3"),
        ("smolvlm", chat_checkpoint(tmp_path / "smolvlm"), "'smolvlm' .* it has no type there"),
        ("lfm2", dynamic_chat_checkpoint(tmp_path / "lfm2", "lfm2_vl"), "it has no type there"),
        ("gemma", gemma_chat_checkpoint(tmp_path / "gemma"), "an image as 16 tokens; onnxruntime-genai expects 256"),
    ):
        with pytest.raises(ExportError, match=said):
            convert(checkpoint, tmp_path / f"{name} package", RECIPE, genai_images=True)
        assert not (tmp_path / f"{name} package").exists()


def test_a_tokenizer_has_to_have_the_marks_of_images(tmp_path: Path) -> None:
    checkpoint = genai_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    text = (checkpoint / "tokenizer.json").read_text()
    (checkpoint / "tokenizer.json").write_text(text.replace("<|vision_end|>", "<|other|>"))
    with pytest.raises(ExportError, match=r"has no '<\|vision_end\|>'"):
        convert(checkpoint, tmp_path / "package", RECIPE, genai_images=True)
    (checkpoint / "tokenizer.json").write_text(text)
    config = json.loads((checkpoint / "config.json").read_text())
    other = Tokenizer.from_str(text).token_to_id("<|vision_end|>")
    (checkpoint / "config.json").write_text(json.dumps({**config, "image_token_id": other}))
    with pytest.raises(ExportError, match=r"'<\|image_pad\|>' is 300 in the tokenizer, and 302 in config.json"):
        convert(checkpoint, tmp_path / "package", RECIPE, genai_images=True)


def test_a_kernel_that_it_has_not_is_refused(tmp_path: Path) -> None:
    checkpoint = genai_checkpoint(tmp_path / "checkpoint", "gemma3")
    settings = json.loads((checkpoint / "preprocessor_config.json").read_text())
    (checkpoint / "preprocessor_config.json").write_text(json.dumps({**settings, "resample": 5}))
    with pytest.raises(ExportError, match=r"by Pillow's kernel 5; onnxruntime-genai has 0, 1, 2, 3"):
        convert(checkpoint, tmp_path / "package", RECIPE, genai_images=True)
