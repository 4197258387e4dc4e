"""Words of the commands that messages tell to type."""

from __future__ import annotations

import os
import re
import shlex

_BARE = re.compile(r"[\w\\/:.+~-]+")  # cmd and PowerShell read each of these as it stands


def shell_word(text: str | os.PathLike[str]) -> str:
    """A path or name as one word of a command: in quotes where a shell would read something else in it."""
    word = os.fspath(text)
    if os.name != "nt":
        return shlex.quote(word)
    ending = word[len(word.rstrip("\\")) :]  # once more, since a program takes \" for a mark in the word
    return word if _BARE.fullmatch(word) else f'"{word}{ending}"'


def graph_command(folder: str | os.PathLike[str], variant: str) -> str:
    """What writes a graph of a package (again)."""
    return f"embedllm graph {shell_word(folder)} --variant {variant}"
