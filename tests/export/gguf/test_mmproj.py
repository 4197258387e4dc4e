"""Models that see in two GGUF files, text model and vision encoder, against the checkpoints they were made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import load_file, save_file

import embedllm
from embedllm.backends.base import FeedsAll
from embedllm.backends.images import images_of, place_images
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.cli.main import cli
from embedllm.errors import ExportError, UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.export.gguf.source import GgufSource
from embedllm.images.processors import open_processor
from embedllm.images.settings import read_settings
from embedllm.package.architecture.vision import DynamicVision, Vision
from embedllm.package.package import open_package
from embedllm.package.packing import packings
from embedllm.package.tensors import vision_runs
from tests.support.dynamic_vision import dynamic_image, dynamic_prompt
from tests.support.gguf_files import Tensors, write_gguf
from tests.support.gguf_mmproj import QWEN, Pair, changed, seeing_checkpoint, write_mmproj, write_pair, write_text
from tests.support.tiny import tiny_checkpoint
from tests.support.vision import TILE_TOKENS

WHOLE = Recipe(bits=32, head_bits=32, embedding_bits=32)
FAMILIES = ["idefics3", "gemma3", "mistral3", "lfm2_vl", "gemma4 small", "gemma4 large", *sorted(QWEN)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a family, made once."""
    root, found = tmp_path_factory.mktemp("seeing"), dict[str, Path]()

    def checkpoint(family: str) -> Path:
        if family not in found:
            found[family] = seeing_checkpoint(root / family, family)
        return found[family]

    return checkpoint


def assert_same_export(ours: Path, theirs: Path) -> None:
    found, expected = (load_file(folder / "weights.safetensors") for folder in (ours, theirs))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if name.endswith(".log_decay"):  # files have its exponential, rounded to float32
            np.testing.assert_allclose(found[name], values, atol=1e-6, rtol=0)
        else:
            np.testing.assert_array_equal(found[name], values, name)
    graphs = sorted(graph.name for graph in theirs.glob("*.onnx"))
    assert graphs
    assert [name for name in graphs if (ours / name).read_bytes() != (theirs / name).read_bytes()] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_that_of_the_checkpoint(family: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    """Weights, graphs and the image processor, bit for bit; the encoder is found beside the text model."""
    folder = made(family)
    settings = read_settings(folder)
    assert settings is not None
    sizes: Any = settings.values.get("size", {})
    limits = {"clip.vision.image_min_pixels": sizes.get("shortest_edge"),
              "clip.vision.image_max_pixels": sizes.get("longest_edge")}  # fmt: skip
    pair = write_pair(tmp_path / "gguf", folder, more=limits if family in QWEN else {})
    ours, theirs = convert(pair.text, tmp_path / "ours", WHOLE), convert(folder, tmp_path / "theirs", WHOLE)
    assert_same_export(ours, theirs)
    vision = open_package(ours).decoder.vision
    assert isinstance(vision, Vision | DynamicVision)
    named = json.loads((folder / "tokenizer_config.json").read_text())
    assert open_processor(ours, vision, {}) == open_processor(theirs, vision, named)


def test_mistral_small_of_older_files_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    """Whose text model is a 'llama'; and an encoder of GELU with another base, whose projector has biases."""
    folder = seeing_checkpoint(tmp_path / "checkpoint", "mistral3")
    config = json.loads((folder / "config.json").read_text())
    text = {**config["text_config"], "model_type": "mistral", "rope_parameters": {"rope_theta": 1e9}}
    vision = {**config["vision_config"], "hidden_act": "gelu", "rope_parameters": {"rope_theta": 500.0}}
    changed(folder / "config.json", text_config=text, vision_config=vision, multimodal_projector_bias=True)
    tensors, random = load_file(folder / "model.safetensors"), np.random.default_rng(3)
    biases = {f"multi_modal_projector.linear_{at}.bias": random.standard_normal(64).astype(np.float32) for at in (1, 2)}
    save_file({**tensors, **biases}, folder / "model.safetensors")
    pair = write_pair(tmp_path / "gguf", folder, architecture="llama", more={"clip.rope.freq_base": 500.0})
    ours, theirs = convert(pair.text, tmp_path / "ours", WHOLE), convert(folder, tmp_path / "theirs", WHOLE)
    assert_same_export(ours, theirs)
    assert open_package(ours).decoder.vision == open_package(theirs).decoder.vision


def test_a_projector_of_lfm2_without_norm_and_biases_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    folder = seeing_checkpoint(tmp_path / "checkpoint", "lfm2_vl")
    changed(folder / "config.json", projector_bias=False, projector_use_layernorm=False)
    tensors, projector = load_file(folder / "model.safetensors"), "model.multi_modal_projector."
    lacking = (f"{projector}layer_norm", f"{projector}linear_1.bias", f"{projector}linear_2.bias")
    left = {name: values for name, values in tensors.items() if not name.startswith(lacking)}
    save_file(left, folder / "model.safetensors")
    pair = write_pair(tmp_path / "gguf", folder)
    assert_same_export(convert(pair.text, tmp_path / "ours", WHOLE), convert(folder, tmp_path / "theirs", WHOLE))


def test_an_encoder_of_sounds_in_the_same_file_is_left_out(made: Callable[[str], Path], tmp_path: Path) -> None:
    def heard(tensors: Tensors) -> Tensors:
        return {**tensors, **dict.fromkeys(("a.blk.0.attn_q.weight", "mm.a.input_projection.weight"), np.ones((4, 4)))}

    folder = made("gemma4 small")
    said = {"clip.has_audio_encoder": True, "clip.audio.projector_type": "gemma4a", "clip.audio.block_count": 1}
    pair = write_pair(tmp_path / "gguf", folder, change=heard, more=said)
    assert_same_export(convert(pair.text, tmp_path / "ours", WHOLE), convert(folder, tmp_path / "theirs", WHOLE))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "lfm2_vl", "gemma4 small", "gemma4 large"])
