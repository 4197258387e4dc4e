"""The folder that convert() writes: it appears when it is whole, and is replaced whole or not at all."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from embedllm.errors import ExportError
from embedllm.export import Progress, Recipe, convert
from embedllm.export.graphs import write_variant
from embedllm.export.writing.atomic_folder import atomic_folder
from embedllm.package.package import MANIFEST, open_package
from tests.support.tiny import tiny_checkpoint

NEAREST = Recipe(method="nearest")  # of a third of the default's time


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "checkpoint")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bits_of(package: Path) -> int:
    return json.loads((package / MANIFEST).read_text(encoding="utf-8"))["recipe"]["bits"]


# Where it appears


def test_the_output_may_be_new_nested_and_relative(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert convert("checkpoint", "new/nested/package") == Path("new/nested/package")
    open_package(tmp_path / "new" / "nested" / "package").check()
    assert sorted(path.name for path in (tmp_path / "new" / "nested").iterdir()) == ["package"]
    assert convert(f"../{tmp_path.name}/checkpoint", "./other") == Path("other")
    open_package("other").check()


def test_the_folder_does_not_exist_before_it_is_whole(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    existed: list[bool] = []
    convert(checkpoint, out, verify=True, on_progress=lambda _: existed.append(out.exists()))
    assert not any(existed)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# Replacing


def test_an_existing_folder_is_refused_and_left_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    before = contents(package)
    with pytest.raises(ExportError, match=rf"'{package}' exists already; choose another name, or replace it"):
        convert(checkpoint, package, Recipe(bits=8))
    assert contents(package) == before


def test_replacing_leaves_nothing_of_the_old_package(checkpoint: Path, tmp_path: Path) -> None:
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    more = write_variant(package, "hidden-float32").file
    convert(checkpoint, package, Recipe(bits=8), replace=True)
    opened = open_package(package)
    opened.check()
    assert bits_of(package) == 8
    assert {path.name for path in package.iterdir()} == {MANIFEST, *opened.files}
    assert more not in opened.files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "package"]


def test_replacing_needs_nothing_to_replace(checkpoint: Path, tmp_path: Path) -> None:
    open_package(convert(checkpoint, tmp_path / "package", NEAREST, replace=True)).check()


def test_replacing_takes_an_empty_folder(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    with pytest.raises(ExportError, match="exists already"):
        convert(checkpoint, tmp_path / "package")
    open_package(convert(checkpoint, tmp_path / "package", NEAREST, replace=True)).check()


def test_replacing_refuses_a_folder_that_is_no_package(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("years of work")
    for out in (tmp_path / "documents", tmp_path / "file", checkpoint, tmp_path):
        before = contents(tmp_path)
        with pytest.raises(ExportError, match=rf"'{out}' is no package folder; it is not replaced"):
            convert(checkpoint, out, replace=True)
        assert contents(tmp_path) == before


def test_a_package_can_be_replaced_from_inside(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `embedllm export SOURCE . --replace`: the folder has a name, though the caller did not write it."""
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    monkeypatch.chdir(package)
    convert(checkpoint, ".", Recipe(bits=8), replace=True)
    opened = open_package(package)
    opened.check()
    assert (opened.name, bits_of(package)) == ("package", 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "package"]


@pytest.mark.parametrize("name", ["link", "link/", "link/.", "../here/link"])
def test_replacing_a_link_replaces_the_package_that_it_leads_to(
    name: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    real = convert(checkpoint, tmp_path / "disk" / "real", NEAREST)
    (tmp_path / "here" / "link").symlink_to("../disk/real", target_is_directory=True)
    monkeypatch.chdir(tmp_path / "here")
    measured: list[Path] = []
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: measured.append(path) or usage(path))
    convert(checkpoint, name, Recipe(bits=8), replace=True)
    assert measured == [tmp_path / "disk"]
    assert (tmp_path / "here" / "link").readlink() == Path("../disk/real")
    assert (bits_of(real), open_package("link").name) == (8, "real")
    assert [names(tmp_path / folder) for folder in ("here", "disk")] == [["link"], ["real"]]


def test_a_link_to_a_folder_that_is_no_package_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis.txt").write_text("years of work")
    (tmp_path / "link").symlink_to("documents", target_is_directory=True)
    with pytest.raises(ExportError, match="documents' is no package folder"):
        convert(checkpoint, tmp_path / "link", replace=True)
    with pytest.raises(ExportError, match="exists already"):
        convert(checkpoint, tmp_path / "link")
    assert (tmp_path / "link" / "thesis.txt").exists()


