"""A conversation in a file: whole or not at all, and never in the place of something else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from embedllm.cli.messages_file import read_messages, typed_path, write_messages
from embedllm.errors import EmbedError
from embedllm.text.chat_template import Message

MESSAGES: list[Message] = [{"role": "system", "content": "Täglich 東京"}, {"role": "user", "content": "a\nb"}]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_messages(tmp_path / "chat.json", MESSAGES)
    assert read_messages(tmp_path / "chat.json") == MESSAGES
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


def test_an_older_conversation_is_exchanged(tmp_path: Path) -> None:
    write_messages(tmp_path / "chat.json", MESSAGES)
    write_messages(tmp_path / "chat.json", MESSAGES[:1])
    assert read_messages(tmp_path / "chat.json") == MESSAGES[:1]


def test_a_file_that_is_no_conversation_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("precious")
    with pytest.raises(EmbedError, match="not overwritten"):
        write_messages(path, MESSAGES)
    assert path.read_text() == "precious"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_messages(tmp_path / "chat.json", MESSAGES)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(EmbedError, match=r"cannot write .*: No space left on device"):
        write_messages(tmp_path / "chat.json", MESSAGES[:1])
    assert read_messages(tmp_path / "chat.json") == MESSAGES
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    write_messages(tmp_path / "chat.json", MESSAGES)
    assert (tmp_path / "chat.json").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    write_messages(tmp_path / "real.json", MESSAGES[:1])
    (tmp_path / "link.json").symlink_to("real.json")
    write_messages(tmp_path / "link.json", MESSAGES)
    assert (tmp_path / "link.json").is_symlink()
    assert read_messages(tmp_path / "real.json") == MESSAGES


@pytest.mark.parametrize("data", [{"role": "user"}, ["text"], [{"content": "no role"}], [{"role": 3}], 5])
def test_other_json_is_refused(tmp_path: Path, data: object) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(data))
    with pytest.raises(EmbedError, match="is not a list of messages"):
        read_messages(tmp_path / "chat.json")


def test_what_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(EmbedError, match=r"cannot read .*chat\.json"):
        read_messages(tmp_path / "chat.json")
    (tmp_path / "chat.json").write_bytes(b"\xff")
    with pytest.raises(EmbedError, match="is not JSON"):
        read_messages(tmp_path / "chat.json")


def test_paths_are_read_as_terminals_paste_files_that_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "my chat's.json"
    typed = [str(path), f'"{path}"']
    if os.name != "nt":
        typed += [str(path).replace(" ", "\\ ").replace("'", "\\'")]
    assert [typed_path(name) for name in typed] == [path] * len(typed)
    assert typed_path(f"'{tmp_path}/a b'") == tmp_path / "a b"
    assert typed_path("it's") == Path("it's")


def test_a_file_whose_name_has_quotes_is_meant_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("'a'").touch()
    assert typed_path("'a'") == Path("'a'")
    assert typed_path("'b'") == Path("b")