def test_features_and_logits_are_those_of_the_checkpoint(
    family: str, made: Callable[[str], Path], tmp_path: Path
) -> None:
    """Through ONNX Runtime, with rounded weights."""
    folder, image = made(family), dynamic_image(1, 3, 5)
    pair = write_pair(tmp_path / "gguf", folder)
    tokens, images = dynamic_prompt([5, 6], image, [7, 8, 9])
    found: list[np.ndarray] = []
    for source in (pair.text, folder):
        package = convert(source, tmp_path / f"package{len(found)}", Recipe(bits=8, exact=True))
        with embedllm.load(package, device="cpu", exact=True) as llm:
            kept = images_of(llm.runner.engine)
            assert kept is not None
            kept.add(images)

            def fed(llm: embedllm.Model = llm) -> np.ndarray:
                session = llm.runner.engine.open()
                assert isinstance(session, FeedsAll)
                return session.feed_all(place_images(tokens, images, 300))

            found.append(llm.runner.call(fed))
    assert found[1].std() > 0.3
    np.testing.assert_allclose(found[0], found[1], atol=1e-4, rtol=0)


def test_a_loaded_file_takes_images_once_its_encoder_lies_beside_it(
    made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    folder, picture = made("idefics3"), np.zeros((40, 40, 3), np.uint8)
    file = write_text(tmp_path / "model.gguf", folder)
    (tmp_path / "mmproj-link.gguf").mkdir()  # no file, as a link that leads nowhere
    content = [{"type": "image", "image": Image.fromarray(picture)}, {"type": "text", "text": "what?"}]
    message: Any = [{"role": "user", "content": content}]
    with embedllm.load(file, device="cpu") as llm, pytest.raises(ValueError, match="takes no images"):
        llm.chat(message, max_tokens=2)
    write_mmproj(tmp_path / "a-mmproj-b.gguf", folder, json.loads((folder / "config.json").read_text()))
    with embedllm.load(file, device="cpu") as llm:
        assert llm.chat(message, max_tokens=2).text is not None
        assert [image.tokens for image in llm.request(message).images] == [5 * TILE_TOKENS]


@pytest.mark.parametrize("family", ["idefics3", "qwen2_vl", "gemma4 small", "lfm2_vl"])
def test_quantized_matrices_are_kept(family: str, made: Callable[[str], Path], tmp_path: Path) -> None:
    """Those whose rows are whole blocks, of the text model and of the encoder's MLP and projector."""
    pair = write_pair(tmp_path / "gguf", made(family), kind="Q8_0")
    kept = open_package(convert(pair.text, tmp_path / "kept", Recipe(exact=True)))
    floats = open_package(convert(pair.text, tmp_path / "floats", WHOLE))
    packing = packings(kept.manifest)
    matrices = [linear for run in vision_runs(kept.decoder) for linear in run]
    assert {packing[linear.name].bits for linear in matrices} == ({8} if family.startswith("gemma4") else {8, 32})
    engines = [ReferenceEngine(package) for package in (kept, floats)]
    for linear in matrices:
        found, wanted = (engine.matrix(linear) for engine in engines)
        np.testing.assert_array_equal(found, wanted)
    for engine in engines:
        engine.close()


def exchanged(tensors: Tensors) -> Tensors:
    """As older converters named them."""
    names = {name: name.replace("ffn_up", "ffn_?").replace("ffn_down", "ffn_up").replace("ffn_?", "ffn_down")
             for name in tensors}  # fmt: skip
    return {names[name]: values for name, values in tensors.items()}


def apart(tensors: Tensors) -> Tensors:
    """Queries, keys and values in three tensors."""
    found = dict(tensors)
    for name in tensors:
        if ".attn_qkv." in name:
            parts = zip("qkv", np.split(found.pop(name), 3), strict=True)
            found |= {name.replace("qkv", part): values for part, values in parts}
    return found


@pytest.mark.parametrize(("family", "change"), [("idefics3", exchanged), ("qwen2_vl", exchanged), ("qwen3_vl", apart)])
def test_variants_of_files_are_read_alike(
    family: str, change: Callable[[Tensors], Tensors], made: Callable[[str], Path], tmp_path: Path
) -> None:
    plain, other = (write_pair(tmp_path / f"{at}", made(family), change=how) for at, how in enumerate((dict, change)))
    assert_same_export(convert(other.text, tmp_path / "other", WHOLE), convert(plain.text, tmp_path / "plain", WHOLE))


@pytest.fixture(scope="module")
def pair(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Of Idefics 3; the encoder's name does not say what it is."""
    return write_pair(tmp_path_factory.mktemp("pair"), made("idefics3"), name="encoder.gguf")


def sees(file: Path, mmproj: Path | bool = True) -> bool:
    source = GgufSource(file, mmproj)
    source.close()
    return "vision_config" in source.config


def test_which_encoder_is_taken(pair: Pair, made: Callable[[str], Path], tmp_path: Path) -> None:
    assert not sees(pair.text)
    assert sees(pair.text, pair.mmproj)
    beside = write_pair(tmp_path, made("idefics3"), name="model.MMPROJ.gguf")
    assert sees(beside.text)
    assert not sees(beside.text, mmproj=False)
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"GGUF")
    assert sees(beside.text)
    write_pair(tmp_path / "other", made("qwen3_vl"), name="mmproj-other.gguf").mmproj.rename(tmp_path / "mmproj-q.gguf")
    assert sees(beside.text)
    assert sees(beside.text, beside.mmproj)


def test_of_several_encoders_the_preferred_one_is_taken(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.gguf").write_bytes(pair.text.read_bytes())
    for name in ("mmproj-Q8_0.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf"):
        (tmp_path / name).write_bytes(pair.mmproj.read_bytes())
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")  # which fits nothing
    with caplog.at_level("INFO", "embedllm"):
        assert sees(tmp_path / "model.gguf")
    assert f"has its vision encoder in '{tmp_path / 'mmproj-BF16.gguf'}'" in caplog.text


def test_a_model_that_cannot_see_is_left_alone(pair: Pair, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny_checkpoint(tmp_path / "hf", "qwen3"))
    (tmp_path / "mmproj.gguf").write_bytes(pair.mmproj.read_bytes())
    assert not sees(file)
    with pytest.raises(ExportError, match=r"goes with the architecture llama; .* is 'qwen3'"):
        sees(file, tmp_path / "mmproj.gguf")
    llama = write_gguf(tmp_path / "l.gguf", tiny_checkpoint(tmp_path / "llama", "llama"))
    assert not sees(llama)
    with pytest.raises(UnsupportedModel, match="has no token '<image>'"):
        sees(llama, pair.mmproj)


def test_an_encoder_goes_with_a_gguf_file_only(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is no GGUF file"):
        convert(tiny_checkpoint(tmp_path / "hf", "llama"), tmp_path / "out", mmproj=pair.mmproj)
    with pytest.raises(UnsupportedModel, match="the text model's file, with --mmproj"):
        convert(pair.mmproj, tmp_path / "out")
    with pytest.raises(ExportError, match="expected 'clip', the vision encoder"):
        convert(pair.text, tmp_path / "out", mmproj=pair.text)


def test_the_command_takes_the_file_by_name(pair: Pair, tmp_path: Path) -> None:
    run = CliRunner().invoke
    given = ["export", str(pair.text), str(tmp_path / "out"), "--mmproj", str(pair.mmproj)]
    assert run(cli, [*given, "--no-mmproj"]).exit_code == 2
    assert run(cli, [*given, "--quiet"]).exit_code == 0
    assert open_package(tmp_path / "out").decoder.vision is not None


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: values for key, values in tensors.items() if key != name}


def reshaped(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: np.zeros(shape, np.float32)}


@pytest.mark.parametrize(("family", "more", "change", "message"), [
    ("idefics3", {"clip.projector_type": "resampler"}, dict, "projector 'resampler', .*Known: idefics3, gemma3,"),
    ("idefics3", {"clip.projector_type": 7}, dict, "'projector_type' is 7; expected a string"),
    ("idefics3", {"clip.projector_type": None}, dict, "has the projector ''"),
    ("idefics3", {"clip.vision.projection_dim": 128}, dict, "features of 128 values; the text model .* has 64"),
    ("idefics3", {"clip.vision.patch_size": None}, dict, "has no 'vision.patch_size'"),
    ("idefics3", {"clip.vision.patch_size": 5}, dict, "image_size is 32; expected a multiple of 10"),
    ("idefics3", {"clip.vision.image_size": 1 << 30}, dict, "position_embd.weight' is"),
    ("idefics3", {"clip.vision.block_count": 1 << 30}, dict, "tensors of 2 layers; its metadata calls for 1073741824"),
    ("idefics3", {"clip.vision.attention.head_count": 5}, dict, "attn_q.weight' is"),
    ("idefics3", {"clip.vision.image_mean": [0.5]}, dict, "'vision.image_mean' is .*a list of 3 numbers"),
    ("idefics3", {"clip.vision.image_std": "grey"}, dict, "'vision.image_std' is .*a list of 3 numbers"),
    ("idefics3", {"clip.use_gelu": None}, dict, "says the activation 'neither use_gelu nor use_silu'"),
    ("idefics3", {"clip.vision.feature_layer": 3}, dict, "says 'clip.vision.feature_layer', which is not known"),
    ("idefics3", {"clip.has_audio_encoder": True}, dict, "says 'clip.has_audio_encoder'"),
    ("idefics3", {}, without("mm.model.fc.weight"), "has no tensor 'mm.model.fc.weight'"),
    ("idefics3", {}, without("v.blk.0.ffn_up.weight"), "no tensor 'v.blk.0.ffn_up.weight'"),
    ("idefics3", {}, reshaped("v.blk.0.ffn_up.weight", 3, 3), r"\[3, 3\] as the tensor 'v.blk.0.ffn_up.weight'"),
    ("idefics3", {}, reshaped("v.blk.1.attn_k.weight", 3, 3), "attn_k.weight' is"),
    ("idefics3", {}, reshaped("v.pre_ln.weight", 48), "mmproj-model.gguf' has a tensor 'v.pre_ln.weight' that is"),
    ("idefics3", {}, reshaped("token_embd.weight", 3, 3), "both have a tensor 'token_embd.weight'"),
    ("qwen2_vl", {}, without("v.patch_embd.weight.1"), "'v.patch_embd.weight.1' is not there; expected one like F32"),
    ("qwen2_vl", {}, reshaped("v.patch_embd.weight.1", 48, 3, 4, 2), "weight.1' is F32 .48, 3, 4, 2.; expected"),
    ("qwen2_5_vl", {"clip.vision.n_wa_pattern": None}, dict, "has no 'vision.n_wa_pattern'"),
    ("qwen2_5_vl", {"clip.vision.n_wa_pattern": 0}, dict, "'vision.n_wa_pattern' is 0; expected a whole number >= 1"),
    ("qwen3_vl", {"clip.vision.is_deepstack_layers": True}, dict, "expected a truth for each layer"),
    ("qwen3_vl", {"clip.vision.is_deepstack_layers": [True] * 3}, dict, "expected fewer than the 3 of the text"),
    ("mistral3", {"clip.use_silu": None}, dict, "says the activation ''; expected use_gelu or use_silu"),
    ("mistral3", {}, without("mm.patch_merger.weight"), "has no tensor 'mm.patch_merger.weight'"),
    ("mistral3", {"clip.vision.spatial_merge_size": None}, dict, "has no 'vision.spatial_merge_size'"),
    ("mistral3", {}, without("v.blk.1.attn_q.weight"), "has no tensor 'v.blk.1.attn_q.weight'"),
    ("lfm2_vl", {}, without("mm.2.weight"), "has no tensor 'mm.2.weight'"),
    ("lfm2_vl", {}, without("v.position_embd.weight"), "has no tensor 'v.position_embd.weight'"),
    ("lfm2_vl", {}, reshaped("v.patch_embd.weight", 48, 4, 4, 3), "v.patch_embd.weight' is .48, 4, 4, 3.; .* .48, 48."),
    ("gemma4 small", {"clip.use_silu": True}, dict, "says the activation 'use_silu'; expected use_gelu, or none"),
    ("gemma4 small", {"clip.vision.attention.head_count": 8}, dict, "attn_q_norm.weight' is .16"),
    ("gemma4 small", {}, without("v.blk.1.attn_v.output_min"), "has no tensor 'v.blk.1.attn_v.output_min'"),
    ("gemma4 large", {}, without("v.std_scale"), "has no tensor 'v.std_scale'"),
    ("gemma4 large", {}, without("v.blk.0.ffn_post_norm.weight"), "has no tensor 'v.blk.0.ffn_post_norm.weight'"),
    ("qwen3_vl", {}, reshaped("v.position_embd.weight", 24, 48), "num_position_embeddings is 24; expected a square"),
])  # fmt: skip
def test_what_an_encoder_lacks_is_named(
    family: str,
    more: Mapping[str, Any],
    change: Callable[[Tensors], Tensors],
    message: str,
    made: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    pair = write_pair(tmp_path / "gguf", made(family), more=more, change=change)
    with pytest.raises(ExportError, match=message):
        convert(pair.text, tmp_path / "out", WHOLE, mmproj=pair.mmproj)
