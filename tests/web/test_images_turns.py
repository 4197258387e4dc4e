"""Images in later turns of a conversation on a page: what is posted again, and read again."""

from __future__ import annotations

import pytest

from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.server import WebServer
from tests.web.test_images import OPEN, PICTURES, data_url, given

pytestmark = pytest.mark.browser


def test_later_turns_post_the_same_file_which_is_read_once(page: Page, web_server: WebServer) -> None:
    """Whatever the first turn had; and another image in its place is another file."""
    page.evaluate(OPEN, given(web_server, "wasm"), patience_s=LONG_S)
    pictures = [data_url((PICTURES / name).read_bytes()) for name in ("word.png", "shapes.png")]
    found = page.evaluate(TURNS, pictures, patience_s=LONG_S)
    for kind in ("url", "blob"):
        first, second, third, other = found[kind]["posted"]
        assert first == second == third, kind
        assert (len(first), first[0]["isFile"]) == (1, True), kind
        assert other[0]["id"] != first[0]["id"]
        assert found[kind]["texts"][0] == 'The word is "river".'
        assert found[kind]["texts"][2] == 'The word is "river".'  # without the file
        assert found[kind]["url"] == pictures[0]
        assert found[kind]["other"] == "A red circle and a purple star."
    assert found["url"]["texts"] == found["blob"]["texts"]
    assert found["url"]["keys"] == found["blob"]["keys"] == ["image_url", "type"]


TURNS = """async ([url, other]) => {
  const { postMessage } = Worker.prototype;
  const posted = [];
  let isWithout = false; // the file
  Worker.prototype.postMessage = function (message, ...more) {
    if (message.method !== "reply") return postMessage.call(this, message, ...more);
    const copy = structuredClone(message);
    const parts = copy.params.prompt.flatMap(({ content }) => (Array.isArray(content) ? content : []));
    const images = parts.filter(({ type }) => type !== "text");
    posted.push(images.map(({ id, image }) => ({ id, isFile: image instanceof Blob })));
    if (isWithout) for (const part of images) delete part.image;
    postMessage.call(this, copy, ...more);
  };
  const options = { temperature: 0, max_tokens: 20 };
  const found = {};
  const parts = {
    url: { type: "image_url", image_url: { url } },
    blob: { type: "image", image: await (await fetch(url)).blob() },
  };
  for (const [kind, part] of Object.entries(parts)) {
    const talk = llm.conversation();
    const content = [part, new Proxy({ type: "text", text: "Read the word." }, {})]; // as in the state of a framework
    for await (const _ of talk.say({ role: "user", content }, options));
    for await (const _ of talk.say("What colour is it?", options));
    const [{ content: [kept, text] }, first, , second] = talk.messages;
    found[kind] = { keys: Object.keys(kept).sort(), url: kept.image_url.url, texts: [first.content, second.content] };
    isWithout = true;
    found[kind].texts.push((await llm.generate([talk.messages[0]], options)).text);
    isWithout = false;
    [kept.image_url.url, text.text] = [other, "What is in the picture?"];
    found[kind].other = (await llm.generate([talk.messages[0]], options)).text;
    found[kind].posted = posted.splice(0);
  }
  Worker.prototype.postMessage = postMessage;
  return found;
}"""
