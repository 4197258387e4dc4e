"""embedllm-web against transformers.js in a headless Chromium, interleaved in one run; nothing is fetched.

    (cd /tmp/peer && npm install --ignore-scripts @huggingface/transformers@4.3.2)
    python -m tests.benchmarks.bench_web /tmp/peer --checkpoint ../shared/models/demo --work /tmp/bench-web

On a GPU, with our sessions, our API (greedy and sampled, in JavaScript and in Python) and their q4f16:

    python -m tests.benchmarks.bench_web /tmp/peer --checkpoint ../shared/models/demo --work /tmp/bench-web-gpu \
        --device webgpu --dtypes q4f16 --threads 1 --rounds 5 --tokens 64

Every engine has a page, a renderer process and a worker of its own. Each round runs every engine once, in turn:
decoding around position 100, decoding around position 2,000, a prompt from nothing. Ours is load() and session.feed()
with the greedy choice in JavaScript; theirs is generate() with its own cache and a streamer that notes the time.
Medians, the spread, and ratios of ours to theirs within a round. Other work on the machine makes single figures drift.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np

from embedllm.loading.resolve import package_folder
from tests.benchmarks.export_for_transformers_js import export
from tests.web.support import site
from tests.web.support.browser import Browser
from tests.web.support.page import Page
from tests.web.support.server import WebServer
from tests.web.test_python import template_engine
from tools import make_web_wheel

PATIENCE_S = 900
# Chromium's, which give a page the GPU of a machine without a display: docs/webgpu.md#browser
GPU_FLAGS = (
    "--ignore-gpu-blocklist --enable-features=Vulkan,VulkanFromANGLE --use-vulkan=native --use-angle=vulkan "
    "--disable-vulkan-surface --enable-dawn-features=vulkan_enable_f16_on_nvidia"
)
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 1}
MEASURES = ("near", "far", "prefill", "load")
OPEN = """
const start = performance.now();
const bench = await import("/bench/bench_web.js");
globalThis.bench = bench;
globalThis.engine = await bench[argument.open](argument.options);
return performance.now() - start;
"""
KEEP = "for (const [name, tokens] of Object.entries(argument)) await engine.keep(name, tokens);"
DECODE = """
if (engine.spent) engine.spent.runs = engine.spent.ms = 0;
const reply = await engine.decode(argument.name, argument.count);
return { ...reply, inside: engine.spent ? engine.spent.ms / engine.spent.runs : null };
"""
PREFILL = "return engine.prefill(argument);"
STATE = "return { bytes: bench.wasmBytes(), versions: engine.versions };"


@dataclass
class Engine:
    name: str
    threads: int
    opener: str
    options: dict[str, Any]
    page: Page | None = None
    times: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEASURES})  # ms
    inside: dict[str, list[float]] = field(default_factory=lambda: {"near": [], "far": []})  # ms in ONNX Runtime
    ids: dict[str, list[int]] = field(default_factory=dict)
    wasm_bytes: int = 0
    resident: int = 0  # MB, most

    def run(self, code: str, argument: object = None) -> Any:  # noqa: ANN401  # any JSON
        assert self.page is not None
        return self.page.in_worker(code, argument, patience_s=PATIENCE_S)

    def load(self, browser: Browser, url: str, times: int) -> None:
        """Once to fill the browser's storage, then in fresh workers from there."""
        before = renderers()
        self.page = browser.context().page(f"{url}/tests/blank.html")
        for turn in range(times + 1):
            self.page.end_worker()
            time = self.run(OPEN, {"open": self.opener, "options": self.options})
            if turn:
                self.times["load"].append(time)
        self._before = before

    def measure(self, prompt: Sequence[int], count: int) -> None:
        for name in ("near", "far"):
            reply = self.run(DECODE, {"name": name, "count": count})
            self.times[name].append(statistics.median(np.diff(reply["times"])))
            self.ids[name] = reply["ids"]
            if reply["inside"] is not None:
                self.inside[name].append(reply["inside"])
        self.times["prefill"].append(self.run(PREFILL, prompt) / len(prompt))

    def settle(self) -> None:
        """Notes what it takes, once it was used."""
        self.wasm_bytes = self.run(STATE)["bytes"]
        grown = {pid: most - self._before.get(pid, 0) for pid, most in renderers().items()}
        self.resident = max(grown.values())


