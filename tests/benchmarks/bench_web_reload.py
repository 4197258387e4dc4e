"""Reloads of a page in a headless Chromium, of several checkouts in turn: to the model, and to the first token.

    git worktree add ../before COMMIT
    python -m tests.benchmarks.bench_web_reload ../before . --rounds 7

Each checkout has an origin and a profile of its own, visited twice before: all is stored, and the browser has cached
what it caches. Then each round reloads every page once. Prints medians and ranges of seconds, and of the seconds that
the browser's processes had of the processor, which a busy machine stretches less. Nothing is fetched from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from embedllm.loading.resolve import package_folder
from tests.web.support.browser import Browser
from tests.web.support.page import Page
from tests.web.support.site import new_server, urls
from tests.web.test_python import template_engine

PATIENCE_S = 300
REPLY = """async ({ engine, url, urls }) => {
  const start = performance.now();
  const { EmbedLLM } = await import("/src/index.js");
  const llm = await EmbedLLM.load(url, { engine, device: "wasm", threads: 1, urls });
  const loaded = performance.now();
  const messages = [{ role: "user", content: "list all files that were changed today" }];
  for await (const _ of llm.stream(messages, { temperature: 0, max_tokens: 1 }));
  return { load: (loaded - start) / 1e3, first: (performance.now() - start) / 1e3 };
}"""
SETTLE_S = 3.0  # after a visit: what is stored behind it


class Checkout:
    """A page of one checkout, and what its reloads took."""

    def __init__(self, folder: Path, engine: str, browser: Browser, stack: ExitStack, work: Path) -> None:
        self.name, self.times = f"{folder.name}, {engine}", dict[str, list[float]](load=[], first=[], processor=[])
        server = stack.enter_context(new_server(folder, python=wheels(folder, work)))
        python = f"{server.url}/python"
        places = {
            **urls(server),
            "pyodide": f"{server.url}/node_modules/pyodide/pyodide.mjs",
            "wheel": f"{python}/embedllm.whl",
            **dict.fromkeys(("jinja2", "markupsafe"), f"{python}/jinja.whl"),
        }
        self._given = {"engine": engine, "url": server.serve("/model", package_folder("demo")) + "/", "urls": places}
        self._address = f"{server.url}/tests/blank.html"
        self._page: Page = browser.context(work / f"profile-{server.url.rpartition(':')[2]}").page(self._address)

    def reload(self) -> dict[str, Any]:
        self._page.goto(self._address)
        before = processor_s()
        found = self._page.evaluate(REPLY, self._given, patience_s=PATIENCE_S)
        return {**found, "processor": sum(had - before.get(pid, 0) for pid, had in processor_s().items())}

    def leave(self) -> None:
        """Ends the model: the next page has the processor for itself."""
        time.sleep(SETTLE_S)
        self._page.goto("about:blank")


def wheels(folder: Path, work: Path) -> Path:
    """The wheel that a checkout makes, and the template engine."""
    out = work / folder.name
    if not out.is_dir():
        command = [sys.executable, "tools/make_web_wheel.py", str(out)]
        subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, check=True)
        next(out.glob("*.whl")).rename(out / "embedllm.whl")
        template_engine(out / "jinja.whl")
    return out


def processor_s() -> dict[int, float]:
    """What each process that this one has started, and theirs, has had so far."""
    ticks, parents = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid], ticks[pid] = int(rest[1]), int(rest[11]) + int(rest[12])
    found = {}
    for pid, had in ticks.items():
        above = parents[pid]
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if above:
            found[pid] = had / os.sysconf("SC_CLK_TCK")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="checkouts of this repository")
    parser.add_argument("--engines", nargs="*", default=["python"], choices=["python", "javascript"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        browser = stack.enter_context(Browser())
        folders = [folder.resolve() for folder in options.folders]
        checkouts = [Checkout(each, name, browser, stack, work) for each in folders for name in options.engines]
        for visit in range(2):
            for checkout in checkouts:
                print(f"visit {visit + 1} of {checkout.name}: {checkout.reload()}", file=sys.stderr, flush=True)
                checkout.leave()
        for turn in range(options.rounds):
            for checkout in checkouts if turn % 2 == 0 else checkouts[::-1]:
                for name, value in checkout.reload().items():
                    checkout.times[name].append(value)
                checkout.leave()
        browser.check()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {options.rounds} rounds; seconds, medians (ranges)")
    print("| checkout, engine | model loaded | first token | processor |\n| --- | --- | --- | --- |")
    for checkout in checkouts:
        cells = [
            f"{statistics.median(all_)} ({min(all_)}-{max(all_)})" for all_ in map(rounded, checkout.times.values())
        ]
        print(f"| {checkout.name} | {' | '.join(cells)} |")


def rounded(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]


if __name__ == "__main__":
    main()
