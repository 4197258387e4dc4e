"""Local Hugging Face folders that are loaded as they are: exported once for what they hold."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import embedllm
from embedllm.cli.main import cli
from embedllm.errors import EmbedError, ExportError
from embedllm.export import Progress, convert
from embedllm.loading.export_cache import exports
from embedllm.loading.local_checkpoint import checkpoint_package, is_checkpoint
from embedllm.loading.resolve import find_package
from tests.support.encoder_folders import write_embedder
from tests.support.tiny import tiny_checkpoint

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama") / "my-llama", "llama", shards=2)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """One of the test's own."""
    return Path(shutil.copytree(made, tmp_path / "my-llama"))


def test_a_checkpoint_says_what_its_export_says(folder: Path, tmp_path: Path) -> None:
    near = convert(folder, tmp_path / "near")
    with embedllm.load(folder, device="cpu") as model, embedllm.load(near, device="cpu") as exported:
        assert model.generate("hello", max_tokens=6).tokens == exported.generate("hello", max_tokens=6).tokens
        assert model.name == "my-llama"
    assert [one.folder.name for one in exports()] == ["my-llama"]
    assert not (folder / "embedllm.json").exists()


def test_a_checkpoint_is_found_below_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    assert is_checkpoint(f"~/{folder.name}"), "the commands show the bars of its export"
    assert find_package(f"~/{folder.name}") == find_package(folder)


def test_an_export_is_made_once_for_what_a_folder_holds(folder: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    first = checkpoint_package(folder, seen.append)
    assert {progress.stage for progress in seen} >= {"hash", "weights", "graphs"}
    seen.clear()
    assert find_package(str(folder), on_progress=seen.append) == first
    assert seen == [], "its files' sizes and times tell that they are the same"
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "my-llama")
    os.utime(copy / "config.json", ns=(1, 1))
    assert checkpoint_package(copy, seen.append) == first
    assert {progress.stage for progress in seen} == {"hash"}


SHARD = "checkpoint-00001-of-00002.safetensors"  # as a folder of a training begins


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors", SHARD, "chat_template.jinja"])
def test_a_folder_that_was_changed_is_exported_anew(folder: Path, name: str) -> None:
    if name == SHARD:
        index, old = folder / "model.safetensors.index.json", "model-00001-of-00002.safetensors"
        index.write_text(index.read_text(encoding="utf-8").replace(old, SHARD), encoding="utf-8")
        (folder / old).rename(folder / SHARD)
    first = checkpoint_package(folder)
    file = folder / name
    if name.endswith(".safetensors"):
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif name.endswith(".json"):
        file.write_bytes(file.read_bytes() + b"\n")
    else:
        file.write_text("{{ messages[0].content }} ", encoding="utf-8")
    assert checkpoint_package(folder) != first
    assert len(exports()) == 2


def test_an_export_that_lacks_a_graph_is_made_again(folder: Path) -> None:
    (checkpoint_package(folder) / "model.onnx").unlink()
    assert (checkpoint_package(folder) / "model.onnx").is_file()


def test_what_is_not_read_is_not_hashed(folder: Path) -> None:
    first = checkpoint_package(folder)
    (folder / "optimizer.pt").write_bytes(b"x")
    (folder / "checkpoint-500").mkdir()
    (folder / "checkpoint-500" / "model.safetensors").write_bytes(b"x")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "note.json").write_bytes(b"x")
    assert checkpoint_package(folder) == first


def test_an_embedding_model_is_loaded_too(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "embedder")
    with embedllm.load(folder, device="cpu") as model:
        assert model.embed(["hello"]).shape[0] == 1


def test_folders_that_are_exported_are_opened_as_they_are(folder: Path, tmp_path: Path) -> None:
    assert is_checkpoint(folder)
    out = convert(folder, tmp_path / "out")
    assert not is_checkpoint(out)
    assert find_package(out) == out
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model_q4.onnx").write_bytes(b"")  # a checkpoint with graphs of another exporter beside it
    assert not is_checkpoint(folder)
    assert not is_checkpoint(tmp_path / "nowhere")
    assert not is_checkpoint("a" * 5000)


def test_a_damaged_or_unknown_checkpoint_is_refused_by_name_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "nobody_knows"}', encoding="utf-8")
    with pytest.raises(ExportError, match="nobody_knows"):
        embedllm.load(folder, device="cpu")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(EmbedError):
        embedllm.load(folder, device="cpu")
    assert exports() == []


def test_the_command_line_runs_and_lists_it(folder: Path) -> None:
    done = CliRunner().invoke(cli, ["run", str(folder), "hello", "--max-tokens", "2", "--device", "cpu", "--raw"])
    assert done.exit_code == 0, done.output
    listed = CliRunner().invoke(cli, ["list"])
    assert "my-llama" in listed.stdout