def renderers() -> dict[int, int]:
    """Chromium's renderer processes and the most memory that each ever held, in MB."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                status = (folder / "status").read_text().split("VmHWM:")[1]
                found[int(folder.name)] = int(status.split()[0]) // 1024
        except (OSError, IndexError):
            continue
    return found


def engines(
    server: WebServer, package: Path, peer: Path | None, models: Path, options: argparse.Namespace, threads: int
) -> list[Engine]:
    urls = site.urls(server)
    url = server.serve("/package", package) + "/"
    given: dict[str, Any] = {"url": url, "threads": threads, "urls": urls, "device": options.device}
    found = [Engine("embedllm-web", threads, "openOurs", given)]
    if options.device != "wasm":
        api = {**given, "engine": "javascript"}
        found += [
            Engine("embedllm-web, steps not ahead", threads, "openOurs", {**given, "ahead": False}),
            Engine("embedllm-web, API, greedy", threads, "openApi", {**api, "sampling": {"temperature": 0}}),
            Engine("embedllm-web, API, sampled", threads, "openApi", {**api, "sampling": SAMPLED}),
        ]
        if options.python:
            python = {**given, "urls": {**urls, **python_urls(server, options.work)}, "engine": "python"}
            found += [
                Engine("embedllm-web, Python, greedy", threads, "openApi", {**python, "sampling": {"temperature": 0}}),
                Engine("embedllm-web, Python, sampled", threads, "openApi", {**python, "sampling": SAMPLED}),
            ]
    if peer is None:
        return found
    dist = server.serve("/peer", peer / "node_modules")
    library = f"{dist}/@huggingface/transformers/dist/transformers.min.js"
    server.serve("/peer-models", models)
    for wish in options.dtypes:
        dtype, _, build = wish.partition(":")
        runtime = f"{dist}/onnxruntime-web/dist/ort-wasm-simd-threaded" + ("" if build == "plain" else ".asyncify")
        theirs = {"library": library, "models": "/peer-models/", "dtype": dtype, "threads": threads}
        wasm = {"mjs": f"{runtime}.mjs", "wasm": f"{runtime}.wasm"}
        device = "wasm" if options.device == "wasm" else "webgpu"
        found.append(
            Engine(f"transformers.js {wish}", threads, "openTheirs", {**theirs, "wasm": wasm, "device": device})
        )
    return found


def python_urls(server: WebServer, work: Path) -> dict[str, str]:
    """Where the engine "python" finds Pyodide, the wheel of this checkout, and no template engine: no chat is asked."""
    folder = work.parent / f"{work.name}-python"
    folder.mkdir(parents=True, exist_ok=True)
    make_web_wheel.main(folder).replace(folder / "embedllm.whl")
    template_engine(folder / "jinja.whl")
    python = server.serve("/python", folder)
    pyodide = f"{server.url}/node_modules/pyodide/pyodide.mjs"
    jinja = dict.fromkeys(("jinja2", "markupsafe"), f"{python}/jinja.whl")
    return {"pyodide": pyodide, "wheel": f"{python}/embedllm.whl", **jinja}


def agreement(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens are the same before the first that is not."""
    return next((at for at, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), len(mine))


def cell(mine: Sequence[float], base: Sequence[float], *, is_rate: bool = True) -> str:
    values = sorted(1000 / time if is_rate else time / 1000 for time in mine)
    digits = 1 if is_rate else 2
    text = f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f}-{values[-1]:.{digits}f})"
    if mine is base:
        return f"{text} | 1"
    return f"{text} | {statistics.median(a / b for a, b in zip(mine, base, strict=True)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path, nargs="?", help="folder in which npm installed @huggingface/transformers")
    parser.add_argument("--checkpoint", type=Path, help="what transformers.js runs")
    parser.add_argument("--device", default="wasm", choices=["wasm", "webgpu", "webgpu-software"])
    parser.add_argument("--python", action="store_true", help='our engine "python", too (not on wasm)')
    parser.add_argument("--flags", default=GPU_FLAGS, help="Chromium's, for a GPU")
    parser.add_argument("--package", default="demo", help="ours, of the same checkpoint")
    parser.add_argument("--work", type=Path, required=True, help="folder for the export; kept")
    parser.add_argument("--dtypes", nargs="*", default=["q8", "q4", "fp32"], help="':plain' after one: the plain build")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--loads", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--positions", nargs=2, type=int, default=[100, 2000], help="in whose middle is measured")
    parser.add_argument("--vocabulary", type=int, default=16000, help="ids of prompts are below")
    options = parser.parse_args()
    if options.peer is not None:
        export(options.checkpoint, options.work / "demo", is_gpu=options.device != "wasm")
    if options.device == "webgpu":
        os.environ["EMBEDLLM_CHROMIUM_FLAGS"] = options.flags
    random = np.random.default_rng(0)
    near, far = options.positions
    text = random.integers(3, options.vocabulary, far).tolist()
    kept = {"near": text[: near - options.tokens // 2], "far": text[: far - options.tokens // 2]}
    for threads in options.threads:
        with site.new_server(bench=Path(__file__).parent) as server, Browser() as browser:
            package = package_folder(options.package)
            group = engines(server, package, options.peer, options.work, options, threads)
            for engine in group:
                engine.load(browser, server.url, options.loads)
                engine.run(KEEP, kept)
                engine.run(DECODE, {"name": "near", "count": 4})
                engine.settle()
                print(f"{engine.name}: {engine.run(STATE)['versions']}", file=sys.stderr, flush=True)
            for turn in range(options.rounds):
                prompt = random.integers(3, options.vocabulary, options.prompt).tolist()
                for engine in group if turn % 2 == 0 else group[::-1]:
                    engine.measure(prompt, options.tokens)
            browser.check()
        report(group, options.rounds)


def report(all_engines: Sequence[Engine], rounds: int) -> None:
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {rounds} rounds", flush=True)
    heads = ("near, tokens/s", "far, tokens/s", "prefill, tokens/s", "load, s")
    print(f"| engine | threads | {' | ratio | '.join(heads)} | ratio | wasm MB | renderer MB | same tokens |")
    for engine in all_engines:
        base = next(one for one in all_engines if one.threads == engine.threads)
        cells = [cell(engine.times[name], base.times[name], is_rate=name != "load") for name in MEASURES]
        same = ", ".join(f"{agreement(engine.ids[name], base.ids[name])}/{len(base.ids[name])}" for name in base.ids)
        sizes = f"{engine.wasm_bytes / 1e6:.0f} | {engine.resident}"
        print(f"| {engine.name} | {engine.threads} | {' | '.join(cells)} | {sizes} | {same} |")
        for name, times in engine.inside.items():
            if times:
                whole, inner = statistics.median(engine.times[name]), statistics.median(times)
                print(f"  {name}: {whole:.2f} ms a token, {inner:.2f} of it in ONNX Runtime")


if __name__ == "__main__":
    main()
