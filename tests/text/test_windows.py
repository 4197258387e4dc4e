"""How a text is cut into windows: bytes stand for tokens."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedllm.text.windows
from embedllm.text.windows import Windows, read_windows
from tests.support.fakes import END, Bytes


class Begun(Bytes):
    """A tokenizer that puts a token before a text."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [END, *super().encode(text, special=False)] if special else super().encode(text, special=False)


def windows(path: Path, size: int = 4, limit: int = 0, tokenizer: Bytes | None = None) -> Windows:
    return read_windows(path, tokenizer or Bytes(), size=size, limit=limit)


def texts(found: Windows) -> list[str]:
    return [bytes(piece).decode() for piece in found.pieces]


def write_documents(path: Path, *documents: str) -> Path:
    path.write_text("".join(json.dumps({"text": text, "src": "x"}) + "\n" for text in documents), encoding="utf-8")
    return path


def test_each_document_is_cut_for_itself_and_its_rest_is_left_out(tmp_path: Path) -> None:
    found = windows(write_documents(tmp_path / "t.jsonl", "abcdefghij", "kl", "mnop"))
    assert texts(found) == ["abcd", "efgh", "mnop"]
    assert found.left_out == len("ij") + len("kl")


def test_a_plain_text_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfab\ncdefgh\n\nij")
    found = windows(tmp_path / "t.txt")
    assert texts(found) == ["ab\nc", "defg", "h\n\ni"]
    assert found.left_out == 1


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (4, 1), (5, 2), (8, 2), (100, 3), (0, 3)])
def test_whole_windows_are_read_until_there_are_enough_tokens(limit: int, count: int, tmp_path: Path) -> None:
    path = write_documents(tmp_path / "t.jsonl", "abcdefgh", "ijkl")
    assert len(windows(path, limit=limit).pieces) == count


def test_what_comes_after_the_last_window_is_not_read(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "t.jsonl", "abcdefgh")
    path.write_bytes(path.read_bytes() + b"\xff no text")
    assert texts(windows(path, limit=8)) == ["abcd", "efgh"]


def test_a_window_begins_as_the_tokenizer_begins_a_text(tmp_path: Path) -> None:
    found = windows(write_documents(tmp_path / "t.jsonl", "abcdefgh"), tokenizer=Begun())
    assert found.pieces == ((END, *b"abc"), (END, *b"def"))
    assert found.left_out == 2


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), max_size=30)


@given(st.lists(LINE, max_size=6), st.integers(2, 9), st.integers(1, 20))
def test_windows_and_rest_are_the_text_whatever_is_read_at_once(lines: list[str], size: int, block: int) -> None:
    data = "\n".join(lines).encode()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedllm.text.windows, "_BLOCK", block)
        path = Path(folder) / "t.txt"
        path.write_bytes(data)
        if len(data) < size:
            with pytest.raises(ValueError, match=r"holds no text|is too short"):
                windows(path, size)
            return
        found = windows(path, size)
    joined = b"".join(map(bytes, found.pieces))
    assert joined == data[: len(joined)]
    assert len(joined) + found.left_out == len(data)
    assert found.left_out < size


# --- what is refused


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.txt", b"", "holds no text"),
        ("t.jsonl", b"\n \n", "holds no text"),
        ("t.jsonl", b'{"text": ""}\n', "holds no text"),
        ("t.txt", b"abc", "its longest document has 3 tokens, a window 4"),
        ("t.txt", b"abcd\nab\xff", r"is no UTF-8 text \(invalid start byte at byte 7\)"),
        ("t.jsonl", b'{"text": "abcd"}\n\n{"text": "a\xff"}\n', r"line 3 of .* is no UTF-8 \(invalid start byte at"),
        ("t.jsonl", b'{"text": "abcd"}\n{"text": \n', "line 2 of .* is no JSON"),
        ("t.jsonl", b'["abcd"]\n', "line 1 of .* holds a list"),
        ("t.jsonl", b'{"txt": "abcd"}\n', 'line 1 of .* has no "text"; expected'),
        ("t.jsonl", b'{"text": 5}\n', 'line 1 of .* has a wrong "text"'),
        ("t.jsonl", b"[" * 100_000, "line 1 of .* is no JSON"),
    ],
)
def test_what_is_no_text_is_named(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        windows(tmp_path / name)
