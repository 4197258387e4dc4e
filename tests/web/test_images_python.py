"""Images of a page with the engine "python": JavaScript encodes them, Python writes the prompt and chooses tokens."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.export import Recipe, convert
from tests.golden.make_image_processors import noise
from tests.support.dynamic_vision import dynamic_chat_checkpoint
from tests.support.vision import gemma_chat_checkpoint
from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import WebServer
from tests.web.support.software_gpu import SOFTWARE
from tests.web.test_images import data_url, encoded

pytestmark = pytest.mark.browser

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "stop_tokens": []}
TALK = """async ({ url, urls, device, content, options }) => {
  const { EmbedLLM } = await import("/src/index.js");
  const python = await EmbedLLM.load(url, { engine: "python", device, urls, worker: globalThis.keptWorker });
  const talk = python.conversation();
  const tokens = [];
  for await (const { token } of talk.say({ role: "user", content }, options)) tokens.push(token);
  await talk.save("seen");
  const { takesImages } = python;
  const refused = await python.generate([{ role: "user", content: [{ type: "image", image: "cat.png" }] }])
    .catch(({ message }) => message);
  await python.close();
  const next = [];
  for (const engine of ["python", "javascript"]) {
    const llm = await EmbedLLM.load(url, { engine, device, urls, worker: globalThis.keptWorker });
    const again = await llm.openConversation("seen");
    const found = [];
    let last;
    for await (last of again.say("more", options)) found.push(last.token);
    next.push({ tokens: found, cached: last.statistics.cached_tokens, messages: again.save().messages.slice(0, -1) });
    await llm.close();
  }
  return { tokens, takesImages, refused, next };
}"""


@pytest.mark.parametrize(
    ("family", "device"),  # with states and M-RoPE, with states and tiles, with images that are read in one piece
    [("qwen3_5", "wasm"), ("lfm2_vl", "wasm"), ("gemma3", "wasm"),
     *(pytest.param(family, *SOFTWARE.values, marks=SOFTWARE.marks) for family in ("qwen3_5", "lfm2_vl"))],
)  # fmt: skip
def test_replies_and_stored_conversations_are_those_of_the_desktop(
    page: Page, web_server: WebServer, places: dict[str, str], family: str, device: str, tmp_path: Path
) -> None:
    """And either engine goes on with what was stored."""
    checkpoint = tmp_path / "checkpoint"
    made = gemma_chat_checkpoint(checkpoint) if family == "gemma3" else dynamic_chat_checkpoint(checkpoint, family)
    folder = convert(made, tmp_path / family, Recipe(method="nearest"))
    content: list[Any] = [{"type": "text", "text": "look: "}]
    for size in ((40, 33), (17, 60)):
        url = data_url(base64.b64decode(encoded(noise(*size))))
        content += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": " and "}]
    argument = {"url": web_server.serve(f"/models/{tmp_path.name}", folder) + "/", "urls": places, "device": device}
    given = {**probed(page, argument), "content": content, "options": GREEDY}
    found = page.evaluate(TALK, given, patience_s=LONG_S)
    assert found["takesImages"] is True
    assert "messages[0]: an image is the text" in found["refused"]
    first, second = found["next"]
    with embedllm.load(folder, device="reference") as llm:
        assert found["tokens"] == list(llm.chat([{"role": "user", "content": content}], **GREEDY).tokens)
        assert first["tokens"] == list(llm.chat(first["messages"], **GREEDY).tokens)
    assert first == second
    assert first["cached"] > 20
