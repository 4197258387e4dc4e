r"""Sampled decoding in a page on a GPU: steps for a token, those guessed in vain among them, and milliseconds.

    python -m tests.benchmarks.bench_web_sampling [FOLDER] [--device webgpu] [--rounds 3] [--tokens 96] [--flags FLAGS]

Behind random tokens, whose rows are flat, and behind a real prompt of the demo; with steps ahead of the host, and
one by one.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import defaultdict

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from tokenizers import Tokenizer

from embedllm.loading.resolve import package_folder
from embedllm.package.package import open_package
from tests.benchmarks.bench_web import GPU_FLAGS, PATIENCE_S
from tests.web.support.browser import Browser
from tests.web.support.site import new_server, urls

PROMPT = "<|im_start|>user\nwrite a short story about a dog<|im_end|>\n<|im_start|>assistant\n"
SAMPLINGS = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 1, "seed": 1},
    "top_p": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
    "top_k": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "seed": 1},
    "min_p": {"temperature": 1, "min_p": 0.05, "seed": 2},
}
DECODE = """
const { url, urls, device, prompts, samplings, rounds, count } = argument;
const { load } = await import("/src/worker/load_model.js");
const [{ Sampler }, { Sampling }, { loadGpuRuntime }] = await Promise.all([import("/src/sampling/sampler.js"),
  import("/src/sampling/options.js"), import("/src/engine/ort_runtime.js")]);
const { engine } = await load(url, { device, threads: 1, urls });
const inner = (await loadGpuRuntime(urls.onnxruntime)).module();
const run = inner._OrtRunWithBinding;
let runs = 0;
inner._OrtRunWithBinding = (...given) => (runs++, run(...given));
const session = engine.open();
const found = [];
for (let round = 0; round < rounds; round++)
  for (const [prompt, tokens] of Object.entries(prompts))
    for (const [name, options] of Object.entries(samplings))
      for (const isAhead of [true, false]) {
        const sampler = new Sampler(new Sampling(options), tokens);
        session.rewind(0);
        engine.draws = isAhead ? sampler.draws : null;
        let row = await session.feed(tokens);
        row.values([0]);
        runs = 0;
        const start = performance.now();
        for (let step = 0; step < count; step++) {
          const { token } = sampler.pick(row);
          sampler.note(token);
          if (!isAhead) row.top(2); // or steps run ahead of what looks greedy
          row = await session.feed([token]);
        }
        found.push({ key: `${prompt}, ${name}, ${isAhead ? "ahead" : "one by one"}`,
          ms: (performance.now() - start) / count, runs: runs / count });
      }
return found;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="demo")
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--flags", default=GPU_FLAGS, help="Chromium's, for webgpu")
    options = parser.parse_args()
    if options.device == "webgpu":
        os.environ["EMBEDLLM_CHROMIUM_FLAGS"] = options.flags
    folder = package_folder(options.folder)
    real = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT, add_special_tokens=False).ids
    vocabulary = open_package(folder).decoder.vocabulary
    prompts = {"random": np.random.default_rng(0).integers(3, vocabulary, 90).tolist(), "real": real}
    with new_server(model=folder) as server, Browser() as browser:
        page = browser.context().page(f"{server.url}/tests/blank.html")
        given = {"url": f"{server.url}/model/", "urls": urls(server), "device": options.device}
        given |= {"prompts": prompts, "samplings": SAMPLINGS, "rounds": options.rounds, "count": options.tokens}
        found = page.in_worker(DECODE, given, patience_s=PATIENCE_S)
    rows = defaultdict(list)
    for one in found:
        rows[one["key"]].append(one)
    print("| prompt, sampling, steps | tokens/s | ms a token | steps a token |\n| --- | --- | --- | --- |")
    for key, all_rounds in rows.items():
        ms, runs = (statistics.median(one[name] for one in all_rounds) for name in ("ms", "runs"))
        print(f"| {key} | {1000 / ms:.0f} | {ms:.2f} | {runs:.2f} |")


if __name__ == "__main__":
    main()
