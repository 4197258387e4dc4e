"""A file that appears whole or not at all, and the check before the work that goes into it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from embedllm.files.atomic import atomic_write, check_place, write_json

on_posix = pytest.mark.skipif(os.name != "posix", reason="named pipes are files on POSIX only")


def test_a_file_takes_the_place_of_another_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with atomic_write(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_text() == "before"
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("out", "after")]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="it failed"):
        _write_half(path)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("out", "before")]


def _write_half(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError("it failed")


@on_posix
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    check_place(path)
    with atomic_write(path) as file:
        file.write(b"all of it")
    reader.join()
    assert read == [b"all of it"]
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_place(tmp_path / "new")
    with pytest.raises(ValueError, match=r"cannot write '.*': it is a folder; expected the name of a file"):
        check_place(tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder '.*none'"):
        check_place(tmp_path / "none" / "new")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as root may write everywhere
    with pytest.raises(ValueError, match=r"nothing can be written in '.*'"):
        check_place(tmp_path / "new")


@on_posix
def test_a_private_file_is_its_owners_only_from_the_first_byte(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "secret", is_private=True) as file:
        assert [one.stat().st_mode & 0o777 for one in tmp_path.iterdir()] == [0o600]
        file.write(b"x")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_json_is_readable_utf8_with_a_line_end(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": "ä"})
    assert (tmp_path / "a.json").read_bytes() == '{\n "a": "ä"\n}\n'.encode()
