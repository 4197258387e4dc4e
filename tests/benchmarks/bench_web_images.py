r"""The model of samples/seeing in a page: its replies beside those of `reference`, and the time to the first token.

    python -m tests.benchmarks.bench_web_images [wasm|webgpu|webgpu-software] [--flags FLAGS]

Each question of samples/seeing/pictures is asked twice, the second time about an image that was seen before.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import embedllm
from tests.benchmarks.bench_web import GPU_FLAGS, PATIENCE_S
from tests.web.support.browser import Browser
from tests.web.support.server import ROOT
from tests.web.support.site import new_server, urls

MODEL, PICTURES = (ROOT / "samples" / "seeing" / name for name in ("model", "pictures"))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
ASK = """async ({ url, urls, device, asked, options }) => {
  const { EmbedLLM } = await import("/src/index.js");
  const llm = await EmbedLLM.load(url, { engine: "javascript", device, urls });
  const replies = [];
  for (const [image, text] of [...asked, ...asked]) {
    const content = [{ type: "image_url", image_url: { url: image } }, { type: "text", text }];
    const tokens = [], start = performance.now();
    let first = null;
    for await (const { token } of llm.chat([{ role: "user", content }], options)) {
      first ??= performance.now() - start;
      tokens.push(token);
    }
    replies.push({ first, tokens });
  }
  const { name, description } = llm.device;
  llm.close();
  return { replies, device: `${name}: ${description}` };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="wasm")
    parser.add_argument("--flags", default=GPU_FLAGS, help="Chromium's, for webgpu")
    options = parser.parse_args()
    if options.device == "webgpu":
        os.environ["EMBEDLLM_CHROMIUM_FLAGS"] = options.flags
    asked, expected = [], []
    with embedllm.load(MODEL, device="reference") as llm:
        for name, question, _ in json.loads((PICTURES / "questions.json").read_text(encoding="utf-8")):
            image = "data:image/png;base64," + base64.b64encode((PICTURES / name).read_bytes()).decode()
            asked.append((image, question))
            content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": question}]
            expected.append(list(llm.chat([{"role": "user", "content": content}], **GREEDY).tokens))
    with new_server(model=MODEL) as server, Browser() as browser:
        page = browser.context().page(f"{server.url}/tests/blank.html")
        given = {"url": f"{server.url}/model/", "urls": urls(server), "device": options.device}
        found = page.evaluate(ASK, {**given, "asked": asked, "options": GREEDY}, patience_s=PATIENCE_S)
    same = sum(reply["tokens"] == tokens for reply, tokens in zip(found["replies"], expected * 2, strict=True))
    times = [reply["first"] for reply in found["replies"]]
    print(f"{found['device']}: {same} of {len(times)} replies are those of 'reference'")
    new, again = (statistics.median(part) for part in (times[1 : len(asked)], times[len(asked) :]))
    print(f"ms to the first token: {times[0]:.0f} the first, then {new:.0f}; of an image that was seen {again:.0f}")


if __name__ == "__main__":
    main()
