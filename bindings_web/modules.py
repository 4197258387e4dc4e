"""The JavaScript modules that ship with this package, loaded from their texts: the wheel is no server.

A module whose text is given to the browser has no address that its imports could be relative to. So each gets the
addresses of what it imports written into it, those first that import nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from embedllm.errors import PackageError

SOURCES = Path(__file__).parent / "src"
ENTRY = "worker/load_model.js"
# static imports and re-exports, which begin a line, and imports that are awaited; types in a comment are neither
_IMPORT = re.compile(r"""(?m)(^(?:import|export)\b(?:[^;"'`]*?\bfrom)?\s*|\bawait import\()(["'])(\.{1,2}/[^"']+)\2""")


def sources(folder: Path = SOURCES) -> dict[str, str]:
    """The texts of the modules by their paths, with "/" on any system."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.js"))}
    if ENTRY not in found:
        raise PackageError(
            f"'{folder}' has no '{ENTRY}': this installation lacks its JavaScript. Install embedllm again, or give "
            "urls={'bridge': ...}, where a server has these modules."
        )
    return {name: path.read_text(encoding="utf-8") for name, path in found.items()}


def imports(name: str, text: str) -> set[str]:
    """The modules that one imports by relative addresses."""
    return {_target(name, found[3]) for found in _IMPORT.finditer(text)}


def addresses(texts: Mapping[str, str], entry: str, *, publish: Callable[[str], str]) -> dict[str, str]:
    """The addresses of a module and all that it imports, in the order in which they were made.

    publish: gives the address of a text.
    Raises ValueError for an import of what is not there, and for a circle.
    """
    made: dict[str, str] = {}

    def make(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"'{name}' imports itself by way of {' -> '.join(path)}; expected no circle.")
        if name not in texts:
            raise ValueError(f"'{path[-1] if path else entry}' imports '{name}', which is not there.")
        if name in made:
            return
        for imported in sorted(imports(name, texts[name])):
            make(imported, (*path, name))
        made[name] = publish(_IMPORT.sub(lambda found: _rewritten(name, found, made), texts[name]))

    make(entry, ())
    return made


def _rewritten(name: str, found: re.Match[str], made: Mapping[str, str]) -> str:
    return f"{found[1]}{found[2]}{made[_target(name, found[3])]}{found[2]}"


def _target(name: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), address))
