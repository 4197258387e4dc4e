"""The first visit of a page and its reloads, to the model and to the first token, of several checkouts in turn.

    python -m tests.benchmarks.bench_web_load FOLDER [CHECKOUT ...] [--device webgpu] [--rounds 5]

FOLDER: of the model. Each visit is in a profile of its own, in which nothing is stored; then each round reloads the
page of every checkout once. "files" is the time until all files are there and their hashes checked, "opened" that of
ONNX Runtime, its session and what a loaded model is tried with. Nothing is fetched from elsewhere. On a GPU with
EMBEDLLM_CHROMIUM_FLAGS (docs/webgpu.md#browser).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.web.support.browser import Browser
from tests.web.support.page import Page
from tests.web.support.server import ROOT
from tests.web.support.site import new_server, urls

PATIENCE_S = 300
SETTLE_S = 1.5  # after a visit: what is stored behind it
LOAD = """async ({ url, urls, device }) => {
  const start = performance.now(), since = () => (performance.now() - start) / 1e3;
  const { EmbedLLM } = await import("/src/index.js");
  const marks = [];
  const onProgress = ({ phase, file, loaded }) => marks.push([since(), phase, file, loaded]);
  const llm = await EmbedLLM.load(url, { engine: "javascript", device, threads: 1, urls, onProgress });
  const loaded = since();
  const messages = [{ role: "user", content: "list all files that were changed today" }];
  for await (const _ of llm.stream(messages, { temperature: 0, max_tokens: 1 }));
  const files = marks.find(([, phase]) => phase === "compile")[0];
  return { times: { files, opened: loaded - files, loaded, "first token": since() }, marks };
}"""


class Checkout:
    """A page of one checkout."""

    def __init__(
        self, source: Path, package: Path, device: str, browser: Browser, stack: ExitStack, work: Path
    ) -> None:
        self.name, self.times = source.name, dict[str, list[float]]()
        server = stack.enter_context(new_server(source))
        self._given = {"url": server.serve("/model", package) + "/", "urls": urls(server), "device": device}
        self._address, self._browser = f"{server.url}/tests/blank.html", browser
        self._page: Page | None = None
        self._work = work

    def visit(self) -> dict[str, Any]:
        """With an empty profile, on disk as a user's is."""
        if self._page is not None:
            self._page.goto("about:blank")
        self._page = self._browser.context(Path(tempfile.mkdtemp(dir=self._work))).page(self._address)
        return self._loaded(self._page)

    def reload(self) -> dict[str, Any]:
        assert self._page is not None
        self._page.goto(self._address)
        return self._loaded(self._page)

    def _loaded(self, page: Page) -> dict[str, Any]:
        found = page.evaluate(LOAD, self._given, patience_s=PATIENCE_S)
        time.sleep(SETTLE_S)
        page.goto("about:blank")  # ends the model: the next page has the machine for itself
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("checkouts", type=Path, nargs="*", default=[ROOT])
    parser.add_argument("--device", default="webgpu", choices=["webgpu", "webgpu-software", "wasm"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--marks", action="store_true", help="print all that was said of the last reload's progress")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        browser = stack.enter_context(Browser())
        checkouts = [
            Checkout(each.resolve(), options.folder.resolve(), options.device, browser, stack, work)
            for each in options.checkouts
        ]
        for kind, rounds in (("first visit", 3), ("reload", options.rounds)):
            for checkout in checkouts:
                checkout.times = {}
            for turn in range(rounds):
                for checkout in checkouts if turn % 2 == 0 else checkouts[::-1]:
                    found = checkout.visit() if kind == "first visit" else checkout.reload()
                    for name, value in found["times"].items():
                        checkout.times.setdefault(name, []).append(value)
                    if options.marks and turn == rounds - 1:
                        print(*found["marks"], sep="\n")
            for checkout in checkouts:
                told = (f"{name} {statistics.median(all_):.2f} ({min(all_):.2f}-{max(all_):.2f})"
                        for name, all_ in checkout.times.items())  # fmt: skip
                print(f"{kind}, {checkout.name}: {'; '.join(told)} s", flush=True)
        browser.check()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
