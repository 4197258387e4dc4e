"""The command that packs the LibreOffice extension, as a user types it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "samples" / "directml_plugin" / "build.py"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_it_writes_the_file_that_was_named_and_says_so(tmp_path: Path) -> None:
    ended = run("my.oxt", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "my.oxt\n")
    assert [path.name for path in tmp_path.iterdir()] == ["my.oxt"]
    assert zipfile.is_zipfile(tmp_path / "my.oxt")


def test_help_writes_no_file(tmp_path: Path) -> None:
    ended = run("--help", folder=tmp_path)
    assert ended.returncode == 0
    assert "embedllm_writer.oxt" in ended.stdout
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = run("no/such/my.oxt", folder=tmp_path)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert str(Path("no/such")) in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="this is no clone")
def test_what_the_readme_builds_is_ignored_by_git() -> None:
    command = ["git", "check-ignore", "--quiet", "embedllm_writer.oxt"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
