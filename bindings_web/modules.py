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
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.js"))}
    if ENTRY not in paths:
        raise PackageError(
            f"'{folder}' has no '{ENTRY}': this installation lacks its JavaScript. Install embedllm again, or give "
            "urls={'bridge': ...}, where a server has these modules."
        )
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


def imports(name: str, text: str) -> set[str]:
    """The modules that one imports by relative addresses."""
    return {_target(name, match[3]) for match in _IMPORT.finditer(text)}


def addresses(texts: Mapping[str, str], entry: str, *, publish: Callable[[str], str]) -> dict[str, str]:
    """The addresses of a module and all that it imports, in the order in which they were made.

    publish: gives the address of a text.
    Raises ValueError for an import of what is not there, and for a circle.
    """
    urls: dict[str, str] = {}

    def make(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"'{name}' imports itself by way of {' -> '.join(path)}; expected no circle.")
        if name not in texts:
            raise ValueError(f"'{path[-1] if path else entry}' imports '{name}', which is not there.")
        if name in urls:
            return
        for imported in sorted(imports(name, texts[name])):
            make(imported, (*path, name))
        urls[name] = publish(_IMPORT.sub(lambda match: _rewritten(name, match, urls), texts[name]))

    make(entry, ())
    return urls


def _rewritten(name: str, match: re.Match[str], urls: Mapping[str, str]) -> str:
    return f"{match[1]}{match[2]}{urls[_target(name, match[3])]}{match[2]}"


def _target(name: str, address: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), address))
