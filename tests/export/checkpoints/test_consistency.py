"""Checkpoints whose config.json says other than what they store: against what transformers makes of them."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.errors import UnsupportedModel
from embedllm.export import Recipe, convert
from embedllm.package.package import open_package
from tests.support.families import FAMILIES, make_checkpoint
from tests.support.tiny import tiny_checkpoint

Tensors = dict[str, np.ndarray]
TOKENS = np.random.default_rng(3).integers(3, 300, 20).tolist()


def edited(folder: Path, edit: Callable[[Tensors], None], **config: object) -> Path:
    """A checkpoint with other tensors, and other fields in its config.json."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def own_head(tensors: Tensors) -> None:
    table = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = np.random.default_rng(4).normal(0, 0.3, table.shape).astype(np.float32)


def equal_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()


def only_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")


def peer_logits(folder: Path) -> np.ndarray:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return cast("np.ndarray", model(torch.tensor([TOKENS])).logits[0].numpy())


@pytest.mark.peer
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(("edit", "is_tied"), [(own_head, False), (equal_head, True), (only_head, True)])
def test_a_head_beside_the_flag_is_read_as_transformers_reads_it(
    family: str, edit: Callable[[Tensors], None], is_tied: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = edited(tiny_checkpoint(tmp_path / "source", family), edit, tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING, "embedllm"):
        folder = convert(source, tmp_path / "out", Recipe(bits=32))
    assert ("the head is taken as it is stored" in caplog.text) is not is_tied
    right = peer_logits(source)
    package = open_package(folder)
    assert package.decoder.tied is is_tied
    found = ReferenceEngine(package).open().feed_all(TOKENS)
    assert np.abs(found - right).max() <= 1e-4 * right.std()


@pytest.mark.peer
@pytest.mark.parametrize(
    ("family", "place"),
    [("gemma3", "language_model."), ("gemma4", ""), ("mistral3", "language_model."), ("qwen3_5", "")],
)
def test_a_head_beside_the_flags_of_a_model_that_sees_is_read_as_transformers_reads_it(
    family: str, place: str, tmp_path: Path
) -> None:
    """Of the whole config, and of its 'text_config'."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    case = FAMILIES[family]
    text = {**cast("dict[str, object]", case.values["text_config"]), "tie_word_embeddings": True}
    values = {**case.values, "text_config": text, "tie_word_embeddings": True}
    make_checkpoint(tmp_path, dataclasses.replace(case, values=values))
    table = "model.embed_tokens.weight" if place else "model.language_model.embed_tokens.weight"

    def own(tensors: Tensors) -> None:
        shape = tensors[f"{place}{table}"].shape
        tensors[f"{place}lm_head.weight"] = np.random.default_rng(4).normal(0, 0.3, shape).astype(np.float32)

    folder = convert(edited(tmp_path, own), tmp_path / "out", Recipe(bits=32))
    peer = getattr(transformers, case.config_class).from_pretrained(tmp_path)
    auto = transformers.AutoModelForImageTextToText if peer.vision_config else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        right = model(torch.tensor([TOKENS])).logits[0].numpy()
    found = ReferenceEngine(open_package(folder)).open().feed_all(TOKENS)
    assert np.abs(found - right).max() <= 1e-3 * right.std()


def test_a_vector_of_another_family_is_refused(tmp_path: Path) -> None:
    source = edited(tiny_checkpoint(tmp_path / "source", "qwen3"), lambda tensors: None, model_type="llama")
    message = r"has a tensor 'model\.layers\.0\.self_attn\.[kq]_norm\.weight' that is of no part of a 'llama'"
    with pytest.raises(UnsupportedModel, match=message):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["self_attn.q_proj.bias", "mlp.up_proj.bias"])
def test_a_bias_that_is_not_read_is_refused_unless_it_is_zero(tmp_path: Path, name: str) -> None:
    name = f"model.layers.1.{name}"

    def give(value: float) -> Callable[[Tensors], None]:
        def edit(tensors: Tensors) -> None:
            rows = len(tensors[name.replace("bias", "weight")])
            tensors[name] = np.full(rows, value, np.float32)

        return edit

    source = tiny_checkpoint(tmp_path / "source", "llama")
    convert(edited(source, give(0.0)), tmp_path / "zero")
    with pytest.raises(UnsupportedModel, match=rf"'{name}' that is of no part of a 'llama'"):
        convert(edited(source, give(0.5)), tmp_path / "half")


def test_constants_and_layers_that_are_not_there_are_passed_over(tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
        tensors["model.layers.7.input_layernorm.weight"] = np.ones(64, np.float32)  # of a multi-token prediction head

    convert(edited(tiny_checkpoint(tmp_path / "source", "llama"), edit), tmp_path / "out")
