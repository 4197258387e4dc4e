"""The first hour with a published model: SmolLM2 135M as GGUF, on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real import SMOLLM2, published_file

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where exports are kept, for all tests of this file."""
    return tmp_path_factory.mktemp("home")


def embedllm(home: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command with a user's folders of its own."""
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    return subprocess.run([sys.executable, "-m", "embedllm", *arguments], input=stdin, capture_output=True,
                          encoding="utf-8", env=environment, timeout=120, check=False,
                          stdin=subprocess.DEVNULL if stdin is None else None)  # fmt: skip


def test_a_gguf_file_answers_and_is_exported_once(home: Path) -> None:
    file = str(published_file(SMOLLM2, "**/*.gguf"))
    question = "Name the planet that we live on."  # one whose answer is no near tie, as "Paris" is
    first = embedllm(home, "run", file, question, "--temperature", "0", "--max-tokens", "20")
    assert first.returncode == 0, first.stderr
    assert "Earth" in first.stdout
    listed = embedllm(home, "list")
    assert listed.stdout.count("SmolLM2-135M-Instruct.Q4_1.gguf") == 1
    kept = sorted((home / "cache").rglob("embedllm.json"))
    again = embedllm(home, "run", file, question, "--temperature", "0", "--max-tokens", "20")
    assert again.stdout == first.stdout
    assert sorted((home / "cache").rglob("embedllm.json")) == kept
    assert len(kept) == 1


def test_what_is_piped_in_is_read(home: Path) -> None:
    file = str(published_file(SMOLLM2, "**/*.gguf"))
    options = ["run", file, "Which fruit is named?", "--temperature", "0", "--max-tokens", "20"]
    done = embedllm(home, *options, stdin="The basket holds bananas.")
    assert done.returncode == 0, done.stderr
    assert "banana" in done.stdout.lower()
