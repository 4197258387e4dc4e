"""The page of families is current, and what it says about adding one is true."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, architectures, convert
from embedllm.package.package import open_package
from tests.support import families
from tests.support.families import FAMILIES, Case, make_checkpoint

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


@pytest.mark.peer
def test_a_family_is_added_by_the_text_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "hyperclovax.py").write_text(block("python"), encoding="utf-8")
    monkeypatch.setattr(architectures, "__path__", [*architectures.__path__, str(tmp_path / "new")])
    monkeypatch.delitem(sys.modules, f"{architectures.__name__}.hyperclovax", raising=False)
    case: Case = eval("{" + block("text") + "}", dict(vars(families)))["hyperclovax"]
    model = make_checkpoint(tmp_path / "checkpoint", case)
    tokens = np.random.default_rng(1).integers(0, 300, 30).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    package = open_package(convert(tmp_path / "checkpoint", tmp_path / "package", Recipe(bits=32)))
    found = ReferenceEngine(package).open().feed_all(tokens)
    assert np.abs(found - expected).max() <= 1e-3 * expected.std()
