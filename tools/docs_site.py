"""For mkdocs (mkdocs.yml): links of the pages to files outside of docs/ lead to copies of them in the site.

README.md and CHANGELOG.md become pages, sources are copied as text, and a link to a folder becomes its text. Without it
a page of docs/ would have to name the repository's address to be of use outside of it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md"}  # of the repository, and their names in the site
_LINK = re.compile(r"(?<!\\)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def site_links(text: str, folder: str) -> tuple[str, set[str]]:
    """A page's text with its links as the site has them, and the files that have to be copied into it.

    folder: where the page lies in the repository, "docs" or "".
    """
    copied: set[str] = set()

    def replaced(match: re.Match[str]) -> str:
        label, target = match[1], match[2]
        place, hash_mark, anchor = target.partition("#")
        if "://" in target or not place or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, place))
        if path.startswith("docs/"):
            return f"[{label}]({path.removeprefix('docs/')}{hash_mark}{anchor})"
        if path in PAGES:
            return f"[{label}]({PAGES[path]}{hash_mark}{anchor})"
        if (ROOT / path).is_dir():
            return label
        copied.add(path)
        return f"[{label}]({_copy(path)})"

    return _LINK.sub(replaced, text), copied


def _copy(path: str) -> str:
    """The place in the site of a file of the repository: as text, which browsers show."""
    return f"source/{path}.txt"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    copied: set[str] = set()
    for name, page in PAGES.items():
        text, found = site_links((ROOT / name).read_text(encoding="utf-8"), "")
        files.append(File.generated(config, page, content=text))
        copied |= found
    for path in sorted((ROOT / "docs").glob("*.md")):
        copied |= site_links(path.read_text(encoding="utf-8"), "docs")[1]
    for path in sorted(copied):
        if (ROOT / path).is_file():  # else mkdocs finds the link broken
            files.append(File.generated(config, _copy(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    return markdown if page.file.src_uri in PAGES.values() else site_links(markdown, "docs")[0]