@pytest.mark.parametrize("target", ["nothing", "link"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_link_that_leads_nowhere_is_refused_before_any_work(
    replace: bool, target: str, checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(target)
    calls: list[Progress] = []
    expected = rf"'{tmp_path / 'link'}' is a link to '{target}', where nothing is\. Remove the link, or choose"
    with pytest.raises(ExportError, match=expected):
        convert(checkpoint, tmp_path / "link", NEAREST, replace=replace, on_progress=calls.append)
    assert calls == []
    assert names(tmp_path) == ["checkpoint", "link"]


def test_a_failed_export_leaves_the_package_that_it_was_to_replace(checkpoint: Path, tmp_path: Path) -> None:
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    before = contents(package)

    def fail(_: Progress) -> None:
        raise RuntimeError("the listener broke")

    with pytest.raises(RuntimeError, match="the listener broke"):
        convert(checkpoint, package, Recipe(bits=8), replace=True, on_progress=fail)
    assert contents(package) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "package"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(13, "Permission denied")], ids=repr)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_package_survives_being_replaced_whatever_happens_meanwhile(
    error: BaseException, step: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the renames at the end fails: the old package or the new one is there, whole."""
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    rename, renames = Path.rename, 0

    def failing(path: Path, target: Path) -> Path:
        nonlocal renames
        renames += "package" in str(path) and path.suffix != ".partial"
        if renames == step:
            renames += 1
            raise error
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing)
        try:
            convert(checkpoint, package, Recipe(bits=8), replace=True)
        except (ExportError, KeyboardInterrupt):
            assert step < 3
    open_package(package).check()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "package"]


@pytest.mark.parametrize("replace", [False, True])
def test_what_appears_under_the_name_meanwhile_is_left_alone(replace: bool, checkpoint: Path, tmp_path: Path) -> None:
    """An export of a large model takes minutes, in which somebody may make a folder of that name."""
    out = tmp_path / "package"

    def work(_: Progress) -> None:
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("years of work")

    with pytest.raises(ExportError, match="is no package folder; it is not replaced" if replace else "exists already"):
        convert(checkpoint, out, replace=replace, on_progress=work)
    assert contents(out) == {"thesis.txt": b"years of work"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "package"]


def test_a_copied_package_opens_without_its_source(checkpoint: Path, tmp_path: Path) -> None:
    package = convert(checkpoint, tmp_path / "package", NEAREST)
    shutil.rmtree(checkpoint)
    moved = package.rename(tmp_path / "elsewhere")
    open_package(moved).check()


@pytest.mark.parametrize("name", ["x" * 250, "\U0001f600" * 60])
def test_a_long_name_can_be_written_and_replaced(tmp_path: Path, name: str) -> None:
    for replaced in (False, True):
        with atomic_folder(tmp_path / name, 0) as folder:
            (folder / "file").write_text(str(replaced))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "file").read_text() == "True"


# What killed exports leave

_EXPORT = """
import sys, time
from pathlib import Path
from embedllm.export.writing import atomic_folder as module

if sys.argv[2] == "renaming":
    rename = Path.rename
    Path.rename = lambda path, target: path.name.endswith("package") and rename(path, target) or stop()

def stop():
    print("ready", flush=True)
    time.sleep(600)

with module.atomic_folder(Path(sys.argv[1]), 0) as folder:
    (folder / "weights").write_bytes(bytes(1000))
    if sys.argv[2] == "writing":
        stop()
"""


@contextmanager
def exporting(out: Path, at: str) -> Iterator[subprocess.Popen[str]]:
    """An export in a process of its own that stands still, while it writes or while it renames."""
    command = [sys.executable, "-c", _EXPORT, str(out), at]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_export_to_a_place_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    out = tmp_path / "package"
    for _ in range(2):
        with exporting(out, "writing"):
            pass
    assert len([name for name in names(tmp_path) if re.fullmatch(r"\.package\.partial-\w{8}", name)]) == 1
    (tmp_path / ".package.partial-0123abcd").mkdir()  # as earlier versions left them
    with atomic_folder(tmp_path / "other", 0):
        pass
    assert (tmp_path / ".package.partial-0123abcd").exists()  # another place's
    with atomic_folder(out, 0):
        pass
    assert names(tmp_path) == ["other", "package"]


def test_the_folder_of_an_export_that_runs_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "package"
    with exporting(out, "writing"), atomic_folder(tmp_path / "package", 0) as mine:
        theirs = [name for name in names(tmp_path) if re.search(r"partial-\w{8}$", name) and name != mine.name]
        with atomic_folder(out, 0):
            pass
        assert {mine.name, *theirs} <= set(names(tmp_path))
        assert (tmp_path / theirs[0] / "weights").stat().st_size == 1000
        shutil.rmtree(out)
    assert (out.parent / theirs[0]).exists()  # of a killed one, until the next export
    with atomic_folder(tmp_path / "package", 0):
        pass
    assert names(tmp_path) == ["package"]


def test_a_package_that_a_killed_export_was_replacing_comes_back(tmp_path: Path) -> None:
    """Between the two renames neither is there under its name."""
    out = tmp_path / "package"
    out.mkdir()
    (out / "precious").write_text("years of work")
    with exporting(out, "renaming"):
        assert not out.exists()
    with pytest.raises(RuntimeError), atomic_folder(out, 0):
        raise RuntimeError("the disk is full")
    assert (out / "precious").read_text() == "years of work"
    assert names(tmp_path) == ["package"]


def test_folders_of_users_are_never_removed(tmp_path: Path) -> None:
    kept = [".package.partial-backup", ".package.partial-0123abcd.txt", "package.partial-0123abcd"]
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".package.partial-0123abcd").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with atomic_folder(tmp_path / "package", 0):
        pass
    assert {*kept, "elsewhere", ".package.partial-0123abcd"} <= set(names(tmp_path))


@pytest.mark.parametrize(("name", "message"), [("a\0b", r"no name has the character"), ("a\udc80", "is not UTF-8")])
def test_a_name_that_cannot_be_written_is_refused(checkpoint: Path, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        convert(checkpoint, tmp_path / name)
    assert names(tmp_path) == ["checkpoint"]


def test_a_source_whose_name_no_package_can_hold_is_refused_before_it_is_read(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint.rename(tmp_path / "mod\udce8le")
    monkeypatch.setattr("embedllm.export.open_source.HuggingFaceSource", None)  # calling it would be a TypeError
    with pytest.raises(ExportError, match=r"cannot export .*not UTF-8.*Rename it"):
        convert(source, tmp_path / "out")
