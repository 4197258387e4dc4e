"""The examples of docs/web.md and README for pages and Pyodide run in a real browser, in the folder they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S, until
from tests.web.support.chat_page import packing, serve_sample
from tests.web.support.server import ROOT, WebServer

pytestmark = pytest.mark.browser

MODEL = "https://models.example/demo/"
PAGES = ["docs/web.md", "README.md"]


def examples(page: str, language: str) -> str:
    """The blocks of a page, in order, as one program."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks, f"{page} has no examples in {language}"
    return "\n".join(blocks)


@pytest.mark.parametrize("page", PAGES)
def test_javascript_examples_run(
    page: str, browser: Browser, web_server: WebServer, node_modules: Path, tmp_path: Path
) -> None:
    """As a module of a page in the folder that pack.py writes; nothing is loaded from elsewhere."""
    pack = packing()
    site = pack.pack(pack.roots("chat", model=pack.demo(), modules=node_modules), tmp_path / "site")
    (site / "mine.html").write_text("<!doctype html><title>example</title><body></body>", encoding="utf-8")
    (site / "example.js").write_text(examples(page, "js"), encoding="utf-8")
    tab = browser.context().page(web_server.serve("/site", site) + "/mine.html")
    tab.evaluate("async () => void await import('./example.js')", patience_s=LONG_S)
    assert "ls" in tab.text("body")


def test_pyodide_examples_run(browser: Browser, web_server: WebServer, node_modules: Path, tmp_path: Path) -> None:
    """In the notebook, one cell for each page."""
    url = serve_sample(web_server, "notebook", modules=node_modules, python=packing().make_python(tmp_path))
    tab = browser.context().page(url)
    program = examples("docs/web.md", "py").replace(MODEL, f"{url}models/demo/")
    tab.fill(".cell:nth-child(1) textarea", program)
    tab.press("Shift+Enter", ".cell:nth-child(1) textarea")
    until(lambda: tab.text("#state") == "Done.", patience_s=LONG_S)
    output = tab.text(".cell:nth-child(1) .output")
    assert "Traceback" not in output, output
    assert "du -sh" in output
    assert "-size +10M" in output
