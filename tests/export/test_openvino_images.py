"""Exports that openvino-genai reads images with: their files, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from embedllm.errors import ExportError
from embedllm.export import Recipe, convert, sharding
from embedllm.files.safetensors_header import read_header
from embedllm.package.package import WEIGHTS, open_package
from tests.cli.test_commands import embed
from tests.export.conftest import TOKENIZERS
from tests.support.dynamic_vision import dynamic_chat_checkpoint
from tests.support.openvino_images import FAMILIES, openvino_checkpoint
from tests.support.tiny import tiny_checkpoint
from tests.support.vision import chat_checkpoint

pytestmark = pytest.mark.usefixtures("without_tokenizer")
RECIPE = Recipe(method="nearest")
MODELS = ("text_embeddings", "language", "vision_embeddings")
FILES = {f"openvino_{name}_model.xml" for name in MODELS} | {"config.json", "preprocessor_config.json"}
OF_PATCHES = {"openvino_vision_embeddings_merger_model.xml"}
POSITIONS = {"openvino_vision_embeddings_pos_model.xml"}
_CONSTANT = re.compile(r'type="Const".*? offset="(\d+)" size="')


def more_files(family: str) -> set[str]:
    """Those that a family's folders have for openvino-genai."""
    if family == "gemma4 small":
        return FILES | {"openvino_text_embeddings_per_layer_model.xml"}
    if family in ("gemma3", "gemma4 large"):
        return FILES
    return FILES | OF_PATCHES | (POSITIONS if family.startswith("qwen3") else set())


def links(family: str) -> set[str]:
    return {"openvino_model.bin"} | {name.replace(".xml", ".bin") for name in more_files(family) if ".xml" in name}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_option_adds_small_files_and_links_alone(tmp_path: Path, family: str) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", family)
    plain = convert(checkpoint, tmp_path / "plain", RECIPE)
    seeing = convert(checkpoint, tmp_path / "package", RECIPE, openvino_images=True)
    before, after = open_package(plain), open_package(seeing)
    after.check()
    assert after.files.keys() - before.files.keys() == (more_files(family) | TOKENIZERS) - before.files.keys()
    assert after.graphs == before.graphs
    assert {path.name for path in seeing.iterdir()} - {*after.files, "embedllm.json"} == links(family)
    for name in links(family):
        assert (seeing / name).samefile(seeing / WEIGHTS)
    more = after.files[WEIGHTS].bytes - before.files[WEIGHTS].bytes
    assert 0 < more < 20_000, "small constants of the models, of which each starts a page at most"


@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_is_stored_twice(tmp_path: Path, family: str) -> None:
    folder = convert(openvino_checkpoint(tmp_path / "checkpoint", family), tmp_path / "package", RECIPE,
                     openvino_images=True)  # fmt: skip
    tensors = read_header(folder / WEIGHTS).tensors
    pools = [range(each.offset, each.offset + each.length) for name, each in tensors.items() if "constants" in name]
    starts = {tensor.offset for name, tensor in tensors.items() if "constants" not in name}
    read: set[int] = set()
    for file in more_files(family) - {"config.json", "preprocessor_config.json"}:
        for offset in (int(each[1]) for each in _CONSTANT.finditer((folder / file).read_text())):
            assert offset in starts or any(offset in pool for pool in pools), f"{file} reads from between tensors"
            read |= {offset} & starts
    assert len(read) > 20


def test_a_copy_in_shards_has_no_links_and_a_joined_one_has_all(tmp_path: Path) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen3_vl")
    folder = convert(checkpoint, tmp_path / "package", RECIPE, openvino_images=True)
    assert sharding.unlisted(folder) == []
    hosted = sharding.shard(folder, tmp_path / "hosted", 400_000)
    assert not {path.name for path in hosted.iterdir()} & links("qwen3_vl")
    joined = sharding.join(hosted, tmp_path / "joined")
    assert {path.name for path in joined.iterdir()} >= links("qwen3_vl")
    assert all((joined / name).samefile(joined / WEIGHTS) for name in links("qwen3_vl"))
    cut = convert(checkpoint, tmp_path / "cut", RECIPE, openvino_images=True, shard=400_000)
    assert not {path.name for path in cut.iterdir()} & links("qwen3_vl")


