"""Exports that openvino-genai reads images with: their files, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from embedllm.errors import ExportError
from embedllm.export import Recipe, convert, sharding
from embedllm.export.graphs import write_variant
from embedllm.export.writing.atomic_folder import check_place
from embedllm.files.safetensors_header import read_header
from embedllm.images.any_size import AnySizeProcessor
from embedllm.images.processors import open_processor
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
    expected = more_files(family) | TOKENIZERS | {"generation_config.json"}  # with all stop tokens
    assert after.files.keys() - before.files.keys() == expected - before.files.keys()
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
    check_place(folder, replace=True)  # the links among it, which the manifest does not list
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


@pytest.mark.parametrize("changes", [{"rescale_factor": 1 / 127.5}, {"do_rescale": False}, {"do_normalize": False}])
def test_rewritten_settings_mean_the_same(tmp_path: Path, changes: dict[str, object]) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    path = checkpoint / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    folder = convert(checkpoint, tmp_path / "package", RECIPE, openvino_images=True)
    vision = open_package(folder).decoder.vision
    assert vision is not None
    before, after = (open_processor(each, vision, {}) for each in (checkpoint, folder))
    assert isinstance(before, AnySizeProcessor)
    assert isinstance(after, AnySizeProcessor)
    assert after.pixels.mean == pytest.approx(before.pixels.mean)
    assert after.pixels.std == pytest.approx(before.pixels.std)


def test_the_configuration_has_what_openvino_genai_reads(tmp_path: Path) -> None:
    """Whatever a checkpoint leaves out, of which it has other defaults."""
    for family, section, expected in (
        ("qwen2_5_vl", "vision_config", {"window_size": 16, "patch_size": 4}),
        ("qwen3_vl", "vision_config", {"num_position_embeddings": 25, "deepstack_visual_indexes": [0, 1]}),
        ("gemma4 small", "text_config", {"hidden_size_per_layer_input": 24, "use_bidirectional_attention": None}),
        ("gemma4 large", "text_config", {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"}),
    ):
        checkpoint = openvino_checkpoint(tmp_path / f"{family} checkpoint", family)
        folder = convert(checkpoint, tmp_path / family, RECIPE, openvino_images=True)
        found = json.loads((folder / "config.json").read_text())[section]
        assert {key: found[key] for key in expected} == expected, family


def test_angles_are_computed_in_float32(tmp_path: Path) -> None:
    """Whatever the precision of the rest: 8 bits of a mantissa tell no angles beyond 100 apart."""
    for family, file in (("gemma4 small", "vision_embeddings"), ("qwen2_vl", "vision_embeddings_merger")):
        checkpoint = openvino_checkpoint(tmp_path / f"{family} checkpoint", family)
        folder = convert(checkpoint, tmp_path / family, RECIPE, openvino_images=True)
        lines = (folder / f"openvino_{file}_model.xml").read_text().splitlines()
        angles = [line for line in lines if 'type="Cos"' in line or 'type="Sin"' in line]
        assert len(angles) == 2
        assert all('name="precise"' in line for line in angles)


def test_mixed_precision_has_it_too(tmp_path: Path) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    recipe = Recipe(mean_bits=9.0, method="nearest")
    folder = convert(checkpoint, tmp_path / "package", recipe, openvino_images=True)
    open_package(folder).check()
    assert any("language.constants" in name for name in read_header(folder / WEIGHTS).tensors)


def test_an_encoder_of_any_size_is_written_again_under_its_name(tmp_path: Path) -> None:
    checkpoint = openvino_checkpoint(tmp_path / "checkpoint", "qwen2_vl")
    folder, name = convert(checkpoint, tmp_path / "package", RECIPE), "openvino_vision.xml"
    text = (folder / name).read_bytes()
    assert write_variant(folder, "vision-openvino").file == name
    old, manifest = "openvino_vision_embeddings_model.xml", folder / "embedllm.json"
    manifest.write_text(manifest.read_text().replace(f'"{name}"', f'"{old}"'))  # as folders had it before
    (folder / name).rename(folder / old)
    assert write_variant(folder, "vision-openvino").file == old
    assert (folder / old).read_bytes() == text
    open_package(folder).check()


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
        ("smolvlm", chat_checkpoint(tmp_path / "smolvlm"), "'smolvlm' .* it has no type there, or other inputs"),
        ("lfm2", dynamic_chat_checkpoint(tmp_path / "lfm2", "lfm2_vl"), "it has no type there, or other inputs"),
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
