"""What `--replace` deletes: what belongs to the package, and no input of the export or file of a user."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedllm.errors import ExportError
from embedllm.export import Progress, Recipe, convert, sharding
from embedllm.export.graphs import write_variant
from embedllm.export.mtp import add_mtp
from embedllm.export.writing.atomic_folder import check_place
from embedllm.package.package import MANIFEST, open_package
from tests.export.test_atomic_folder import NEAREST, bits_of, contents
from tests.support.mtp_heads import CHECKPOINTS
from tests.support.tiny import tiny_checkpoint

EIGHT_BITS = Recipe(bits=8, method="nearest")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def package(checkpoint: Path, tmp_path: Path) -> Path:
    return convert(checkpoint, tmp_path / "package", NEAREST)


def no_work(_: Progress) -> None:
    raise AssertionError("the export has begun")


# Inputs


@pytest.mark.parametrize("exporter", ["embedllm", "optimum"])
def test_a_source_inside_is_refused_and_left_as_it_is(exporter: str, package: Path, checkpoint: Path) -> None:
    source = checkpoint.rename(package / "checkpoint")
    before = contents(package)
    expected = f"'{source}' lies in '{package}', which the export would replace, and is an input of it. Move it out"
    with pytest.raises(ExportError, match=re.escape(expected)):
        convert(source, package, exporter=exporter, replace=True, on_progress=no_work)
    assert contents(package) == before


def test_a_gguf_file_inside_is_refused_wherever_the_caller_stands(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match=r"'package/model\.gguf' lies in 'package', which"):
        convert("package/model.gguf", "./package/", replace=True)
    monkeypatch.chdir(package)
    with pytest.raises(ExportError, match=r"'model\.gguf' lies in '.*package', which"):
        convert("model.gguf", ".", replace=True)
    assert (package / "model.gguf").read_bytes() == b"GGUF"


@pytest.mark.parametrize("name", ["lora", "calibration", "importance", "mmproj"])
def test_any_other_input_inside_is_refused_even_where_the_manifest_lists_it(
    name: str, package: Path, checkpoint: Path
) -> None:
    file = package / "tokenizer.json"
    given: dict[str, Any] = {name: file}
    with pytest.raises(ExportError, match=rf"'{re.escape(str(file))}' lies in '{re.escape(str(package))}', which"):
        convert(checkpoint, package, replace=True, on_progress=no_work, **given)


def test_an_input_that_is_reached_by_a_link_is_refused(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").symlink_to(package / "tokenizer.json")
    with pytest.raises(ExportError, match=r"text\.txt' lies in "):
        convert(checkpoint, package, calibration=tmp_path / "text.txt", replace=True)


def test_an_output_inside_of_its_source_can_be_replaced(checkpoint: Path) -> None:
    package = convert(checkpoint, checkpoint / "package", NEAREST)
    assert bits_of(convert(checkpoint, package, EIGHT_BITS, replace=True)) == 8


def test_a_copy_is_not_put_in_place_of_the_folder_that_its_source_lies_in(package: Path) -> None:
    head = Path(shutil.copytree(package, package.parent / "copy")).rename(package / "mtp")
    with pytest.raises(ExportError, match="is an input of it"):
        sharding.shard(head, package, replace=True)
    open_package(head).check()


def test_a_head_is_not_put_in_place_of_the_folder_that_its_checkpoint_lies_in(tmp_path: Path) -> None:
    checkpoint = next(iter(CHECKPOINTS.values()))(tmp_path / "checkpoint")
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    source = checkpoint.rename(add_mtp(package, checkpoint) / "checkpoint")
    with pytest.raises(ExportError, match="is an input of it"):
        add_mtp(package, source, replace=True)
    assert (source / "config.json").exists()


def test_a_head_behind_a_link_is_replaced_where_it_lies(tmp_path: Path) -> None:
    checkpoint = next(iter(CHECKPOINTS.values()))(tmp_path / "checkpoint")
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    add_mtp(package, checkpoint).rename(tmp_path / "head")
    (package / "mtp").symlink_to("../head", target_is_directory=True)
    assert add_mtp(package, checkpoint, bits=8, replace=True) == tmp_path / "head"
    assert (bits_of(tmp_path / "head"), (package / "mtp").is_symlink()) == (8, True)


def test_a_copy_in_place_does_not_lose_the_heads_of_its_package(checkpoint: Path, tmp_path: Path) -> None:
    package = with_folders(checkpoint, tmp_path)
    before = contents(package)
    expected = f"'{package}' has what a copy leaves out, and replacing the folder by its own copy would delete it: "
    with pytest.raises(ExportError, match=re.escape(expected)):
        sharding.shard(package, package, 100_000, replace=True, on_progress=no_work)
    (tmp_path / "link").symlink_to(package)
    with pytest.raises(ExportError, match="by its own copy would delete it"):
        sharding.shard(tmp_path / "link", package, replace=True)
    assert contents(package) == before


# Files of users


def test_files_that_the_manifest_does_not_list_are_named_and_left(package: Path, checkpoint: Path) -> None:
    (package / "notes.txt").write_text("years of work")
    (package / "photos").mkdir()
    (package / "photos" / "1.jpg").write_bytes(b"JPEG")
    before = contents(package)
    expected = (
        f"'{package}' has what its manifest does not list, and replacing the folder would delete it: 'notes.txt', "
        "'photos/'. Move it away, or choose another name."
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        convert(checkpoint, package, replace=True, on_progress=no_work)
    with pytest.raises(ExportError, match=re.escape(expected)):
        sharding.shard(package, package, replace=True)
    assert contents(package) == before


def test_of_many_files_the_first_are_named(package: Path, checkpoint: Path) -> None:
    for at in range(30):
        (package / f"{at:02}.txt").write_text("")
    with pytest.raises(ExportError, match=r"'06\.txt', '07\.txt', and 22 more\. Move"):
        convert(checkpoint, package, replace=True)


def test_files_that_appear_during_the_export_are_left(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    def work(_: Progress) -> None:
        (package / "notes.txt").write_text("years of work")

    with pytest.raises(ExportError, match=r"'notes\.txt'"):
        convert(checkpoint, package, NEAREST, replace=True, on_progress=work)
    assert (package / "notes.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "package"]


@pytest.mark.parametrize("name", ["additional_chat_templates/mine.txt", "mtp/notes.txt", "mtp/notes/1.txt"])
def test_a_file_of_a_user_in_a_folder_of_the_package_is_named(name: str, checkpoint: Path, tmp_path: Path) -> None:
    package = with_folders(checkpoint, tmp_path)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("years of work")
    shown = name.removesuffix("1.txt")
    with pytest.raises(ExportError, match=rf"would delete it: '{shown}'\. Move"):
        convert(checkpoint, package, replace=True)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("tokenizer.json")])
@pytest.mark.parametrize("name", ["mtp", "tokenizer.json", "weights.safetensors.backup"])
def test_a_folder_or_link_is_no_part_of_the_package_by_its_name(
    name: str, make: Callable[[Path], None], package: Path
) -> None:
    (package / name).unlink(missing_ok=True)
    make(package / name)
    if name == "tokenizer.json" and (package / name).is_symlink():
        check_place(package, replace=True)  # of the package: where it leads to is left alone
    else:
        with pytest.raises(ExportError, match=rf"would delete it: '{name}/?'"):
            check_place(package, replace=True)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_package_whose_manifest_cannot_be_read_is_left(text: str, package: Path) -> None:
    (package / MANIFEST).write_text(text)
    with pytest.raises(ExportError, match=r"embedllm\.json' cannot be read, .* choose another name"):
        check_place(package, replace=True)


# What belongs to a package


def with_folders(checkpoint: Path, place: Path) -> Path:
    """A package with all kinds of files in folders: texts, and a head."""
    (checkpoint / "additional_chat_templates").mkdir()
    (checkpoint / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    package = convert(checkpoint, place / "package", NEAREST)
    shutil.copytree(package, place / "head").rename(package / "mtp")
    return package


def test_a_package_with_a_head_templates_and_more_graphs_is_replaced(tmp_path: Path) -> None:
    checkpoint = next(iter(CHECKPOINTS.values()))(tmp_path / "checkpoint")
    (checkpoint / "additional_chat_templates").mkdir()
    (checkpoint / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    add_mtp(package, checkpoint)
    add_mtp(package, checkpoint, replace=True)
    write_variant(package, "hidden-float32")
    assert bits_of(convert(checkpoint, package, EIGHT_BITS, replace=True)) == 8
    opened = open_package(package)
    assert set(contents(package)) == {MANIFEST, *opened.files}


@pytest.mark.parametrize("version", ["0", "999"])
def test_a_package_of_another_version_is_replaced(version: str, package: Path, checkpoint: Path) -> None:
    manifest = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
    manifest |= {"format": version, "features": ["unheard of"], "architecture": None}
    (package / MANIFEST).write_text(json.dumps(manifest))
    assert bits_of(convert(checkpoint, package, EIGHT_BITS, replace=True)) == 8


def test_a_package_in_shards_is_replaced(package: Path, checkpoint: Path) -> None:
    for size in (100_000, 50_000):
        convert(checkpoint, package, NEAREST, shard=size, replace=True)
    assert bits_of(convert(checkpoint, package, EIGHT_BITS, replace=True)) == 8


@pytest.mark.parametrize(
    "name",
    [".DS_Store", "embedllm.json.0123abcd.partial", "model.hidden.onnx.0123abcd.partial", ".mtp.partial-0123abcd.lock",
     ".eagle.partial-0123abcd/", ".mtp.partial-0123abcd.old/"],
)  # fmt: skip
def test_what_a_killed_write_or_a_file_browser_left_is_deleted(name: str, package: Path, checkpoint: Path) -> None:
    if name.endswith("/"):
        (package / name).mkdir()
        (package / name / "weights.safetensors").write_bytes(bytes(10))
    else:
        (package / name).write_bytes(bytes(10))
    convert(checkpoint, package, NEAREST, replace=True)
    assert not (package / name).exists()


def test_weights_on_another_disk_stay_there(package: Path, checkpoint: Path, tmp_path: Path) -> None:
    (package / "weights.safetensors").rename(tmp_path / "weights")
    (package / "weights.safetensors").symlink_to(tmp_path / "weights")
    before = (tmp_path / "weights").read_bytes()
    convert(checkpoint, package, EIGHT_BITS, replace=True)
    assert (tmp_path / "weights").read_bytes() == before
    assert not os.path.islink(package / "weights.safetensors")  # noqa: PTH114
