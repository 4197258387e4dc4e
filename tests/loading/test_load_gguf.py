"""GGUF files that are loaded as they are: exported once for what they hold, whole or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from click.testing import CliRunner

import embedllm
from embedllm.cli.main import cli
from embedllm.errors import ExportError
from embedllm.export import Progress, convert
from embedllm.loading.export_cache import exports
from embedllm.loading.gguf import gguf_package
from embedllm.loading.resolve import find_package
from tests.support.gguf_files import write_gguf
from tests.support.tiny import tiny_checkpoint

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama")
    return write_gguf(folder / "made.gguf", folder, kind="Q8_0")


@pytest.fixture
def file(made: Path, tmp_path: Path) -> Path:
    """One of the test's own."""
    (tmp_path / "m.gguf").write_bytes(made.read_bytes())
    return tmp_path / "m.gguf"


def test_a_loaded_file_says_what_its_export_says(file: Path, tmp_path: Path) -> None:
    folder = convert(file, tmp_path / "near")
    with embedllm.load(file, device="cpu") as model, embedllm.load(folder, device="cpu") as near:
        assert model.generate("hello", max_tokens=6).tokens == near.generate("hello", max_tokens=6).tokens
    assert [(one.source, one.folder.name) for one in exports()] == [("m.gguf", "m")]


def test_a_file_is_found_below_the_home_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(file.parent))
    monkeypatch.setenv("USERPROFILE", str(file.parent))
    assert find_package(f"~/{file.name}") == find_package(file)


def test_an_export_is_made_once_for_what_a_file_holds(file: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    first = gguf_package(file, seen.append)
    assert {progress.stage for progress in seen} == {"hash", "weights", "graphs"}
    size = file.stat().st_size
    assert [(p.done, p.total) for p in seen if p.stage == "hash"][-1] == (size, size)
    seen.clear()
    assert find_package(file, on_progress=seen.append) == first
    assert seen == [], "its size and times tell that it is the same"
    copy = tmp_path / "elsewhere" / "m.gguf"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    assert gguf_package(copy, seen.append) == first
    assert {progress.stage for progress in seen} == {"hash"}


def test_a_file_that_was_changed_is_exported_anew(file: Path) -> None:
    first = gguf_package(file)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))  # whatever the clock of the file system counts in
    assert gguf_package(file) != first
    assert len(exports()) == 2


@pytest.mark.parametrize("name", ["model.onnx", "openvino_model.xml", "weights.safetensors", "tokenizer.json"])
def test_an_export_that_lacks_a_file_is_made_again(file: Path, name: str) -> None:
    (gguf_package(file) / name).unlink()
    assert (gguf_package(file) / name).is_file()


def test_a_damaged_note_is_of_no_consequence(file: Path, cache: Path) -> None:
    first = gguf_package(file)
    for note in (cache / "gguf").iterdir():
        note.write_bytes(b"\xffdamaged")
    assert gguf_package(file) == first


def test_of_threads_at_once_one_exports(file: Path) -> None:
    together = Barrier(4)

    def ask(_: int) -> Path:
        together.wait()
        return gguf_package(file)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    assert len(exports()) == 1


def test_a_file_that_cannot_be_read_leaves_nothing(file: Path, cache: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ExportError, match="Is it whole"):
        embedllm.load(file)
    assert exports() == []
    assert [path for path in (cache / "exports").glob("*/*") if path.suffix != ".lock"] == []
    with pytest.raises(ExportError, match=r"there is no file 'nowhere/m\.gguf'"):
        embedllm.load("nowhere/m.gguf")


def test_a_folder_of_such_a_name_is_a_folder(made: Path, tmp_path: Path) -> None:
    folder = convert(made, tmp_path / "folder.gguf")
    assert find_package(folder) == folder


def test_the_commands_take_a_file(file: Path) -> None:
    found = CliRunner().invoke(cli, ["run", "--model", str(file), "--device", "cpu", "--max-tokens", "3", "hello"],
                               prog_name="embedllm")  # fmt: skip
    assert found.exit_code == 0, found.output
    assert len(exports()) == 1
