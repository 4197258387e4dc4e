"""Links in a model's folder: within it and into the hub's blobs they work, elsewhere they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedllm.errors import EmbedError
from embedllm.export import convert
from embedllm.package.links import SWITCH
from embedllm.package.package import WEIGHTS, open_package
from tests.support.external_folders import optimum_intel
from tests.support.tiny import tiny_checkpoint

SECRET = "{{ 'root:x:0:0' }}"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links")
    return convert(tiny_checkpoint(folder / "checkpoint"), folder / "package")


def copied(source: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def linked(folder: Path, name: str, target: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize(
    "name",
    ["chat_template.jinja", "additional_chat_templates/rag.jinja", "tokenizer_config.json", "generation_config.json"],
)
@pytest.mark.parametrize("kind", ["package", "optimum", "checkpoint"])
def test_a_text_that_leads_out_of_the_folder_is_refused(
    package: Path, tmp_path: Path, secret: Path, name: str, kind: str
) -> None:
    folder = tmp_path / "folder"
    if kind == "package":
        copied(package, folder)
    elif kind == "optimum":
        optimum_intel(package, folder)
    else:
        tiny_checkpoint(folder)
    linked(folder, name, secret)
    message = rf"'.*{name}' is a link to '{secret}', outside of its folder; .* {SWITCH}=1"
    with pytest.raises(EmbedError, match=message):
        convert(folder, tmp_path / "out") if kind == "checkpoint" else open_package(folder)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_templates_that_leads_out_is_refused(package: Path, tmp_path: Path, secret: Path) -> None:
    folder = copied(package, tmp_path / "folder")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rag.jinja").write_text(SECRET)
    linked(folder, "additional_chat_templates", tmp_path / "elsewhere")
    with pytest.raises(EmbedError, match="outside of its folder"):
        open_package(folder)


def test_weights_of_others_that_lead_out_are_refused(package: Path, tmp_path: Path) -> None:
    folder = optimum_intel(package, tmp_path / "folder")
    (folder / "openvino_model.bin").rename(tmp_path / "weights")
    linked(folder, "openvino_model.bin", tmp_path / "weights")
    with pytest.raises(EmbedError, match=r"openvino_model.bin' is a link to .*outside of its folder"):
        open_package(folder)


def test_the_switch_follows_links(package: Path, tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(package, tmp_path / "folder")
    linked(folder, "chat_template.jinja", secret)
    monkeypatch.setenv(SWITCH, "On")
    open_package(folder)


def test_links_within_the_folder_and_to_the_folder_work(package: Path, tmp_path: Path) -> None:
    folder = copied(package, tmp_path / "folder")
    (folder / "chat_template.jinja").write_text(SECRET)
    (folder / "chat_template.jinja").rename(folder / "default.jinja")
    linked(folder, "chat_template.jinja", Path("default.jinja"))
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    open_package(tmp_path / "link")
    open_package(folder)


def test_weights_of_a_package_may_lie_on_another_disk(package: Path, tmp_path: Path) -> None:
    folder = copied(package, tmp_path / "folder")
    (folder / WEIGHTS).rename(tmp_path / "weights")
    linked(folder, WEIGHTS, tmp_path / "weights")
    open_package(folder).check()


@pytest.mark.parametrize("inner", ["", "int4"])
def test_a_snapshot_of_the_hub_works(package: Path, tmp_path: Path, inner: str) -> None:
    """As the hub's client writes it: all files are relative links into blobs."""
    cache = tmp_path / "models--org--name"
    folder = cache / "snapshots" / "0123abc" / inner
    (cache / "blobs").mkdir(parents=True)
    folder.mkdir(parents=True)
    for path in copied(package, tmp_path / "copy").iterdir():
        path.rename(cache / "blobs" / path.name)
        (folder / path.name).symlink_to(Path(*[".."] * (3 if inner else 2)) / "blobs" / path.name)
    open_package(folder).check()
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    open_package(tmp_path / "link")


def test_blobs_that_lead_out_are_none(package: Path, tmp_path: Path, secret: Path) -> None:
    """An archive may hold a folder of this form, whose blobs are a link to where its user's files are."""
    folder = copied(package, tmp_path / "archive" / "snapshots" / "x")
    (tmp_path / "archive" / "blobs").symlink_to(tmp_path, target_is_directory=True)
    linked(folder, "chat_template.jinja", Path("../../blobs/secret"))
    with pytest.raises(EmbedError, match=f"is a link to '{secret}', outside of its folder"):
        open_package(folder)


def test_a_link_to_nothing_is_a_missing_file(package: Path, tmp_path: Path) -> None:
    folder = copied(package, tmp_path / "folder")
    linked(folder, "tokenizer.json", tmp_path / "gone")
    with pytest.raises(EmbedError, match=r"is incomplete: cannot read 'tokenizer.json'"):
        open_package(folder)
