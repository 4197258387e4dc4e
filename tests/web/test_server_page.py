"""The chat page of `embedllm serve` in a real Chromium: it loads, streams, stops, and keeps to its policy."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from embedllm.server.model_names import ServedModel
from embedllm.server.settings import ServerSettings
from tests.server.serving import DEMO, Served, serving, wait_until
from tests.web.support.browser import Browser
from tests.web.support.page import Page
from tests.web.support.server import ROOT

pytestmark = pytest.mark.browser

SEEING = ROOT / "samples/seeing/model"
LAST = "#talk .assistant:last-child"


@pytest.fixture(scope="module")
def page_server() -> Iterator[Served]:
    with serving((DEMO,), ServerSettings(port=0)) as served:
        yield served


@pytest.fixture
def page(browser: Browser, page_server: Served) -> Iterator[Page]:
    """The page; nothing may be on its console, where a policy that is not kept is told as well."""
    opened = browser.context().page(page_server.url)
    until(opened, "document.querySelectorAll('#model option').length === 1")
    yield opened
    assert opened.console == []


def until(page: Page, expression: str) -> None:
    """Waits for it to be true. Page.until() evaluates texts in the page, which its policy forbids."""
    wait_until(lambda: page.evaluate(f"async () => Boolean({expression})"))


def ask(page: Page, text: str) -> None:
    page.type("#text", text)
    page.press("Enter", "#text")


def ended(page: Page) -> None:
    until(page, "document.getElementById('send').textContent === 'Send'")


def test_a_reply_is_streamed_and_the_next_one_knows_of_it(page: Page) -> None:
    page.evaluate("""async () => {
        window.seen = [];
        new MutationObserver(() => seen.push(document.querySelector("#talk .assistant:last-child")?.textContent ?? ""))
            .observe(document.getElementById("talk"), {subtree: true, childList: true, characterData: true});
    }""")
    ask(page, "list files by size")
    page.wait_for(LAST)
    ended(page)
    reply = page.text(LAST)
    assert reply
    seen = list(dict.fromkeys(page.evaluate("async () => window.seen")))
    assert len(seen) > 2  # it grew
    assert all(reply.startswith(part.strip()) for part in seen)
    first = page.text("#status")
    assert "tokens" in first
    ask(page, "and by date?")
    until(page, "document.querySelectorAll('#talk .assistant').length === 2")
    ended(page)
    prompt = [int(text.split()[0]) for text in (first, page.text("#status"))]
    assert prompt[1] > prompt[0]  # with what was said before
    page.click("#new")
    assert page.texts("#talk div") == []


def test_a_reply_stops_at_the_server_when_it_is_stopped(page: Page, page_server: Served) -> None:
    """Stopped within the page, by its first text: on a busy machine a reply may be over before the test sees it."""
    page.evaluate(
        """async (last) => {
        const send = window.fetch, long = {min_tokens: 1500, max_tokens: 1500};
        window.fetch = (url, options) => send(url, options?.body
            ? {...options, body: JSON.stringify({...JSON.parse(options.body), ...long})} : options);
        window.labels = [];
        new MutationObserver((_, observer) => {
            if (!document.querySelector(last)?.textContent) return;
            observer.disconnect();
            const button = document.getElementById("send");
            labels.push(button.textContent);
            button.click();
        }).observe(document.getElementById("talk"), {subtree: true, childList: true, characterData: true});
    }""",
        LAST,
    )
    ask(page, "list files by size")
    until(page, "labels.length")
    ended(page)
    assert page.evaluate("async () => labels") == ["Stop"]
    wait_until(lambda: not page_server.running)
    assert 0 < len(page.text(LAST)) < 1500  # each token has letters
    assert page.texts("#talk .error") == []


def test_replies_are_text_and_errors_are_shown(page: Page) -> None:
    answer = {"choices": [{"delta": {"content": "<img src=x onerror=alert(1)>"}}]}
    page.evaluate("async (text) => { window.fetch = async () => new Response(text); }",
                  f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n")  # fmt: skip
    ask(page, "x")
    until(page, f"document.querySelector('{LAST}')?.textContent.includes('<img')")
    assert page.evaluate("async () => document.querySelectorAll('#talk img').length") == 0
    page.evaluate("""async () => {
        window.fetch = async () => new Response('{"error": {"message": "too long"}}', {status: 400});
    }""")
    ask(page, "y")
    until(page, "document.querySelector('#talk .error')?.textContent === 'too long'")


def test_the_policy_lets_no_other_script_run_and_no_other_place_be_asked(browser: Browser, page_server: Served) -> None:
    page = browser.context().page(page_server.url)
    page.evaluate("""async () => {
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", '<img src=x onerror="window.ran = true">');
        await fetch("http://127.0.0.1:9/").catch(() => null);
    }""")
    assert page.evaluate("async () => window.ran ?? false") is False
    said = " ".join(page.console)
    assert all(directive in said for directive in ("script-src", "img-src", "connect-src"))


def test_images_are_attached_pasted_and_dropped(browser: Browser) -> None:
    """Each goes with the next message; a second click on the button leaves them out again."""
    pictures = SEEING.parent / "pictures"
    with serving((ServedModel(name="seeing", path=str(SEEING), pinned=True),), ServerSettings(port=0)) as served:
        page = browser.context().page(served.url)
        until(page, "document.querySelectorAll('#model option').length === 1")
        page.attach("#files", [pictures / "word.png"])
        until(page, "document.getElementById('attach').textContent === 'Image (1)'")
        ask(page, "Read the word.")
        page.wait_for(LAST)
        ended(page)
        assert page.text(LAST) == 'The word is "river".'
        assert page.text("#talk .user") == "[image] Read the word."
        for kind, name in (("paste", "clipboardData"), ("drop", "dataTransfer")):
            page.evaluate(
                """async ({ kind, name, data }) => {
                    const files = new DataTransfer();
                    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
                    files.items.add(new File([bytes], "digit.png", { type: "image/png" }));
                    const type = kind === "paste" ? ClipboardEvent : DragEvent;
                    document.body.dispatchEvent(new type(kind, { [name]: files, bubbles: true, cancelable: true }));
                }""",
                {"kind": kind, "name": name, "data": base64.b64encode((pictures / "digit.png").read_bytes()).decode()},
            )
            until(page, "document.getElementById('attach').textContent === 'Image (1)'")
            page.click("#attach")
            until(page, "document.getElementById('attach').textContent === 'Image'")
        assert page.console == []
