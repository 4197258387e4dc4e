"""The examples of docs/web.md and README for pages and Pyodide run in a real browser, at the addresses they name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S
from tests.web.support.chat_page import packing, serve_sample, until
from tests.web.support.server import ROOT, WebServer

pytestmark = pytest.mark.browser

WEB = ROOT / "bindings_web"
CDN = "https://cdn.jsdelivr.net/npm"
MODEL = "https://models.example/demo/"
PAGES = ["docs/web.md", "README.md"]


def examples(page: str, language: str) -> str:
    """The blocks of a page, in order, as one program."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks, f"{page} has no examples in {language}"
    return "\n".join(blocks)


def cdn_here(server: WebServer, modules: Path, work: Path) -> str:
    """Serves what jsDelivr has, under the addresses that it has there; the address in its place."""
    npm = f"{server.url}/npm"
    about = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    for name, version in about["dependencies"].items():
        server.serve(f"/npm/{name}@{version}", modules / name)
    source = shutil.copytree(WEB / "src", work / "src")
    libraries = source / "libraries.js"
    text = libraries.read_text(encoding="utf-8")
    assert CDN in text
    libraries.write_text(text.replace(CDN, npm), encoding="utf-8")
    server.serve(f"/npm/embedllm-web@{about['version']}/src", source)
    server.serve(f"/npm/embedllm-web@{about['version']}/probe", ROOT / "backends" / "probe")
    return npm


@pytest.mark.parametrize("page", PAGES)
def test_javascript_examples_run(
    page: str, browser: Browser, web_server: WebServer, node_modules: Path, tmp_path: Path
) -> None:
    npm = cdn_here(web_server, node_modules, tmp_path)
    model = web_server.serve("/demo", packing().demo()) + "/"
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<!doctype html><title>example</title><body></body>", encoding="utf-8")
    program = examples(page, "js").replace(CDN, npm).replace(MODEL, model)
    (site / "example.js").write_text(program, encoding="utf-8")
    tab = browser.context().page(web_server.serve("/site", site) + "/")
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
