"""Conversations that keep their KV cache on disk, in a real browser: over a reload, damaged, of another model, full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import WebServer

pytestmark = pytest.mark.browser

MakePackage = Callable[..., Path]
ENGINES = ["javascript", "python"]
LOAD = """
const { EmbedLLM } = await import("/src/index.js");
globalThis.llm?.close();
const { url, engine = "javascript", device = "wasm", urls } = argument;
Object.assign(globalThis, { EmbedLLM, urls, llm: await EmbedLLM.load(url, { engine, device, urls }) });
globalThis.turn = async (talk, text) => {
  let said = "", statistics;
  for await (const chunk of talk.say(text, { temperature: 0, max_tokens: 8, stop_tokens: [] })) {
    said += chunk.text;
    statistics = chunk.statistics;
  }
  return { said, prompt: statistics.prompt_tokens, cached: statistics.cached_tokens };
};
"""
WRITE = (
    LOAD
    + """
globalThis.talk = llm.conversation({ system: "be brief" });
await turn(talk, "hello there, what can you do for me today");
await turn(talk, "tell me more about that");
await talk.save("a talk/1");
return { saved: talk.save(), third: await turn(talk, "and then") };
"""
)
READ = (
    LOAD
    + """
const talk = await llm.openConversation("a talk/1");
return { saved: talk.save(), third: await turn(talk, "and then") };
"""
)
FOLDER = """
const home = await (await navigator.storage.getDirectory()).getDirectoryHandle("embedllm");
const folder = await home.getDirectoryHandle("conversations");
const sizes = {};
for await (const [name, handle] of folder.entries()) sizes[name] = (await handle.getFile()).size;
"""
# the byte at a place of the only file, from its end where it is negative
FLIP = (
    FOLDER
    + """
const handle = await folder.getFileHandle(Object.keys(sizes)[0]);
const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
bytes[(argument + bytes.length) % bytes.length] ^= 1;
const writable = await handle.createWritable();
await writable.write(bytes);
await writable.close();
"""
)


@pytest.fixture
def tiny(web_server: WebServer, tiny_package: MakePackage) -> str:
    return web_server.serve("/models/tiny", tiny_package("llama", max_position_embeddings=512)) + "/"


def run(page: Page, body: str, argument: object = None) -> Any:  # noqa: ANN401  # any JSON
    """What the body of an async function returns, on the page."""
    return page.evaluate(f"async (argument) => {{ {body} }}", argument, patience_s=LONG_S)


def refused(page: Page, call: str) -> list[str]:
    """Name and message of the error."""
    return run(page, f"try {{ await {call}; }} catch (error) {{ return [error.name, error.message]; }}")


def warned(page: Page) -> list[str]:
    return [line for line in page.console if "the KV cache of the conversation" in line]


@pytest.mark.parametrize(
    ("engine", "device"), [("javascript", "wasm"), ("python", "wasm"), ("javascript", "webgpu-software")]
)
def test_an_opened_conversation_computes_only_what_is_new_after_a_reload(
    engine: str, device: str, page: Page, tiny: str, places: dict[str, str]
) -> None:
    given = {"url": tiny, "engine": engine, "device": device, "urls": places}
    written = run(page, WRITE, probed(page, given))
    page.reload()
    found = run(page, READ, given)
    assert found == written
    assert found["third"]["cached"] > 50
    assert found["third"]["prompt"] - found["third"]["cached"] < 40  # the new turn, and the last token of the reply
    assert warned(page) == []


def test_either_engine_goes_on_with_what_the_other_one_saved(page: Page, tiny: str, places: dict[str, str]) -> None:
    written = run(page, WRITE, {"url": tiny, "engine": "python", "urls": places})
    assert run(page, READ, {"url": tiny, "engine": "javascript", "urls": places}) == written


def test_a_kv_that_is_damaged_or_of_another_model_is_computed_again_and_said(
    page: Page, tiny: str, web_server: WebServer, tiny_package: MakePackage, places: dict[str, str]
) -> None:
    given = {"url": tiny, "urls": places}
    written = run(page, WRITE, given)
    other = web_server.serve("/models/other", tiny_package("qwen3", max_position_embeddings=512)) + "/"
    found = run(page, READ, {**given, "url": other})
    assert (found["saved"], found["third"]["cached"]) == (written["saved"], 0)
    found = run(page, READ, probed(page, {**given, "device": "webgpu-software"}))
    assert found["third"]["cached"] == 0
    run(page, FLIP, -1)
    found = run(page, READ, given)
    assert found["saved"] == written["saved"]
    assert found["third"] == {**written["third"], "cached": 0}  # the same reply
    reasons = [line.partition("because ")[2] for line in warned(page)]
    assert len(reasons) == 3
    assert reasons[0].startswith("it is of another model")
    assert "on 'wasm' in float32, and the model is on 'webgpu-software'" in reasons[1]
    assert reasons[2].startswith("it is damaged")
    run(page, FLIP, 50)  # of the messages
    assert refused(page, 'llm.openConversation("a talk/1")') == [
        "EmbedError",
        "the saved conversation 'a talk/1' is damaged. Remove it.",
    ]


def test_saved_conversations_are_listed_counted_removed_and_outlive_their_model(
    page: Page, tiny: str, places: dict[str, str]
) -> None:
    run(page, WRITE, {"url": tiny, "urls": places})
    looked = """
    const { list, remove } = EmbedLLM.conversations;
    const before = Date.now();
    await llm.conversation().save("empty");
    const listed = await list();
    const { conversations } = await EmbedLLM.cache.usage({ urls });
    await EmbedLLM.cache.remove(argument, { urls });
    const after = await list();
    const removed = [await remove("a talk/1"), await remove("a talk/1"), await remove("empty")];
    const { conversations: left } = await EmbedLLM.cache.usage({ urls });
    const isRecent = listed[0].lastSaved >= before - 2000;
    return { listed, isRecent, conversations, after, removed, left, end: await list() };
    """
    found = run(page, looked, tiny)
    assert [one["name"] for one in found["listed"]] == ["empty", "a talk/1"]
    assert found["isRecent"]
    assert found["listed"] == found["after"]
    assert found["conversations"] == sum(one["bytes"] for one in found["listed"]) > 30_000
    assert (found["removed"], found["left"], found["end"]) == ([True, False, True], 0, [])


def test_a_conversation_without_room_leaves_the_one_that_was_saved(
    page: Page, tiny: str, places: dict[str, str], web_server: WebServer
) -> None:
    written = run(page, WRITE, {"url": tiny, "urls": places})
    used = run(page, "return (await navigator.storage.estimate()).usage")
    for quota in (1, used + 10_000):
        page.cdp("Storage.overrideQuotaForOrigin", origin=web_server.url, quotaSize=quota)
        name, message = refused(page, 'talk.save("a talk/1")')
        assert (name, message[:40]) == ("PackageError", "no room for the conversation 'a talk/1':")
    page.cdp("Storage.overrideQuotaForOrigin", origin=web_server.url)
    sizes = run(page, FOLDER + "return sizes")
    assert [size for name, size in sizes.items() if name.endswith(".part") and size] == []
    assert run(page, READ, {"url": tiny, "urls": places}) == written
