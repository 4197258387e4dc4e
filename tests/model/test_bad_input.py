"""Sources that cannot be exported, and places that cannot be written: a clear ExportError, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedllm.errors import ExportError
from embedllm.export import Progress, Recipe, convert
from tests.support.tiny import tiny_checkpoint

Damage = Callable[[Path], object]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint", "llama")


def refusal(source: str | Path, tmp_path: Path, recipe: Recipe | None = None, name: str = "package") -> str:
    """What convert() says; nothing may have appeared beside the source."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ExportError) as caught:
        convert(source, tmp_path / name, recipe)
    assert sorted(tmp_path.iterdir()) == before
    return str(caught.value)


# Damaged sources


def config(**changes: object) -> Damage:
    """Changes keys of config.json; Ellipsis removes one."""

    def damage(folder: Path) -> None:
        data = {**json.loads((folder / "config.json").read_text()), **changes}
        (folder / "config.json").write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))

    return damage


def text(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data)


def missing(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Damage:
    """Rewrites model.safetensors with some tensors changed."""

    def damage(folder: Path) -> None:
        values = load_file(folder / "model.safetensors")
        change(values)
        save_file(values, folder / "model.safetensors")

    return damage


def tensor(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Damage:
    return tensors(lambda values: values.update({name: make(values[name])}))


def value(name: str, row: int, number: float) -> Damage:
    """Writes a number into a row of a tensor."""

    def change(values: dict[str, np.ndarray]) -> None:
        values[name] = values[name].copy()
        values[name][row, ...] = number

    return tensors(change)


def cut(name: str, length: int) -> Damage:
    return lambda folder: os.truncate(folder / name, length)


def shards(folder: Path) -> Path:
    """The same model in three files."""
    shutil.rmtree(folder)
    return tiny_checkpoint(folder, "llama", shards=3)


def shard_map(change: Callable[[dict[str, dict]], object]) -> Damage:
    def damage(folder: Path) -> None:
        index = shards(folder) / "model.safetensors.index.json"
        data = json.loads(index.read_text())
        change(data)
        index.write_text(json.dumps(data))

    return damage


def other_weights(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        for name in names:
            (folder / name).write_bytes(b"weights")

    return damage


def link_to_nothing(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("../blobs/gone")

    return damage


def instead_a_folder(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


Q = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.norm.weight"
SHARD = "model-00002-of-00003.safetensors"
NESTED = b"[" * 100_000

DAMAGES: dict[str, tuple[Damage, str]] = {
    "exported": (text("embedllm.json", b"{}"), "'{folder}' is no checkpoint but a folder that was exported from one"),
    "no config": (missing("config.json"), "there is no 'config.json' in '{folder}'; expected a model's configuration"),
    "config cut": (text("config.json", b'{"model_type": '), "cannot read '{folder}/config.json'"),
    "config of bytes": (text("config.json", b"\xff\x00"), "cannot read '{folder}/config.json'"),
    "config nested": (text("config.json", NESTED), "cannot read '{folder}/config.json'"),
    "config a list": (text("config.json", b"[]"), "'{folder}/config.json' holds a list; expected a JSON object"),
    "config a folder": (instead_a_folder("config.json"), "cannot read '{folder}/config.json'"),
    "another architecture": (config(model_type="t5"), "model_type 't5' is not described here"),
    "no model_type": (config(model_type=...), "config.json has no 'model_type'"),
    "quantized": (config(quantization_config={"quant_method": "aqlm"}), "this checkpoint is already quantized"),
    "another size": (config(vocab_size=308),
                     "tensor 'model.embed_tokens.weight' is [307, 64]; config.json calls for [308, 64]"),
    "more layers": (config(num_hidden_layers=3), "has no tensor 'model.layers.2."),
    "an absurd context": (config(max_position_embeddings=10**12), "expected a whole number up to 2147483647"),
    "no tensor": (tensors(lambda values: values.pop(Q)),
                  f"'{{folder}}' has no tensor '{Q}', which its config.json calls for"),
    "no head": (tensors(lambda values: values.pop("lm_head.weight")), "has no tensor 'lm_head.weight'"),
    "no bias": (config(attention_bias=True), "has no tensor 'model.layers.0.self_attn.q_proj.bias'"),
    "turned": (tensor("model.layers.0.mlp.up_proj.weight", lambda value: np.ascontiguousarray(value.T)),
               "tensor 'model.layers.0.mlp.up_proj.weight' is [64, 96]; config.json calls for [96, 64]"),
    "a vector as a matrix": (tensor(NORM, lambda value: value[None]),
                             f"tensor '{NORM}' is [1, 64]; config.json calls for [64]"),
    "whole numbers": (tensor(Q, lambda value: value.astype(np.int64)),
                      f"tensor '{Q}' is I64; expected F16, BF16 or F32"),
    "doubles": (tensor(NORM, lambda value: value.astype(np.float64)), f"tensor '{NORM}' is F64; expected F16, BF16"),
    "truncated": (cut("model.safetensors", 100_000), "'{folder}/model.safetensors' is cut off"),
    "truncated header": (cut("model.safetensors", 100), "'{folder}/model.safetensors' is no whole safetensors file"),
    "empty": (cut("model.safetensors", 0), "'{folder}/model.safetensors' is no whole safetensors file"),
    "a pointer of git lfs": (text("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
                             "'{folder}/model.safetensors' is no whole safetensors file"),
    "a shard less": (lambda folder: (shards(folder) / SHARD).unlink(), f"cannot read '{{folder}}/{SHARD}': No such"),
    "a cut shard": (lambda folder: os.truncate(shards(folder) / SHARD, 1000), f"{SHARD}' is cut off"),
    "index outside": (shard_map(lambda data: data["weight_map"].update({Q: "../other.safetensors"})),
                      "index.json' names the shard '../other.safetensors'; expected a plain file name"),
    "index absolute": (shard_map(lambda data: data["weight_map"].update({Q: "/etc/passwd"})),
                       "names the shard '/etc/passwd'; expected a plain file name"),
    "index to the parent": (shard_map(lambda data: data["weight_map"].update({Q: ".."})),
                            "names the shard '..'; expected a plain file name"),
    "index of nothing": (shard_map(lambda data: data["weight_map"].update({Q: ""})),
                         "names the shard ''; expected a plain file name"),
    "index of numbers": (shard_map(lambda data: data["weight_map"].update({Q: 3})),
                         "names the shard 3; expected a plain file name"),
    "index a list": (lambda folder: text("model.safetensors.index.json", b'{"weight_map": []}')(shards(folder)),
                     "model.safetensors.index.json' has no 'weight_map' object"),
    "index without a map": (shard_map(lambda data: data.pop("weight_map")), "index.json' has no 'weight_map' object"),
    "index empty": (shard_map(lambda data: data.update(weight_map={})), "no safetensors in '{folder}'"),
    "no weights": (missing("model.safetensors"), "no safetensors in '{folder}'; expected model.safetensors"),
    "pickled weights": (other_weights("pytorch_model.bin"), "found pytorch_model.bin; expected model.safetensors"),
    "other weights": (other_weights("model.gguf", "model.onnx"), "found model.gguf, model.onnx; expected model.safe"),
    "no tokenizer": (missing("tokenizer.json"), "there is no tokenizer.json in '{folder}'"),
    "tokenizer gone": (link_to_nothing("tokenizer.json"), "there is no tokenizer.json in '{folder}'"),
    "tokenizer config gone": (link_to_nothing("tokenizer_config.json"),
                              "cannot read '{folder}/tokenizer_config.json': No such file"),
    "tokenizer a folder": (instead_a_folder("tokenizer.json"), "cannot read '{folder}/tokenizer.json'"),
    "generation settings cut": (text("generation_config.json", b"{"), "cannot read '{folder}/generation_config.json'"),
    "generation settings nested": (text("generation_config.json", NESTED), "cannot read '{folder}/generation_config"),
    "stop token a word": (text("generation_config.json", b'{"eos_token_id": "</s>"}'),
                          "a special token id is '</s>'; expected a whole number"),
    "stop token a fraction": (text("generation_config.json", b'{"eos_token_id": [1, 2.5]}'), "id is 2.5; expected"),
    "stop token a truth": (text("generation_config.json", b'{"pad_token_id": true}'), "id is True; expected"),
    "stop token beyond": (text("generation_config.json", b'{"eos_token_id": [2, 307]}'),
                          "a stop token id is 307; expected 0 to 306"),
    "stop token negative": (text("generation_config.json", b'{"eos_token_id": -1}'),
                            "a stop token id is -1; expected 0 to 306"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "says"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_source_is_refused_by_name(damage: Damage, says: str, checkpoint: Path, tmp_path: Path) -> None:
    damage(checkpoint)
    assert says.format(folder=checkpoint) in refusal(checkpoint, tmp_path)


NOT_FINITE = "rows 0 to 64: the weights hold values that are not finite"
NUMBERS: dict[str, tuple[Damage, Recipe, str]] = {
    "NaN": (value(Q, 5, np.nan), Recipe(), f"'{Q}', {NOT_FINITE}"),
    "infinity": (value(Q, 63, np.inf), Recipe(bits=8, symmetric=False), f"'{Q}', {NOT_FINITE}"),
    "NaN, 16 bits": (value(Q, 0, np.nan), Recipe(bits=16), f"'{Q}', {NOT_FINITE}"),
    "infinity, 32 bits": (value(Q, 0, -np.inf), Recipe(bits=32), f"'{Q}', {NOT_FINITE}"),
    "too large": (value(Q, 0, 1e7), Recipe(), f"'{Q}', rows 0 to 64: a weight of 1e+07 needs a scale beyond float16"),
    "too large, 16 bits": (value(Q, 0, 7e4), Recipe(bits=16), f"'{Q}', rows 0 to 64: a weight of 7e+04 does not fit"),
    "NaN in a norm": (value(NORM, 3, np.nan), Recipe(), f"'{NORM}': the weights hold values that are not finite"),
    "infinity in a bias": (value("model.layers.0.self_attn.k_proj.bias", 0, np.inf), Recipe(),
                           "'model.layers.0.self_attn.k_proj.bias': the weights hold values that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "recipe", "says"), NUMBERS.values(), ids=NUMBERS)
def test_weights_that_cannot_be_stored_are_named_with_their_rows(
    damage: Damage, recipe: Recipe, says: str, tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama", attention_bias=True)
    damage(checkpoint)
    assert says in refusal(checkpoint, tmp_path, recipe)


def test_everything_but_the_weights_is_looked_at_before_they_are_written(checkpoint: Path, tmp_path: Path) -> None:
    """A missing tokenizer shall not be noticed after minutes of quantizing."""
    (checkpoint / "tokenizer.json").unlink()
    reports: list[Progress] = []
    with pytest.raises(ExportError, match="there is no tokenizer"):
        convert(checkpoint, tmp_path / "package", on_progress=reports.append)
    assert reports == []


@pytest.mark.parametrize("change", ["cut", "removed"])
def test_a_source_that_changes_meanwhile_is_named(change: str, checkpoint: Path, tmp_path: Path) -> None:
    """It is the source that cannot be read, not the output that cannot be written."""
    model = shards(checkpoint) / SHARD

    def interfere(_: Progress) -> None:
        if change == "cut":
            os.truncate(model, 2000)
        else:
            model.unlink(missing_ok=True)

    with pytest.raises(ExportError) as caught:
        convert(checkpoint, tmp_path / "package", Recipe(method="search"), on_progress=interfere)  # one reading
    says = "ended while it was read" if change == "cut" else "cannot read"
    assert says in str(caught.value)
    assert f"'{model}'" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (Recipe(bits=5), "bits is 5; expected 4, 8, 16 or 32"),
        (Recipe(group_size=48), "group_size is 48; expected 16, 32, 64, 128 or 256"),
        (Recipe(head_bits=3), "bits is 3; expected 4, 8, 16 or 32"),
        (Recipe(head_bits=0), "bits is 0; expected 4, 8, 16 or 32"),
        (Recipe(context=0), "context is 0 tokens; expected 1 to 128"),
        (Recipe(context=129), "context is 129 tokens; expected 1 to 128"),
        (Recipe(embedding_bits=8), "embedding bits 8 and head bits 4 differ, but this model's head is tied"),
        (Recipe(head_bits=8, embedding_bits=4), "embedding bits 4 and head bits 8 differ, but this model's head is"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(recipe: Recipe, says: str, tmp_path: Path) -> None:
    assert says in refusal(tiny_checkpoint(tmp_path / "checkpoint", "qwen3"), tmp_path, recipe)


# What is no source


def test_a_file_is_no_source(checkpoint: Path, tmp_path: Path) -> None:
    file = checkpoint / "model.safetensors"
    assert refusal(file, tmp_path).startswith(f"'{file}' is a file; expected a folder with config.json")


@pytest.mark.parametrize("source", ["nowhere", "a/b/c", "./a/b/", "/nowhere/at/all", "x" * 5000, "a\0b", "~none/x/y"])
def test_a_name_that_is_neither_folder_nor_repository_is_refused(source: str, tmp_path: Path) -> None:
    message = refusal(source, tmp_path)
    assert message.startswith("there is no folder ")
    assert message.endswith("and it is no repo id like 'Qwen/Qwen3-0.6B'.")


def test_no_name_is_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert refusal("", tmp_path).startswith("there is no 'config.json' in '.'")


# Places that cannot be written


def test_too_little_space_is_refused_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    reports: list[Progress] = []
    with pytest.raises(ExportError) as caught:
        convert(checkpoint, tmp_path / "package", on_progress=reports.append)
    message = str(caught.value)
    needed = re.match(r"the export needs ([\d,]+) bytes", message)
    assert needed is not None
    assert int(needed[1].replace(",", "")) > 100_000
    assert f"on the disk of '{tmp_path}'; 100,000 are free" in message
    assert reports == []
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_an_output_below_a_file_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refusal(checkpoint, tmp_path, name="file/package")
    assert message.startswith(f"cannot write '{tmp_path / 'file' / 'package'}': ")


def test_a_name_that_is_too_long_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    assert "File name too long" in refusal(checkpoint, tmp_path, name="x" * 300)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_an_output_folder_without_permission_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    message = refusal(checkpoint, tmp_path, name="locked/package")
    assert message == f"cannot write '{tmp_path / 'locked' / 'package'}': Permission denied. Nothing was left there."


@pytest.mark.parametrize(
    "step", ["pipeline.Path.mkdir", "pipeline.write_weights", "pipeline.write_json", "writing.atomic_folder._take_name"]
)
def test_a_refusal_of_the_system_is_passed_on(
    step: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, whom permissions do not bind; so the answer is put in the system's mouth."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(f"embedllm.export.{step}", refuse)
    message = refusal(checkpoint, tmp_path)
    assert message == f"cannot write '{tmp_path / 'package'}': Permission denied. Nothing was left there."
