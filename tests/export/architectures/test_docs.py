"""The page of families is current, and what it says about adding one is true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from embedllm.export import architectures
from tests.support import families
from tests.support.families import FAMILIES

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "families.md"


def block(language: str) -> str:
    """The only block of code in that language on the page."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return found[0]


def test_page_is_current() -> None:
    """If it is not: python docs/make_families.py --write"""
    page = runpy.run_path(str(DOCS / "make_families.py"))["families_page"]()
    assert PAGE.read_text(encoding="utf-8") == page


def test_every_family_is_proved_and_says_what_it_is() -> None:
    assert {case.family for case in FAMILIES.values()} == set(architectures.families())
    assert all(all(architectures.about(name)) for name in architectures.families())


def test_the_case_of_the_page_is_that_of_the_family() -> None:
    assert eval("{" + block("text") + "}", dict(vars(families)))["hyperclovax"] == FAMILIES["hyperclovax"]
