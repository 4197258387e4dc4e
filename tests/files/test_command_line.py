"""Commands in messages: what is typed as it stands means the folder that the message is about."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

import embedllm
from embedllm.errors import PackageError
from embedllm.files.command_line import graph_command, shell_word
from embedllm.package.package import open_package


@pytest.mark.parametrize("name", ["my model", "it's", "a;b", "plain-1.0", "Modèle", "$x"])
def test_a_shell_reads_the_word_as_it_was(name: str) -> None:
    folder = Path("to") / name
    assert shlex.split(graph_command(folder, "int8-kv")) == [
        "embedllm", "graph", str(folder), "--variant", "int8-kv",
    ]  # fmt: skip


def test_a_word_without_spaces_stays_bare_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        words = [shell_word(r"C:\models\tiny"), shell_word(r"C:\my models\tiny")]
    assert words == [r"C:\models\tiny", r'"C:\my models\tiny"']


@pytest.mark.parametrize("name", ["R&D", "O'Brien", "a,b", "a(1)", "a;b", ""])
def test_what_a_shell_of_windows_reads_as_its_own_is_in_quotes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of cmd or PowerShell: the next command, an open quotation, a list, an expression."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        assert shell_word(name) == f'"{name}"'
        assert shell_word(f"C:\\{name}!\\") == f'"C:\\{name}!\\\\"'  # one backslash would quote the mark
        assert shell_word(r"C:\Users\TINY~1\Modèle_2.5-it") == r"C:\Users\TINY~1\Modèle_2.5-it"


def test_no_command_in_the_sources_names_a_folder_as_it_is() -> None:
    bare = re.compile(r'embedllm (?:\w+|\{command\})[\s"f]*\{[^}(]*folder[^}(]*\}')
    root = Path(embedllm.__file__).parent  # 'backends' and 'export' are links in it
    sources = [path for place in (root, root / "backends", root / "export") for path in place.rglob("*.py")]
    assert len(sources) > 500
    assert [str(path) for path in sources if bare.search(path.read_text(encoding="utf-8"))] == []


def test_the_remedy_of_a_missing_folder_can_be_typed(tmp_path: Path) -> None:
    with pytest.raises(PackageError) as caught:
        open_package(tmp_path / "my model")
    assert shlex.split(str(caught.value).partition("Write one with: ")[2])[-1] == str(tmp_path / "my model")
