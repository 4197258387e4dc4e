"""Sharded copies: a folder cut into shards and put together again, as a user types it and byte by byte."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from embedllm.cli.main import cli
from embedllm.cli.param_types import ByteSize
from embedllm.errors import ExportError, PackageError
from embedllm.export import Progress, Recipe, convert, sharding
from embedllm.package.features import SHARDS
from embedllm.package.package import MANIFEST, WEIGHTS, open_package, read_package
from tests.export.test_atomic_folder import contents
from tests.export.test_limits import LIMITED
from tests.package.test_package import changed, manifest_of, write_manifest
from tests.support.tiny import tiny_checkpoint

PART_1, PART_2 = f"{WEIGHTS}.1-of-2", f"{WEIGHTS}.2-of-2"


@pytest.fixture
def package(tiny_package: Callable[..., Path], tmp_path: Path) -> Path:
    """Of floats, so that the weights are its largest file."""
    return Path(shutil.copytree(tiny_package("llama", Recipe(bits=32)), tmp_path / "package"))


@pytest.fixture
def hosted(package: Path, tmp_path: Path) -> Path:
    """Cut into two."""
    return sharding.shard(package, tmp_path / "hosted", weights_bytes(package) - 1000)


def weights_bytes(package: Path) -> int:
    return (package / WEIGHTS).stat().st_size


def listed_shards(folder: Path) -> dict[str, list[dict[str, object]]]:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["shards"]


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


def tiny_folder(folder: Path, weights: bytes) -> Path:
    """A package of which nothing can be computed."""
    files = {WEIGHTS: weights, "model.onnx": b"graph", "tokenizer.json": b"{}"}
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    write_manifest(folder, manifest_of(files))
    return folder


# What is written


def test_the_weights_lie_in_shards_and_all_else_is_as_it_was(package: Path, hosted: Path) -> None:
    before, after = contents(package), contents(hosted)
    size = weights_bytes(package) - 1000
    assert (len(after[PART_1]), len(after[PART_2])) == (size, 1000)
    assert after[PART_1] + after[PART_2] == before[WEIGHTS]
    assert listed_shards(hosted) == {
        WEIGHTS: [
            {"file": name, "bytes": len(after[name]), "sha256": hashlib.sha256(after[name]).hexdigest()}
            for name in (PART_1, PART_2)
        ]
    }
    same = before.keys() - {WEIGHTS, MANIFEST}
    assert after.keys() == {*same, PART_1, PART_2, MANIFEST}
    assert all(after[name] == before[name] for name in same)
    was, now = json.loads(before[MANIFEST]), json.loads(after[MANIFEST])
    assert (was.pop("features"), now.pop("features"), now.pop("shards") != {}) == ([], [SHARDS], True)
    assert was == now


def test_joined_it_is_the_folder_that_was_cut(package: Path, hosted: Path, tmp_path: Path) -> None:
    joined = sharding.join(hosted, tmp_path / "joined")
    assert contents(joined) == contents(package)
    open_package(joined).check()


def test_a_sharded_copy_can_be_cut_anew(package: Path, hosted: Path, tmp_path: Path) -> None:
    size = weights_bytes(package) // 2
    assert contents(sharding.shard(hosted, tmp_path / "a", size)) == contents(
        sharding.shard(package, tmp_path / "b", size)
    )


def test_a_folder_without_large_files_is_copied_as_it_is(package: Path, tmp_path: Path) -> None:
    code, _, said = run("shard", package, tmp_path / "copy")
    assert code == 0
    assert contents(tmp_path / "copy") == contents(package)
    assert "no file is larger than 2,146,435,072 bytes: there are no shards" in said


@given(count=st.integers(0, 40_000), size=st.integers(1, 3000) | st.integers(3000, 45_000))
def test_cut_and_joined_is_the_identity(count: int, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("cut")
    folder = tiny_folder(place / "whole", random.Random(count).randbytes(count))
    before = contents(folder)
    try:
        hosted = sharding.shard(folder, place / "hosted", size)
    except PackageError as error:
        assert f"'{MANIFEST}' cannot be cut" in str(error)  # noqa: PT017  # for some sizes only
        assert not (place / "hosted").exists()
        return
    assert max(map(len, contents(hosted).values())) <= size
    if read_package(hosted).shards:
        sharding.join(hosted, place / "joined")
        in_place = Path(shutil.copytree(folder, place / "in place"))
        sharding.cut_in_place(in_place, size)
        assert contents(in_place) == contents(hosted)
    else:
        hosted.rename(place / "joined")
    after = contents(place / "joined")
    assert json.loads(after.pop(MANIFEST)) == json.loads(before.pop(MANIFEST))
    assert after == before


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_shards_do_not_depend_on_how_much_is_read_at_once(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "_BLOCK", block)
    weights = bytes(range(251)) * 80
    hosted = sharding.shard(tiny_folder(tmp_path / "whole", weights), tmp_path / "hosted", 8000)
    assert [(hosted / f"{WEIGHTS}.{i}-of-3").read_bytes() for i in (1, 2, 3)] == [
        weights[:8000], weights[8000:16000], weights[16000:]
    ]  # fmt: skip


def test_an_export_in_shards_is_the_export_cut(package: Path, tmp_path: Path) -> None:
    checkpoint, size = tiny_checkpoint(tmp_path / "checkpoint", "llama"), weights_bytes(package) - 1000
    options = ("--bits", 32, "--method", "nearest", "--shard", size, "--json")
    code, out, said = run("export", checkpoint, tmp_path / "out" / "package", *options)
    assert code == 0, said
    assert json.loads(out)["shards"] == {WEIGHTS: [PART_1, PART_2]}
    assert json.loads(out)["weights_bytes"] == weights_bytes(package)
    assert f"sharded web copy, for browsers only: '{WEIGHTS}' in 2 shards" in said
    assert contents(tmp_path / "out" / "package") == contents(sharding.shard(package, tmp_path / "hosted", size))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["package"]


def test_the_second_name_of_the_weights_comes_back(package: Path, tmp_path: Path) -> None:
    (package / "openvino_tokenizer.xml").write_bytes(b"<a tokenizer/>")
    entry = {"bytes": 14, "sha256": hashlib.sha256(b"<a tokenizer/>").hexdigest()}
    changed(package, "files/openvino_tokenizer.xml", entry)
    (package / "openvino_model.bin").hardlink_to(package / WEIGHTS)
    hosted = sharding.shard(package, tmp_path / "hosted", weights_bytes(package) - 1000)
    assert not (hosted / "openvino_model.bin").exists()
    joined = sharding.join(hosted, tmp_path / "joined")
    assert (joined / "openvino_model.bin").samefile(joined / WEIGHTS)


# On the command line


def test_the_commands_say_what_they_wrote(package: Path, tmp_path: Path) -> None:
    (package / "notes.txt").write_text("mine")
    size = weights_bytes(package) - 1000
    code, out, said = run("shard", package, tmp_path / "hosted", "--size", f"{size}B", "--json")
    assert code == 0, said
    total = sum(entry.bytes for entry in open_package(package).files.values())
    assert json.loads(out) == {
        "folder": str(tmp_path / "hosted"), "bytes": total, "shards": {WEIGHTS: [PART_1, PART_2]}
    }  # fmt: skip
    assert "not copied, because the manifest does not list them: notes.txt\n" in said
    code, out, said = run("shard", tmp_path / "hosted", tmp_path / "joined", "--join", "--json")
    assert (code, json.loads(out)["shards"]) == (0, {}), said
    open_package(tmp_path / "joined").check()


def test_what_it_cannot_do_is_an_error(package: Path, hosted: Path, tmp_path: Path) -> None:
    assert run("shard", hosted, tmp_path / "x", "--join", "--size", "1GB")[0] == 2
    for arguments, expected in (
        ([package, tmp_path / "x", "--join"], f"error: '{package}' is no sharded copy: none of its files is in shards"),
        ([package, hosted], f"error: '{hosted}' exists already; choose another name, or replace it (--replace)."),
        ([package, tmp_path / "x", "--size", "10"], f"error: '{MANIFEST}' cannot be cut and needs "),
        ([tmp_path / "none", tmp_path / "x"], f"error: there is no folder '{tmp_path / 'none'}'"),
    ):
        code, _, said = run("shard", *arguments)
        assert (code, said.startswith(expected)) == (1, True), said
        assert not (tmp_path / "x").exists()


def test_a_folder_can_be_replaced_by_its_own_copy(package: Path) -> None:
    before, size = contents(package), weights_bytes(package) - 1000
    assert run("shard", package, package, "--size", size, "--replace")[0] == 0
    assert read_package(package).shards
    assert run("shard", package, package, "--join", "--replace")[0] == 0
    assert contents(package) == before


@pytest.mark.parametrize(
    ("text", "size"),
    [("1900MB", 1_900_000_000), ("25MiB", 25 << 20), ("1.9gb", 1_900_000_000), ("2 GiB", 2 << 30), ("512", 512),
     ("7B", 7), ("1kB", 1000), ("0.5KiB", 512), ("1TiB", 1 << 40)],
)  # fmt: skip
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert ByteSize().convert(text, None, None) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0.1B", "-1MB", "1M", "MB", "1iB", "1e9", "1,900MB", "\u0661MB", "1MBs", "inf"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected one such as 25MiB, 1900MB or 2GB"):
        ByteSize().convert(text, None, None)


# On a desktop


def test_a_sharded_copy_is_refused_with_the_command_that_joins_it(hosted: Path) -> None:
    for whole in (True, False):
        with pytest.raises(PackageError) as refused:
            open_package(hosted, whole=whole)
        assert str(refused.value) == (
            f"'{hosted}' is a sharded copy, for web servers that limit the size of a file: it has '{WEIGHTS}' in 2 "
            f"shards. Put it together with: embedllm shard {hosted} OUT --join"
        )
    for arguments in (["inspect", hosted], ["run", "hello", "--model", hosted],
                      ["graph", hosted, "--variant", "openvino"]):  # fmt: skip
        code, out, said = run(*arguments)
        assert (code, out) == (1, "")
        assert said.startswith(f"error: '{hosted}' is a sharded copy")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("shards", [], "'shards' is []; expected an object"),
        (f"shards/{WEIGHTS}", [], f"'{WEIGHTS}' is []; expected a list of one or more shards"),
        (f"shards/{WEIGHTS}", [3], f"shards of '{WEIGHTS}', there is a int; expected objects"),
        (f"shards/{WEIGHTS}/0/bytes", 0, "'bytes' is 0; expected a whole number >= 1"),
        (f"shards/{WEIGHTS}/0/sha256", None, "'sha256' is None; expected a string"),
        (f"shards/{WEIGHTS}/1/bytes", 999, "bytes together; the file has"),
        (f"shards/{WEIGHTS}/1/file", PART_1, f"it names the file '{PART_1}' twice"),
        (f"shards/{WEIGHTS}/1/file", "model.onnx", "it names the file 'model.onnx' twice"),
        (f"shards/{WEIGHTS}/1/file", "../x", "expected one inside its folder"),
        ("shards/other.bin", [], "it has shards of 'other.bin' but does not list that file"),
    ],
)
def test_shards_that_make_no_sense_are_refused(key: str, value: object, said: str, hosted: Path) -> None:
    with pytest.raises(PackageError) as refused:
        read_package(changed(hosted, key, value))
    assert said in str(refused.value)


# What goes wrong


@pytest.mark.parametrize("damage", ["flipped", "short", "gone", "exchanged"])
def test_damaged_shards_are_refused_and_nothing_is_left(damage: str, hosted: Path, tmp_path: Path) -> None:
    second = hosted / PART_2
    data = second.read_bytes()
    if damage == "gone":
        second.unlink()
    elif damage == "exchanged":  # right by its own hash, but not of this file
        second.write_bytes(bytes(1000))
        changed(hosted, f"shards/{WEIGHTS}/1/sha256", hashlib.sha256(bytes(1000)).hexdigest())
    else:
        second.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage == "flipped" else data[:-1])
    (tmp_path / "out").mkdir()
    expected = {
        "flipped": rf"'{second}' is damaged: its sha256 is ", "short": rf"'{second}' has 999 bytes; .* says 1000\.",
        "gone": rf"'{hosted}' is incomplete: cannot read '{PART_2}' \(No such file",
        "exchanged": rf"the shards of '{hosted / WEIGHTS}' are damaged: the sha256 of all is ",
    }  # fmt: skip
    with pytest.raises(PackageError, match=expected[damage]):
        sharding.join(hosted, tmp_path / "out" / "joined")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_folder_is_not_cut(package: Path, tmp_path: Path) -> None:
    with (package / WEIGHTS).open("r+b") as file:
        file.seek(5000)
        file.write(b"x" * 8)
    with pytest.raises(PackageError, match=rf"'{package / WEIGHTS}' is damaged: its sha256 is"):
        sharding.shard(package, tmp_path / "hosted", 20_000)
    assert not (tmp_path / "hosted").exists()


@pytest.mark.parametrize("is_join", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_what_is_stopped_on_the_way_leaves_nothing(
    error: BaseException, is_join: bool, package: Path, hosted: Path, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    copy, source = (sharding.join, hosted) if is_join else (partial(sharding.shard, size=20_000), package)
    existed: list[bool] = []

    def stop(progress: Progress) -> None:
        existed.append((place / "copy").exists())
        if progress.done > 0.9 * progress.total:
            raise error

    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else ExportError) as raised:
        copy(source, place / "copy", on_progress=stop)
    if error is not KeyboardInterrupt:
        assert str(raised.value) == f"cannot write '{place / 'copy'}': the disk is full. Nothing was left there."
    assert (any(existed), list(place.iterdir())) == (False, [])


def test_an_export_that_is_stopped_while_it_cuts_leaves_nothing(package: Path, tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "checkpoint", "llama")

    def stop(progress: Progress) -> None:
        if progress.stage == "shards":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(
            checkpoint,
            tmp_path / "out" / "package",
            Recipe(bits=32),
            shard=weights_bytes(package) // 2,
            on_progress=stop,
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_a_copy_without_room_is_refused_before_it_begins(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=1000))
    with pytest.raises(ExportError, match=r"the copy needs [\d,]+ bytes on the disk of .*; 1,000 are free"):
        sharding.shard(package, tmp_path / "hosted", 20_000)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("way", ["shard(sys.argv[1], sys.argv[2], 200_000)", "join(sys.argv[1], sys.argv[2])"])
def test_a_file_that_may_not_grow_is_named_and_nothing_is_left(
    way: str, package: Path, hosted: Path, tmp_path: Path
) -> None:
    source, out = hosted if way.startswith("join") else package, tmp_path / "out" / "copy"
    code = f"{LIMITED}; from embedllm.export import sharding; sharding.{way}"
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}", source, out, "100000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr.strip().splitlines()[-1] == (
        f"embedllm.errors.ExportError: cannot write '{out}': the file system, or a limit of this process, takes no "
        "file that large. Nothing was left there."
    )
    assert list(out.parent.iterdir()) == []
