"""The chat sample in a real browser, used as a person would: by mouse, keys and eyes, on a phone, offline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S, until
from tests.web.support.chat_page import ChatPage, packing, serve_sample
from tests.web.support.page import Page
from tests.web.support.server import ROOT, Fault, WebServer
from tests.web.support.stored import store_nothing

pytestmark = pytest.mark.browser

ARTIFACTS = Path(__file__).parent / "artifacts"
WEIGHTS = "/chat/models/demo/weights.safetensors"
QUESTION, FOLLOWING = "list files by size", "only those larger than 10 MB"
# it is echoed for half a minute, as a browser may draw nothing for seconds: its GPU process compiles a test's shaders
LONG = "The llama is a domesticated South American camelid. It is used as a meat and pack animal. " * 12
PHONE = {"viewport": {"width": 320, "height": 640}}
# what is to be touched, and too small for it; links in a text may be
SMALL = """async () => [...document.querySelectorAll("button, input, select, textarea, summary")]
    .filter((one) => one.checkVisibility())
    .map((one) => [one.id || one.textContent, one.getBoundingClientRect()])
    .filter(([, box]) => box.height < 43.9 || box.width < 43.9).map(([name]) => name)"""
SIDEWAYS = "async () => document.documentElement.scrollWidth - innerWidth"
HIDE = """async () => {
    Object.defineProperty(document, "visibilityState", {configurable: true, value: "hidden"});
    document.dispatchEvent(new Event("visibilitychange"));
}"""  # as if another tab came to the front
LEAVE = """async () => {
    document.getElementById("said").dispatchEvent(new Event("change"));
    delete document.documentElement.dataset.ready;
    const end = performance.now() + 300;
    setTimeout(() => location.reload());
    setTimeout(() => { while (performance.now() < end); });
}"""  # in the moment in which the draft is kept, by a page with no time for anything more
KEPT = """async () => {
    const {library, URLS} = await import("./shared/places.js");
    return (await (await library()).EmbedLLM.conversations.list({urls: URLS})).length;
}"""
AXE = """async () => (await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}))
    .violations.filter(({impact}) => ["serious", "critical", "moderate"].includes(impact))
    .map(({id, nodes}) => [id, nodes.map(({html, failureSummary}) => [html.slice(0, 200), failureSummary])])"""


@pytest.fixture
def url(web_server: WebServer, node_modules: Path) -> str:
    return serve_sample(web_server, "chat", modules=node_modules)


@pytest.fixture(scope="module")
def python_wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packing().make_python(tmp_path_factory.mktemp("python"))


def shot(page: Page, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(ARTIFACTS / f"{name}.png")


def violations(page: Page) -> list[Any]:
    page.cdp("Page.setBypassCSP", enabled=True)  # axe is no part of the page
    if not page.evaluate("async () => 'axe' in globalThis"):
        source = (ROOT / "bindings_web/node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
        page.cdp("Runtime.evaluate", expression=f"{source}; undefined")
    return page.evaluate(AXE)


def test_a_draft_outlives_a_page_that_is_left_at_once(browser: Browser, url: str) -> None:
    chat = ChatPage(browser.context(), url)
    for draft in map(str, range(10)):
        chat.page.fill("#said", draft)
        chat.page.evaluate(LEAVE)
        chat.ready()
        assert chat.page.evaluate("async () => document.getElementById('said').value") == draft


def test_a_reply_grows_is_stopped_and_the_chat_outlives_the_page(browser: Browser, url: str) -> None:
    chat = ChatPage(browser.context(), url)
    chat.load()
    assert "demo runs on wasm" in chat.page.text("#status")
    first = chat.ask(QUESTION)
    assert "ls -lhS" in first
    assert re.search(r"wasm · \d+ tokens · [\d.]+ tokens/s · 0 of \d+ prompt tokens cached", first)
    second = chat.ask(FOLLOWING)
    cached = re.search(r"(\d+) of (\d+) prompt tokens cached", second)
    assert cached is not None
    assert 0 < int(cached[1]) < int(cached[2])
    shot(chat.page, "chat-desktop")

    chat.set(max_tokens=1500)
    said = 4
    held = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r", "autoRepeat": True}
    for _ in range(3):  # a reply that ends before it was seen to grow, as the browser drew nothing, is no fault
        chat.send(LONG)
        said += 2
        chat.reply(said)
        chat.page.cdp("Input.dispatchKeyEvent", type="keyDown", **held)
        length = 0
        for more in (1, 20, 60):  # letters more than before
            least = length + more
            until(lambda least=least: len(chat.reply(said)) > least or chat.has_replied(said))  # noqa: B023
            length = len(chat.reply(said))
        if not chat.has_replied(said):
            break
        assert "You stopped it." not in chat.reply(said)
        chat.loaded()
    chat.page.click("#stop")
    chat.page.wait_for("#transcript > li:last-child .facts")
    chat.loaded()
    assert "You stopped it." in chat.messages()[-1]
    before = [re.sub(r"\n.*tokens cached.*", "", message).strip() for message in chat.messages()]

    chat.set(temperature=0, max_tokens=60)
    chat.page.evaluate(HIDE)
    until(lambda: chat.page.evaluate(KEPT) == 1)
    chat.page.type("#said", "a draft")
    chat.page.press("Tab", "#said")  # leaves the field
    chat.page.reload()
    chat.loaded()  # by itself, as the model was in use
    assert len(chat.messages()) == said
    assert [message.strip() for message in chat.messages()] == before
    assert chat.page.evaluate("async () => document.getElementById('said').value") == "a draft"
    chat.page.fill("#said", "")
    again = re.search(r"(\d+) of (\d+) prompt tokens cached", chat.ask(QUESTION))
    assert again is not None
    assert int(again[2]) - int(again[1]) < 40  # the history was on disk, computed
    chat.page.click("#new")
    until(lambda: chat.messages() == [])
    chat.page.select("#chats", chat.page.evaluate("async () => document.getElementById('chats').options[1].value"))
    until(lambda: len(chat.messages()) == said + 2)
    exported = chat.page.evaluate(
        """async () => {
            const make = URL.createObjectURL;
            const made = new Promise((done) => { URL.createObjectURL = (blob) => (done(blob.text()), make(blob)); });
            document.getElementById("export").click();
            return made;
        }"""
    )
    roles = [message["role"] for message in json.loads(exported)["messages"]]
    assert roles == ["user", "assistant"] * (said // 2 + 1)


def kept_chats(chat: ChatPage) -> list[list[str]]:
    """What the user said in each chat that is kept, last changed first."""
    chats = chat.page.evaluate("async () => (await (await import('./history.js')).History.open()).list()")
    return [[each["content"] for each in one["messages"] if each["role"] == "user"] for one in chats]


def two_tabs(browser: Browser, url: str, **settings: object) -> tuple[ChatPage, ChatPage]:
    """Both in the same chat, with a turn of the first."""
    first = ChatPage(browser.context(), url, **settings)
    first.load()
    first.ask(QUESTION)
    second = ChatPage(first.context, url)
    second.loaded()
    assert len(second.messages()) == 2
    return first, second


def test_a_tab_goes_on_with_what_was_said_in_another(browser: Browser, url: str) -> None:
    first, second = two_tabs(browser, url)
    second.ask(FOLLOWING)
    first.page.fill("#said", "a draft")
    first.page.press("Tab", "#said")  # leaves the field
    assert kept_chats(first) == [[QUESTION, FOLLOWING]]
    first.page.fill("#said", "show free memory")
    first.page.press("Enter", "#said")
    first.page.wait_for("#transcript > li:nth-child(6) .facts", patience_s=LONG_S)
    assert kept_chats(second) == [[QUESTION, FOLLOWING, "show free memory"]]


def test_replies_of_two_tabs_at_once_are_both_kept(browser: Browser, url: str) -> None:
    first, second = two_tabs(browser, url, max_tokens=1500)
    first.send(LONG)
    empty = len(first.reply(4))
    until(lambda: len(first.reply(4)) > empty + 20)
    second.set(max_tokens=20)
    second.page.fill("#said", FOLLOWING)
    second.page.press("Enter", "#said")
    second.page.wait_for("#transcript > li:nth-child(4) .facts", patience_s=LONG_S)
    assert not first.has_replied(4)
    first.page.click("#stop")
    first.loaded()
    assert kept_chats(first) == [[QUESTION, LONG.strip()], [QUESTION, FOLLOWING]]
    assert len(first.page.texts("#chats option")) == 2
    first.set(max_tokens=20)
    first.page.fill("#said", "show free memory")
    first.page.press("Enter", "#said")
    first.page.wait_for("#transcript > li:nth-child(6) .facts", patience_s=LONG_S)
    assert kept_chats(first) == [[QUESTION, LONG.strip(), "show free memory"], [QUESTION, FOLLOWING]]


def test_it_works_offline_after_one_visit(browser: Browser, url: str, web_server: WebServer) -> None:
    chat = ChatPage(browser.context(), url)
    chat.load()
    first = chat.ask(QUESTION).splitlines()
    web_server.forget()
    chat.context.set_offline(True)
    chat.page.reload()
    chat.loaded()
    assert chat.messages()[1].splitlines() == first[: len(chat.messages()[1].splitlines())]
    chat.page.click("#new")
    until(lambda: chat.messages() == [])
    assert "ls -lhS" in chat.ask(QUESTION)
    # browsers look for a new service worker past the emulation of a broken network
    assert {request.path for request in web_server.requests()} <= {"/chat/service_worker.js"}


def test_it_answers_over_plain_http(browser: Browser, url: str, web_server: WebServer) -> None:
    chat = ChatPage(browser.context(), web_server.plain(url))
    chat.load()
    assert "ls -lhS" in chat.ask(QUESTION)
    chat.page.click(".block-bar button")
    until(lambda: chat.page.text(".block-bar button") == "Not allowed")
    chat.page.click("#new")
    until(lambda: len(chat.page.texts("#chats option")) == 2)


def test_it_answers_where_nothing_may_be_stored(
    browser: Browser, whole_chromium: str, url: str, tmp_path: Path
) -> None:
    store_nothing(tmp_path)
    page = browser.context(tmp_path, program=whole_chromium).page(url)
    page.wait_for("html[data-ready]", state="attached")
    page.click("#load")
    page.wait_for("#send:enabled", patience_s=LONG_S)
    assert "demo runs on wasm" in page.text("#status")


def test_the_engine_python_gives_the_same_reply(
    browser: Browser, web_server: WebServer, node_modules: Path, python_wheels: Path
) -> None:
    url = serve_sample(web_server, "chat", modules=node_modules, python=python_wheels)
    chat = ChatPage(browser.context(), url)
    chat.set(engine="python")
    chat.load()
    assert "ls -lhS" in chat.ask(QUESTION)
    assert any(request.path == "/chat/libraries/python/embedllm.whl" for request in web_server.requests())
    assert not re.search(r"\b0 of \d+ prompt", chat.ask(FOLLOWING))


def test_a_broken_download_says_so_and_goes_on_when_asked(browser: Browser, url: str, web_server: WebServer) -> None:
    web_server.fault(WEIGHTS, Fault(cut_after=3_000_000, times=1))
    chat = ChatPage(browser.context(), url)
    chat.page.click("#load")
    until(lambda: web_server.requests(WEIGHTS))
    web_server.fault(WEIGHTS, Fault(status=503), keep_held=True)
    assert chat.trouble() == "The download broke off"
    assert "goes on from where it stopped" in chat.page.text("#trouble-advice")
    assert violations(chat.page) == []
    shot(chat.page, "chat-broken-download")
    web_server.fault(WEIGHTS, None)
    chat.page.click("#retry")
    chat.loaded()
    assert (web_server.requests(WEIGHTS)[-1].range or "").startswith("bytes=")
    assert "ls -lhS" in chat.ask(QUESTION)


def test_an_address_without_a_model_says_so(browser: Browser, url: str) -> None:
    chat = ChatPage(browser.context(), url)
    chat.page.fill("#url", f"{url}models/none/")
    chat.page.click("#load")
    assert chat.trouble() == "There is no model at this address"
    chat.page.click("#dismiss")
    chat.page.wait_for("#trouble", state="hidden")


def check_on_a_phone(page: Page, name: str) -> None:
    """Fits the width, fingers find everything, everything has a name, and axe finds no fault."""
    assert page.evaluate(SIDEWAYS) <= 0
    assert page.evaluate(SMALL) == []
    assert violations(page) == []
    assert re.findall(r"(?m)^ *- (?:button|textbox|combobox|slider|spinbutton|link)(?! \").*", page.accessible()) == []
    shot(page, name)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_on_a_phone_and_on_a_desktop(browser: Browser, url: str, scheme: str) -> None:
    chat = ChatPage(browser.context(options={**PHONE, "colorScheme": scheme, "reducedMotion": "reduce"}), url)
    page = chat.page
    assert violations(page) == []
    chat.load()
    page.evaluate(
        """async () => {
            globalThis.spoken = [];
            const region = document.getElementById("spoken");
            new MutationObserver(() => spoken.push(region.textContent)).observe(region, {childList: true});
        }"""
    )
    tokens = re.search(r"(\d+) tokens", chat.ask(QUESTION))
    assert tokens is not None
    spoken = page.evaluate("async () => spoken")
    assert spoken[-1].endswith("End of the reply.")
    assert len(spoken) < int(tokens[1]) / 2  # sentences, not tokens
    check_on_a_phone(page, f"chat-phone-{scheme}")
    page.click("#open-settings")
    page.wait_for("#stored button")
    page.wait_for("#devices:not(:empty)", state="attached")
    check_on_a_phone(page, f"chat-phone-settings-{scheme}")
    page.press("Escape")
    page.set_viewport(1000, 800)
    assert violations(page) == []
    shot(page, f"chat-desktop-{scheme}")


def test_the_keyboard_reaches_everything_in_order(browser: Browser, url: str) -> None:
    chat = ChatPage(browser.context(), url)
    reached = []
    for _ in range(11):
        chat.page.press("Tab")
        reached.append(
            chat.page.evaluate("async () => document.activeElement.id || document.activeElement.textContent")
        )
    expected = [
        "Skip to the message field",
        "chats",
        "new",
        "export",
        "delete",
        "open-settings",
        "Model",
        "url",
        "load",
        "attach",
    ]
    assert reached == [*expected, "said"]
    outline = "async () => getComputedStyle(document.activeElement).outlineWidth"
    assert chat.page.evaluate(outline) == "3px"


def test_what_a_model_writes_is_shown_as_text(browser: Browser, url: str) -> None:
    page = ChatPage(browser.context(), url).page
    shown = page.evaluate(
        """async (pieces) => {
            const {ReplyView} = await import("./reply.js");
            const place = document.createElement("div");
            const view = new ReplyView(place);
            let text = "";
            let bar = null;
            for (const piece of pieces) {
                view.show(text += piece);
                bar ??= place.querySelector("button");
            }
            return {text: place.innerText, code: [...place.querySelectorAll("code")].map((one) => one.textContent),
                    names: [...new Set([...place.querySelectorAll("*")].map((one) => one.localName))],
                    isSame: bar === place.querySelector("button")};
        }""",
        [
            "<img src=x onerror=alert(1)> and `<b>`\n\n",
            "```",
            "js\nif (a < b) {\n",
            "\n",
            "  `x`\n}\n```\n",
            "~~~\nopen",
        ],
    )
    assert "<img src=x onerror=alert(1)>" in shown["text"]
    assert shown["code"] == ["<b>", "if (a < b) {\n\n  `x`\n}", "open"]
    assert set(shown["names"]) == {"p", "code", "div", "span", "button", "pre"}
    assert shown["isSame"]  # a button that has the focus keeps it while the text grows
