"""Words of the commands that messages tell to type."""

from __future__ import annotations

import os
import shlex
import subprocess


def shell_word(text: str | os.PathLike[str]) -> str:
    """A path or name as one word of a command: in quotes where the shell would split it."""
    word = os.fspath(text)
    return subprocess.list2cmdline([word]) if os.name == "nt" else shlex.quote(word)


def graph_command(folder: str | os.PathLike[str], variant: str) -> str:
    """What writes a graph of a package (again)."""
    return f"embedllm graph {shell_word(folder)} --variant {variant}"
