"""Columns made alike for a text before they are rounded: nearer to the model as it is, in the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

import embedllm
from embedllm.cli.main import cli
from embedllm.errors import ExportError, PackageError
from embedllm.export import Progress, Recipe, convert
from embedllm.export.architectures import describe
from embedllm.export.architectures.config import Config
from embedllm.export.checkpoints.huggingface import HuggingFaceSource
from embedllm.export.quantization import awq as module
from embedllm.export.quantization.awq import scaled
from embedllm.export.quantization.calibration_text import read_text
from embedllm.export.quantization.float_forward import FloatPass
from embedllm.export.quantization.importance import input_products
from embedllm.export.writing.plan import plan
from embedllm.hub.location import locate
from embedllm.package.architecture.mlp import Mlp
from tests.support.calibration_texts import kl, logits, manifest, text, with_outliers
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.peft_folders import write_adapter
from tests.support.tiny import tiny_checkpoint, tiny_config, tiny_tensors, write_bf16

if TYPE_CHECKING:
    from embedllm.package.architecture.decoder import Decoder

AWQ = Recipe(method="awq", group_size=16)
MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "tied, q and k norms": ("qwen3", {}),
    "biases, a head of its own": ("qwen2", {}),
    "biases everywhere, a window": ("mistral", {"sliding_window": 8}),
    "sizes that fill no group, one kv head": ("llama", {"intermediate_size": 88, "num_key_value_heads": 1}),
}


@pytest.fixture(params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, config = MODELS[request.param]
    return with_outliers(tiny_checkpoint(tmp_path / "checkpoint", family, **dict[str, Any](config)), 20)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint")


def described(checkpoint: Path) -> tuple[HuggingFaceSource, Decoder]:
    source = HuggingFaceSource(locate(checkpoint, None))
    return source, describe(Config(source.config), None)


@pytest.mark.slow
def test_a_model_with_large_inputs_stays_nearer_on_other_text(checkpoint: Path, tmp_path: Path) -> None:
    source, decoder = described(checkpoint)
    source.close()
    other = read_text(text(tmp_path / "other.jsonl", seed=1, words=500), checkpoint, decoder).sequences[:6]
    base = logits(convert(checkpoint, tmp_path / "base", Recipe(bits=32)), other)
    searched = convert(checkpoint, tmp_path / "searched", Recipe(group_size=16, method="search"))
    found = convert(
        checkpoint, tmp_path / "found", AWQ, calibration=text(tmp_path / "text.jsonl", words=500), verify=True
    )
    assert kl(base, logits(found, other)) < 0.9 * kl(base, logits(searched, other))
    assert (found / "weights.safetensors").stat().st_size == (searched / "weights.safetensors").stat().st_size


def test_the_scaled_model_is_the_same_as_floats(checkpoint: Path, tmp_path: Path) -> None:
    source, decoder = described(checkpoint)
    sequences = read_text(text(tmp_path / "text.jsonl", words=500), checkpoint, decoder).sequences[:4]
    other, _ = scaled(source, decoder, plan(decoder, AWQ).packing, sequences)
    found = []
    for one in (source, other):
        run = FloatPass(one, decoder, sequences)
        run.begin()
        for index in range(len(decoder.layers)):
            run.layer(index)
        found.append(run.head_inputs() @ one.rows(f"{decoder.head.source}.weight", 0, decoder.vocabulary).T)
    norm = decoder.layers[0].attention_norm
    assert norm is not None
    assert not np.allclose(other.rows(norm.source, 0, norm.size), source.rows(norm.source, 0, norm.size))
    source.close()
    # attention is so sharp with large inputs that last digits show; with usual ones 1e-5: test_scaled_source.py
    assert np.abs(found[1] - found[0]).max() < 5e-5 * np.abs(found[0]).max()


def test_importance_is_of_the_inputs_that_the_scaled_model_has(checkpoint: Path, tmp_path: Path) -> None:
    source, decoder = described(checkpoint)
    sequences = read_text(text(tmp_path / "text.jsonl", words=500), checkpoint, decoder).sequences[:4]
    packing = plan(decoder, AWQ).packing
    other, squares = scaled(source, decoder, packing, sequences)
    products = {name: one for names, one in input_products(other, decoder, packing, sequences) for name in names}
    source.close()
    assert squares.keys() == products.keys()
    for name, found in squares.items():
        wanted = np.einsum("bii->bi", products[name]).reshape(-1)[: len(found)]
        assert np.allclose(found, wanted, rtol=1e-3, atol=1e-6 * float(wanted.max())), name


def test_a_power_is_taken_for_what_it_leaves_of_the_outputs(tiny: Path) -> None:
    """Without one that is better, a matrix stays as it is; with few rows tried out, they are from all over it."""
    source, decoder = described(tiny)
    sequences = np.random.default_rng(0).integers(0, decoder.vocabulary, (4, 30))
    packing = plan(decoder, AWQ).packing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Trial, "loss", lambda self, columns, weights: float(np.square(columns - 1).sum()))
        same, _ = scaled(source, decoder, packing, sequences)
        patch.setattr(module, "_ROWS", 10)
        trial = module._Trial(source, decoder.embedding, packing["embedding"], np.eye(64, dtype=np.float32))
    name = f"{decoder.embedding.source}.weight"
    assert np.array_equal(trial._rows, source.rows(name, 0, 307)[::31])
    mlp = decoder.layers[1].mlp
    assert isinstance(mlp, Mlp)
    up = mlp.up
    assert np.array_equal(same.rows(f"{up.source}.weight", 0, up.rows), source.rows(f"{up.source}.weight", 0, up.rows))
    source.close()


@pytest.mark.parametrize("recipe", [
    Recipe(method="awq", head_bits=8, symmetric=False),
    Recipe(method="awq", head_bits=16),
    Recipe(method="awq", bits=8, group_size=64),
    Recipe(method="awq+gptq", group_size=16),
], ids=["8-bit head, zero points", "16-bit head", "8 bits, groups that no row fills", "with gptq"])  # fmt: skip
@pytest.mark.slow
def test_any_recipe_gives_a_folder_that_loads_and_computes_what_it_says(recipe: Recipe, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama", intermediate_size=88, mlp_bias=True)
    package = convert(
        checkpoint, tmp_path / "p", recipe, calibration=text(tmp_path / "text.jsonl", words=500), verify=True
    )
    with embedllm.load(package) as model:
        assert len(model.generate([5, 6, 7], max_tokens=4, stop_tokens=()).tokens) == 4


def test_gptq_rounds_the_scaled_model(tmp_path: Path) -> None:
    tiny = with_outliers(tiny_checkpoint(tmp_path / "checkpoint", "llama"), 20)
    file = text(tmp_path / "text.jsonl", words=500)
    source, decoder = described(tiny)
    source.close()
    sequences = read_text(file, tiny, decoder).sequences[:8]
    base = logits(convert(tiny, tmp_path / "base", Recipe(bits=32)), sequences)

    def off(method: str) -> float:
        package = convert(tiny, tmp_path / method, Recipe(method=method, group_size=16), calibration=file)
        return kl(base, logits(package, sequences))

    assert off("awq+gptq") < 0.8 * off("awq")


def test_the_same_text_gives_the_same_bytes_and_another_one_others(tiny: Path, tmp_path: Path) -> None:
    file, other = text(tmp_path / "text.jsonl", words=500), text(tmp_path / "other.jsonl", seed=1, words=500)
    one, two, three = (
        (convert(tiny, tmp_path / name, AWQ, calibration=path) / "weights.safetensors").read_bytes()
        for name, path in (("one", file), ("two", file), ("three", other))
    )
    assert one == two
    assert one != three


@pytest.mark.slow
def test_it_goes_with_a_mix_of_bits_and_a_merged_adapter(tiny: Path, tmp_path: Path) -> None:
    narrow = convert(tiny, tmp_path / "narrow", Recipe(group_size=16))
    recipe = Recipe(method="awq", group_size=16, size=(narrow / "weights.safetensors").stat().st_size + 20_000)
    adapter = write_adapter(tmp_path / "adapter", tiny)
    seen: list[Progress] = []
    package = convert(tiny, tmp_path / "p", recipe, lora=adapter, calibration=text(tmp_path / "text.jsonl", words=500),
                      verify=True, on_progress=seen.append)  # fmt: skip
    assert {"lora", "calibration", "sensitivity"} <= manifest(package).keys()
    assert [(at.done, at.total) for at in seen if at.stage == "inputs"] == [(0, 2), (1, 2), (2, 2)]


def test_without_a_text_the_built_in_one_is_read(tmp_path: Path) -> None:
    tiny = tiny_checkpoint(tmp_path / "checkpoint", max_position_embeddings=24)
    found = manifest(convert(tiny, tmp_path / "p", AWQ))["calibration"]
    assert isinstance(found, dict)
    assert (found["text"], found["sequences"], found["tokens"]) == ("built-in", 6, 24)


# What is refused


def test_adapters_are_refused_as_they_are_for_the_columns_as_they_were(tiny: Path, tmp_path: Path) -> None:
    package = convert(tiny, tmp_path / "p", AWQ, calibration=text(tmp_path / "text.jsonl", words=500))
    adapter = write_adapter(tmp_path / "adapter", tiny)
    for given in ({}, {"one": str(adapter)}):
        with pytest.raises(PackageError, match=r"by the method 'awq'.*--lora"):
            embedllm.load(package, adapters=given)
    data = json.loads((package / "embedllm.json").read_text(encoding="utf-8"))
    data["recipe"]["method"] = "search"
    (package / "embedllm.json").write_text(json.dumps(data), encoding="utf-8")
    with embedllm.load(package, adapters={"one": str(adapter)}) as model:
        assert model.adapters == ("one",)


def test_where_nothing_is_rounded_there_is_nothing_to_scale(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"at 16 bits there is no matrix of 4 or 8 bits, which the method 'awq'"):
        convert(tiny, tmp_path / "p", Recipe(method="awq", bits=16))


@pytest.mark.peer
@pytest.mark.parametrize(("family", "method", "message"), [
    ("gpt2", "awq", "no columns that can be scaled.*Use the method 'weighted' or 'gptq'"),
    ("gemma4", "gptq", "the method 'gptq' is not for 'gemma4', whose layers cannot be run over a text one by one"),
    ("gemma4_text", "weighted", "the method 'weighted' is not for 'gemma4_text'"),
    ("mixtral", "weighted", "the method 'weighted' is not for mixtures of experts"),
    ("mixtral", "awq+gptq", r"the method 'awq\+gptq' is not for mixtures of experts"),
])  # fmt: skip
def test_a_family_that_a_method_is_not_for_is_named(family: str, method: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    make_checkpoint(tmp_path / "checkpoint", FAMILIES[family])
    with pytest.raises(ExportError, match=message):
        convert(tmp_path / "checkpoint", tmp_path / "p", Recipe(method=method), calibration=text(tmp_path / "t.jsonl"))


@pytest.mark.peer
@pytest.mark.parametrize(("recipe", "message"), [
    (Recipe(mean_bits=7.0), "a size or mean bits is not for 'gemma4_text', .*'search', without a size"),
    (Recipe(rotate=True), "a 'gemma4_text' model norms its values, which no rotation follows"),
])  # fmt: skip
def test_a_family_that_no_text_is_read_for_is_named(recipe: Recipe, message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    make_checkpoint(tmp_path / "checkpoint", FAMILIES["gemma4_text"])
    with pytest.raises(ExportError, match=message):
        convert(tmp_path / "checkpoint", tmp_path / "p", recipe)


@pytest.mark.parametrize(("value", "message"), [
    (np.inf, r"up_proj.*not finite|inputs of .* not finite"),
    (3e38, r"not finite|beyond float16"),
])  # fmt: skip
def test_a_model_that_overflows_is_named(value: float, message: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "checkpoint")
    tensors = tiny_tensors(tiny_config(), 0)
    tensors["model.layers.0.mlp.up_proj.weight"][5] = value
    write_bf16(folder / "model.safetensors", tensors)
    with pytest.raises(ExportError, match=message):
        convert(folder, tmp_path / "p", AWQ, calibration=text(tmp_path / "text.jsonl", words=500))
    assert not (tmp_path / "p").exists()


# The command


def test_the_command_scales(tiny: Path, tmp_path: Path) -> None:
    file = text(tmp_path / "text.jsonl", words=500)
    call = ["export", str(tiny), str(tmp_path / "p"), "--method", "awq", "--calibrate", str(file), "--group", "16"]
    done = CliRunner().invoke(cli, call)
    assert done.exit_code == 0, done.output
    made = (tmp_path / "p" / "weights.safetensors").read_bytes()
    assert made == (convert(tiny, tmp_path / "q", AWQ, calibration=file) / "weights.safetensors").read_bytes()
