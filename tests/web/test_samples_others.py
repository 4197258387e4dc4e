"""The other samples for browsers: the notebook, the extension and its bookmarklet, and what serves and packs them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S, until
from tests.web.support.chat_page import SAMPLES, packing, serve_sample
from tests.web.support.page import Page
from tests.web.support.server import ROOT, WebServer

TEXT = "The llama is a domesticated South American camelid. It is used as a meat and pack animal. " * 2
ARTICLE = f"<!doctype html><title>Llamas</title><nav>menu</nav><article><p>{TEXT}</p></article>"


@pytest.mark.browser
def test_cells_of_the_notebook_run_in_order(
    browser: Browser, web_server: WebServer, node_modules: Path, tmp_path: Path
) -> None:
    python = packing().make_python(tmp_path)
    page = browser.context().page(serve_sample(web_server, "notebook", modules=node_modules, python=python))
    for cell in (1, 2):
        page.press("Shift+Enter", f".cell:nth-child({cell}) textarea")
    until(lambda: page.text("#state") == "Done.", patience_s=LONG_S)
    first, second = page.texts(".output:not([hidden])")
    assert first.strip() == "demo on wasm"
    assert "du -sh" in second
    page.fill(".cell:nth-child(3) textarea", "1 / 0")
    page.press("Shift+Enter", ".cell:nth-child(3) textarea")
    page.wait_for(".output.failed")
    assert "ZeroDivisionError: division by zero" in page.text(".output.failed")
    page.fill(".cell:nth-child(4) textarea", "import asyncio\nwhile True: await asyncio.sleep(0.01)")
    page.press("Shift+Enter", ".cell:nth-child(4) textarea")
    page.wait_for("#stop:enabled")
    page.click("#stop")
    until(lambda: page.text(".cell:nth-child(4) .output") == "Stopped.")


def summary(page: Page) -> str:
    page.click("#go")
    until(lambda: page.text("#status").startswith("Done") or page.evaluate(TROUBLE), patience_s=LONG_S)
    assert page.text("#status") == "Done, on wasm.", page.text("main")
    return page.text("#summary")


TROUBLE = "async () => !document.getElementById('trouble').hidden"


@pytest.mark.browser
def test_the_extension_summarises_with_what_is_packed_into_it(
    browser: Browser, whole_chromium: str, node_modules: Path, tmp_path: Path
) -> None:
    pack = packing()
    folder = pack.pack(pack.roots("summarise", model=pack.demo(), modules=node_modules), tmp_path / "extension")
    # Chromium makes the name of an unpacked extension of its path
    name = "".join(chr(ord("a") + int(digit, 16)) for digit in hashlib.sha256(str(folder).encode()).hexdigest()[:32])
    args = [f"--disable-extensions-except={folder}", f"--load-extension={folder}"]
    args.append("--disable-features=DisableLoadExtensionCommandLineSwitch")
    context = browser.context(tmp_path / "profile", args=args, program=whole_chromium)
    page = context.page(f"chrome-extension://{name}/panel.html")
    page.wait_for("html[data-ready]", state="attached")
    page.click("#take")  # of a tab that the icon was not clicked on
    page.wait_for("#trouble")
    assert page.text("#trouble-heading") == "This page cannot be read"
    page.fill("#text", TEXT)
    assert "llama" in summary(page)
    assert page.evaluate("async () => crossOriginIsolated")
    assert all(name in address for address in browser.events("external")), "it asked for what is not packed"
    browser.forget("external")
    context.close()


@pytest.mark.browser
def test_the_bookmarklet_hands_a_page_to_the_panel(
    browser: Browser, web_server: WebServer, node_modules: Path, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text(ARTICLE, encoding="utf-8")
    url = serve_sample(web_server, "summarise", modules=node_modules) + "panel.html"
    context = browser.context()
    panel = context.page(url)
    panel.wait_for("#bookmark")
    code = panel.evaluate("async () => document.getElementById('bookmarklet').href")
    article = context.page(web_server.serve("/article", tmp_path) + "/")
    article.evaluate("async (code) => { location.href = code; }", code)
    opened = until(lambda: next((page for page in context.pages() if page.id not in (panel.id, article.id)), None))
    opened.wait_for("html[data-ready]", state="attached")
    assert opened.evaluate("async () => document.getElementById('text').value") == f"Llamas\n\n{TEXT.strip()}"
    assert opened.url == url  # the text is not in the history


@pytest.mark.browser
def test_a_long_text_is_read_in_pieces_that_are_the_text(
    browser: Browser, web_server: WebServer, node_modules: Path
) -> None:
    url = serve_sample(web_server, "summarise", modules=node_modules)
    found = browser.context().page(url + "panel.html").evaluate(
        """async (text) => {
            const {piecesOf, summarise} = await import("./summary.js");
            const asked = [];
            const llm = {context: 300, async *chat([{content}]) {
                asked.push(content.length);
                if (content.length > 300) throw Object.assign(new Error("long"), {name: "ContextFull"});
                yield {text: "short.", finish_reason: "stop"};
            }};
            const steps = [];
            for await (const step of summarise(text, llm, new AbortController().signal)) steps.push(step);
            return {pieces: piecesOf(text, 100), asked, last: steps.at(-1)};
        }""",
        TEXT * 5,
    )  # fmt: skip
    assert "".join(found["pieces"]) == TEXT * 5
    assert all(len(piece) <= 100 and piece[-2:] == ". " for piece in found["pieces"])
    assert max(found["asked"]) > 300  # was parted
    assert found["last"] == {"piece": 1, "pieces": 1, "isLast": True, "text": "short."}


def test_the_server_sends_ranges_types_and_the_headers_of_isolation(node_modules: Path) -> None:
    command = [sys.executable, str(SAMPLES / "serve.py"), "--port", "0", "--no-python"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = re.sub(r"/ .*\n", "", server.stdout.readline())
        for path, kind in (("/", "text/html"), ("/chat/embedllm/index.js", "text/javascript")):
            with urllib.request.urlopen(url + path) as response:
                assert response.headers["Content-Type"].startswith(kind)
                assert response.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
                etag = response.headers["ETag"]
        weights = (packing().demo() / "weights.safetensors").read_bytes()
        address = f"{url}/chat/models/demo/weights.safetensors"
        for wanted, expected in (("bytes=27201530-", weights[27201530:]), ("bytes=5-9", weights[5:10])):
            with urllib.request.urlopen(urllib.request.Request(address, headers={"Range": wanted})) as response:
                assert (response.status, response.read()) == (206, expected)
        same = urllib.request.Request(url + "/chat/embedllm/index.js", headers={"If-None-Match": etag})
        for request, status in ((same, 304), (f"{url}/chat/../../pyproject.toml", 404), (f"{url}/chat/none", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            refused.value.close()
            assert refused.value.code == status
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def test_a_packed_sample_is_whole_and_written_once(node_modules: Path, tmp_path: Path) -> None:
    pack = packing()
    parts = pack.roots("chat", model=pack.demo(), modules=node_modules)
    folder = pack.pack(parts, tmp_path / "site")
    for path in (
        "index.html",
        "shared/places.js",
        "embedllm/worker.js",
        "embedllm/worker/load_model.js",
        "probe/answers.json",
        "models/demo/embedllm.json",
    ):
        assert (folder / path).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    with pytest.raises(SystemExit, match="is there already"):
        pack.pack(parts, folder)


def test_the_service_worker_keeps_every_file_of_the_page() -> None:
    chat = SAMPLES / "chat"
    listed = re.search(r"const PAGE = \[(.*?)\]", (chat / "service_worker.js").read_text(encoding="utf-8"), re.DOTALL)
    assert listed is not None
    kept = set(re.findall(r'"([^"]+)"', listed[1]))
    own = {path.name for path in chat.iterdir()} - {"index.html", "service_worker.js"}
    shared = {f"shared/{path.name}" for path in (SAMPLES / "shared").iterdir()}
    icons = {"icon-512.png", "icon-maskable-512.png"}  # for installing, which needs the network
    assert kept == {"./"} | (own - icons) | shared


def test_the_samples_scripts_have_the_types_they_say(node: str, node_modules: Path) -> None:
    command = [node, str(node_modules / "typescript" / "bin" / "tsc"), "-p", str(SAMPLES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
