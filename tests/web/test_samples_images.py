"""Images in the chat sample, in a real browser: chosen, pasted, dropped, removed, sent, and kept with the chat."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.web.support.browser import Browser
from tests.web.support.calls import until
from tests.web.support.chat_page import ChatPage, serve_sample
from tests.web.support.server import ROOT, WebServer
from tests.web.test_samples import PHONE, check_on_a_phone

pytestmark = pytest.mark.browser

SEEING = ROOT / "samples/seeing"
PICTURES = SEEING / "pictures"
GIVE = """async ({ kind, name, data }) => {
    const files = new DataTransfer();
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    files.items.add(new File([bytes], name, { type: "image/png" }));
    const [type, source] = kind === "paste" ? [ClipboardEvent, "clipboardData"] : [DragEvent, "dataTransfer"];
    const event = new type(kind, { [source]: files, bubbles: true, cancelable: true });
    document.getElementById("said").dispatchEvent(event);
    return event.defaultPrevented;
}"""
SHOWN = """async (place) => [...document.querySelectorAll(`${place} img`)]
    .filter((image) => image.complete && image.naturalWidth && image.checkVisibility()).map(({ alt }) => alt)"""


@pytest.fixture
def seeing(web_server: WebServer, node_modules: Path) -> str:
    return serve_sample(web_server, "chat", modules=node_modules, model=SEEING / "model")


def give(chat: ChatPage, kind: str, data: bytes, name: str = "picture.png") -> None:
    """Pastes or drops a file; the browser must be told that the page took it."""
    given = {"kind": kind, "name": name, "data": base64.b64encode(data).decode()}
    assert chat.page.evaluate(GIVE, given)


def thumbnails(chat: ChatPage, place: str = "#images") -> list[str]:
    return chat.page.evaluate(SHOWN, place)


def test_images_are_sent_shown_and_kept(browser: Browser, seeing: str) -> None:
    chat = ChatPage(browser.context(), seeing)
    page = chat.page
    chat.load()
    page.attach("#files", [PICTURES / "word.png"])
    until(lambda: thumbnails(chat) == ["Image"])
    give(chat, "paste", (PICTURES / "digit.png").read_bytes())
    until(lambda: thumbnails(chat) == ["Image 1 of 2", "Image 2 of 2"])
    give(chat, "drop", (PICTURES / "shapes.png").read_bytes())
    until(lambda: len(thumbnails(chat)) == 3)
    for left in (2, 1):
        page.click("#images li:last-child button")
        until(lambda left=left: len(thumbnails(chat)) == left)
    assert page.evaluate("async () => document.activeElement.getAttribute('aria-label')") == "Remove: Image"

    page.reload()  # what waits is kept, as the draft is
    chat.loaded()
    until(lambda: thumbnails(chat) == ["Image"])
    assert 'The word is "river".' in chat.ask("Read the word.")
    assert thumbnails(chat) == []
    assert thumbnails(chat, "#transcript li:first-child") == ["Image"]
    assert "Read the word." in chat.messages()[0]

    page.reload()
    chat.loaded()
    until(lambda: thumbnails(chat, "#transcript li:first-child") == ["Image"])
    assert chat.ask("What colour is it?")  # of the picture in the history, with the model that reads it again
    assert page.evaluate("async () => document.getElementById('chats').selectedOptions[0].text") == "Read the word."


def test_what_is_no_image_is_refused_by_its_name(browser: Browser, seeing: str) -> None:
    chat = ChatPage(browser.context(), seeing)
    give(chat, "drop", b"no image at all", "notes.png")
    until(lambda: "notes.png" in chat.page.text("#images-note"))
    assert thumbnails(chat) == []
    give(chat, "drop", (PICTURES / "digit.png").read_bytes())
    until(lambda: thumbnails(chat) == ["Image"])
    assert not chat.page.evaluate("async () => document.getElementById('images-note').checkVisibility()")


def test_a_model_that_reads_text_only_says_so_for_each_way(
    browser: Browser, web_server: WebServer, node_modules: Path
) -> None:
    """Before it is loaded nothing is known of it: what waits then is refused when it is sent, and is not lost."""
    chat = ChatPage(browser.context(), serve_sample(web_server, "chat", modules=node_modules))
    give(chat, "drop", (PICTURES / "digit.png").read_bytes())
    until(lambda: thumbnails(chat) == ["Image"])
    chat.load()
    chat.send("Which digit is it?")
    assert chat.trouble() == "This model takes no images here"
    assert thumbnails(chat) == ["Image"]
    chat.page.click("#images button")
    until(lambda: thumbnails(chat) == [])
    for way in ("drop", "paste", "click"):
        chat.page.evaluate("async () => void (document.getElementById('images-note').textContent = '')")
        if way == "click":
            chat.page.click("#attach")
        else:
            give(chat, way, (PICTURES / "digit.png").read_bytes())
        until(lambda: chat.page.text("#images-note").startswith("demo takes no images here."))
        assert thumbnails(chat) == []


def test_thumbnails_fit_a_phone(browser: Browser, seeing: str) -> None:
    chat = ChatPage(browser.context(options=PHONE), seeing)
    for name in ("word", "digit", "shapes", "word"):
        before = len(thumbnails(chat))
        give(chat, "paste", (PICTURES / f"{name}.png").read_bytes())
        until(lambda before=before: len(thumbnails(chat)) > before)
    check_on_a_phone(chat.page, "chat-phone-images")