def test_settings_say_what_openvino_genai_has_other_defaults_for(tmp_path: Path) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    before = json.loads((checkpoint / "preprocessor_config.json").read_text())
    folder = convert(checkpoint, tmp_path / "package", RECIPE, openvino_images=True)
    after = json.loads((folder / "preprocessor_config.json").read_text())
    assert after.items() >= before.items()
    assert after.keys() - before.keys() == {"image_mean", "image_std", "min_pixels", "max_pixels"}
    assert (after["min_pixels"], after["max_pixels"]) == tuple(before["size"].values())
    assert after["image_mean"] == pytest.approx([0.48145466, 0.4578275, 0.40821073])  # of transformers


def test_settings_of_videos_too_are_in_one_file(tmp_path: Path) -> None:
    """Then openvino-genai reads no other."""
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "gemma4 small")
    settings = json.loads((checkpoint / "processor_config.json").read_text())
    settings["image_processor"] |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # unused: do_normalize is false
    settings["video_processor"] = {"max_soft_tokens": 70}
    (checkpoint / "processor_config.json").write_text(json.dumps(settings))
    folder = convert(checkpoint, tmp_path / "package", RECIPE, openvino_images=True)
    assert not (folder / "preprocessor_config.json").exists()
    after = json.loads((folder / "processor_config.json").read_text())
    changed = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    assert after == {**settings, "image_processor": {**settings["image_processor"], **changed}}


def test_mixtures_have_the_type_that_openvino_genai_knows(tmp_path: Path) -> None:
    folder = convert(openvino_checkpoint(tmp_path / "checkpoint", "qwen3_vl_moe"), tmp_path / "package", RECIPE,
                     openvino_images=True)  # fmt: skip
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3_vl"


def test_the_command_line_has_it(tmp_path: Path) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    embed("export", str(checkpoint), str(tmp_path / "out"), "--method", "nearest", "--openvino-images", "--quiet")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= more_files("qwen2_vl") | TOKENIZERS


def test_what_openvino_genai_does_not_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name, checkpoint, said in (
        ("text", tiny_checkpoint(tmp_path / "text"), "'qwen3' .* it takes no images. Those that can: gemma3, gemma4"),
        ("smolvlm", chat_checkpoint(tmp_path / "smolvlm"), "'smolvlm' .* it has other inputs there, or no type"),
        ("lfm2", dynamic_chat_checkpoint(tmp_path / "lfm2", "lfm2_vl"), "it has other inputs there, or no type"),
    ):
        with pytest.raises(ExportError, match=said):
            convert(checkpoint, tmp_path / f"{name} package", RECIPE, openvino_images=True)
        assert not (tmp_path / f"{name} package").exists()


def test_a_tokenizer_has_to_have_the_marks_of_images(tmp_path: Path) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    text = (checkpoint / "tokenizer.json").read_text()
    (checkpoint / "tokenizer.json").write_text(text.replace("<|video_pad|>", "<|other|>"))
    with pytest.raises(ExportError, match=r"has no '<\|video_pad\|>', which openvino-genai looks for"):
        convert(checkpoint, tmp_path / "package", RECIPE, openvino_images=True)


def test_an_encoder_whose_numbers_it_does_not_know_is_refused(tmp_path: Path) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    config = json.loads((checkpoint / "config.json").read_text())
    config["vision_config"]["rope_parameters"] = {"rope_theta": 5000.0}
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="a RoPE base of 5000 and patches of 2 images; openvino-genai knows 10000"):
        convert(checkpoint, tmp_path / "package", RECIPE, openvino_images=True)
