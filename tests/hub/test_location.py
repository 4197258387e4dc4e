"""A checkpoint of the hub as the source of convert(): what is downloaded of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedllm.errors import ExportError, HubError, UnsupportedModel
from embedllm.export import convert
from embedllm.package.package import WEIGHTS
from tests.support.hub_server import Hub, Repo, go_offline, read_folder
from tests.support.tiny import tiny_checkpoint

NAME = "org/tiny"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("source") / "checkpoint", "llama")


@pytest.fixture
def commit(hub: Hub, checkpoint: Path) -> str:
    """The commit of the repository, with files that no export reads."""
    hub.repos[NAME] = Repo()
    return hub.repos[NAME].commit({**read_folder(checkpoint), "other.safetensors": b"other", "original/x.pth": b"x"})


def test_a_repository_is_downloaded_without_what_is_not_needed(
    commit: str, hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    package = convert(NAME, tmp_path / "package")
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= hub.downloaded()
    assert not {"other.safetensors", "original/x.pth"} & hub.downloaded()
    manifest = json.loads((package / "embedllm.json").read_text(encoding="utf-8"))
    assert (manifest["source"], manifest["revision"]) == (NAME, commit)
    assert (package / WEIGHTS).read_bytes() == (convert(checkpoint, tmp_path / "near") / WEIGHTS).read_bytes()


def test_without_the_hub_it_is_taken_from_the_cache(
    commit: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(NAME, tmp_path / "package")
    go_offline(monkeypatch)
    manifest = json.loads((convert(NAME, tmp_path / "again") / "embedllm.json").read_text(encoding="utf-8"))
    assert manifest["revision"] == commit


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_with_another_hash_is_refused(name: str, commit: str, hub: Hub, tmp_path: Path) -> None:
    hub.wrong.add(name)
    with pytest.raises(HubError, match=rf"'{name}' of 'org/tiny' came damaged: its hash is"):
        convert(NAME, tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_a_repository_that_cannot_be_exported_is_refused_before_its_weights_are_downloaded(
    commit: str, hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    hub.repos[NAME].commit({**read_folder(checkpoint), "config.json": b'{"model_type": "unheard-of"}'})
    with pytest.raises(UnsupportedModel, match="model_type 'unheard-of' is not described here"):
        convert(NAME, tmp_path / "package")
    assert "model.safetensors" not in hub.downloaded()


@pytest.mark.parametrize("revision", [None, "nowhere"])
def test_what_the_hub_does_not_have_is_told(revision: str | None, commit: str, hub: Hub, tmp_path: Path) -> None:
    name = NAME if revision else "org/none"
    said = "has no revision 'nowhere'" if revision else "there is neither a folder 'org/none' here"
    with pytest.raises(HubError, match=said):
        convert(name, tmp_path / "package", revision=revision)
    with pytest.raises(ExportError, match="it is no repo id like"):
        convert("none", tmp_path / "package")
