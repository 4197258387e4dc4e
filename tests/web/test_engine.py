"""A folder's graphs in a real browser: the same tokens as on the desktop, on WebAssembly and on WebGPU in software."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedllm
from embedllm.backends.reference.engine import ReferenceEngine
from embedllm.export import Recipe, convert
from embedllm.files.atomic import write_json
from embedllm.loading.resolve import package_folder
from embedllm.package.graph_variants import FLOAT32
from embedllm.package.package import MANIFEST, open_package
from tests.support.gemma4 import gemma4_checkpoint, gemma4_config
from tests.support.latents import mla_checkpoint
from tests.support.vision import vision_checkpoint
from tests.web.support.calls import LONG_S, PATIENCE_S, BrowserError, awaited, until
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import Fault, WebServer
from tests.web.support.site import urls
from tests.web.support.software_gpu import SOFTWARE
from tests.web.support.stored import damage

pytestmark = pytest.mark.browser

MakePackage = Callable[..., Path]
STEPS = {"wasm": 32, "webgpu-software": 4}  # after the prompt; software takes seconds for each
ATOL = 5e-5  # of logits up to 5: measured 3e-6 on WebAssembly, 6e-6 on WebGPU; the float32 kernels sum in other orders

LOAD = """
const { load } = await import("/src/worker/load_model.js");
const { url, device, urls } = argument;
const told = [];
const loaded = await load(url, { device, urls, onProgress: (one) => told.push(one) });
Object.assign(globalThis, { loaded, session: loaded.engine.open() });
const phases = [...new Set(told.map(({ phase }) => phase))];
const { chunk, captures } = loaded.engine;
return { device: loaded.device.name, refused: loaded.refused, chunk, captures, phases };
"""
STEP = """
const { session } = globalThis;
const row = await session.feed(argument.tokens);
const all = argument.all ? row.values(Array.from({ length: row.size }, (_, token) => token)) : [];
return { token: row.top(1).tokens[0], all };
"""
FEED = """
const { session } = globalThis;
if (argument.rewind !== undefined) session.rewind(argument.rewind);
const row = await session.feed(argument.tokens);
return row.values(Array.from({ length: row.size }, (_, token) => token));
"""


@dataclass(frozen=True)
class Case:
    """One tiny model: what differs between families, in attention and in packing."""

    family: str
    recipe: Recipe = field(default_factory=Recipe)
    config: dict[str, object] = field(default_factory=dict)


CASES = {
    "llama": Case("llama"),
    "llama-biases-8-bit": Case("llama", Recipe(bits=8), {"attention_bias": True, "mlp_bias": True}),
    "mistral-window": Case("mistral", config={"sliding_window": 16}),
    "qwen2-zero-points": Case("qwen2", Recipe(symmetric=False, head_bits=8)),
    "qwen3": Case("qwen3"),
    "qwen3-16-bit": Case("qwen3", Recipe(bits=16), {"tie_word_embeddings": False}),
}


def opened(page: Page, server: WebServer, folder: Path, device: str | list[str]) -> dict[str, Any]:
    url = server.serve(f"/models/{folder.parent.name}-{folder.name}", folder) + "/"
    given = {"url": url, "device": device, "urls": urls(server)}
    return page.in_worker(LOAD, probed(page, given), patience_s=LONG_S)


def greedy(page: Page, tokens: Sequence[int], steps: int) -> tuple[list[int], list[float]]:
    """As reference, from the browser. Each step is waited for by itself: software takes seconds for one."""
    row = page.in_worker(STEP, {"tokens": tokens, "all": True}, patience_s=LONG_S)
    first, found = row["all"], [row["token"]]
    while len(found) < steps:
        found.append(page.in_worker(STEP, {"tokens": found[-1:]}, patience_s=LONG_S)["token"])
    return found, first


def some_tokens(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocabulary, count).tolist()


def reference(folder: Path, tokens: Sequence[int], steps: int) -> tuple[list[int], list[float]]:
    """The greedy tokens after a prompt, and the logits of the first."""
    session = ReferenceEngine(open_package(folder)).open()
    row = session.feed(tokens)
    first, found = row.values(range(row.size)), []
    for _ in range(steps):
        found.append(row.top(1).tokens[0])
        row = session.feed(found[-1:])
    return found, first


# WebGPU's kernels are those of the desktop's plug-in, with all packings in tests/backends/gpu/test_webgpu.py. Here
# a window, and biases with zero points and 8 bits, say that a page feeds them
ON_GPU = ("mistral-window", "qwen2-zero-points")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        *((name, "wasm") for name in CASES),
        *(pytest.param(name, "webgpu-software", marks=pytest.mark.software_gpu) for name in ON_GPU),
    ],
)
def test_a_browser_gives_the_tokens_of_the_desktop(
    name: str, device: str, page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    case = CASES[name]
    folder = tiny_package(case.family, case.recipe, **case.config)
    tokens = some_tokens(50, open_package(folder).decoder.vocabulary)  # more than WebGPU's attention takes at once
    loaded = opened(page, web_server, folder, device)
    assert loaded["device"] == device
    assert loaded["captures"] == (device != "wasm" and "window" not in name)  # docs/webgpu.md#faults
    found, logits = greedy(page, tokens, steps := STEPS[device])
    expected, first = reference(folder, tokens, steps)
    np.testing.assert_allclose(logits, first, atol=ATOL, rtol=0)
    assert found == expected
    assert page.in_worker("return session.position", patience_s=LONG_S) == 50 + steps - 1


@pytest.mark.parametrize("is_reachable", [True, False])
def test_stored_weights_of_which_no_session_can_be_made_are_checked(
    page: Page, web_server: WebServer, tiny_package: MakePackage, is_reachable: bool
) -> None:
    folder = tiny_package("llama")
    opened(page, web_server, folder, "wasm")
    sha256 = json.loads((folder / MANIFEST).read_text())["files"]["weights.safetensors"]["sha256"]
    damage(page, sha256, at=9)  # of the header, which names the tensors
    page.reload()
    web_server.forget()
    path = f"/models/{folder.parent.name}-{folder.name}/weights.safetensors"
    if is_reachable:
        assert opened(page, web_server, folder, "wasm")["device"] == "wasm"
        assert len(web_server.requests(path)) == 1
    else:
        web_server.fault(path, Fault(cut_after=0))
        with pytest.raises(BrowserError, match=r"the stored 'weights\.safetensors' was damaged .* is removed; cannot"):
            opened(page, web_server, folder, "wasm")
        web_server.fault(path, None)


def test_weights_come_while_a_gpu_is_probed_and_for_nobody_if_it_fails(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    folder, libraries = tiny_package("llama"), urls(web_server)
    address = web_server.serve("/models/probed", folder)
    weights, probe = "/models/probed/weights.safetensors", libraries["probe"].removeprefix(web_server.url)
    web_server.fault(weights, Fault(hold_after=1000))
    web_server.fault(f"{probe}embedllm.json", Fault(hold_after=10))
    web_server.fault(f"{probe}answers.json", Fault(status=503))
    loading = page.start_in_worker(LOAD, {"url": f"{address}/", "device": "webgpu-software", "urls": libraries})
    until(lambda: web_server.requests(weights) and web_server.requests(f"{probe}embedllm.json"), patience_s=PATIENCE_S)
    web_server.release(f"{probe}embedllm.json")
    with pytest.raises(BrowserError, match=r"the probe failed: .* answered with status 503") as caught:
        awaited(loading, "the load")
    assert caught.value.kind == "DeviceUnavailable"
    assert page.in_worker("return (await navigator.locks.query()).held.length") == 0  # nothing is downloaded any more


@pytest.mark.parametrize("device", ["wasm", SOFTWARE])
def test_text_of_a_model_that_sees_is_as_on_the_desktop(
    device: str, page: Page, web_server: WebServer, tmp_path: Path
) -> None:
    """Its graphs have inputs of images, which are empty here, and steps are captured all the same."""
    folder = convert(vision_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(method="nearest"))
    tokens = some_tokens(40, open_package(folder).decoder.vocabulary)
    assert opened(page, web_server, folder, device)["captures"] == (device != "wasm")
    found, logits = greedy(page, tokens, steps := STEPS[device])
    expected, first = reference(folder, tokens, steps)
    np.testing.assert_allclose(logits, first, atol=ATOL, rtol=0)
    assert found == expected


@pytest.mark.software_gpu
def test_layers_that_share_keys_keep_to_their_windows_on_webgpu(
    page: Page, web_server: WebServer, tmp_path: Path
) -> None:
    """Gemma 4's E2B and E4B; its attention would not: docs/webgpu.md#faults."""
    config = {**gemma4_config(text={"sliding_window": 8}), "vision_config": None}
    folder = convert(
        gemma4_checkpoint(tmp_path / "checkpoint", config=config), tmp_path / "package", Recipe(method="nearest")
    )
    tokens = some_tokens(20, open_package(folder).decoder.vocabulary)
    opened(page, web_server, folder, "webgpu-software")
    found, logits = greedy(page, tokens, steps := STEPS["webgpu-software"])
    expected, first = reference(folder, tokens, steps)
    np.testing.assert_allclose(logits, first, atol=ATOL, rtol=0)
    assert found == expected


@pytest.mark.software_gpu
def test_soft_capping_is_left_to_the_cpu(page: Page, web_server: WebServer, tiny_package: MakePackage) -> None:
    """WebGPU's attention leaves it out: docs/webgpu.md#faults."""
    folder = tiny_package("gemma2")
    tokens = some_tokens(20, open_package(folder).decoder.vocabulary)
    assert opened(page, web_server, folder, ["webgpu-software", "wasm"])["device"] == "wasm"
    found, logits = greedy(page, tokens, steps := STEPS["wasm"])
    expected, first = reference(folder, tokens, steps)
    np.testing.assert_allclose(logits, first, atol=ATOL, rtol=0)
    assert found == expected
    with pytest.raises(BrowserError, match="logit soft-capping"):
        opened(page, web_server, folder, "webgpu-software")


def test_the_demo_gives_the_reply_of_the_desktop(page: Page, web_server: WebServer) -> None:
    """On WebAssembly: software takes a minute for it, and its logits on WebGPU are in backends/gpu/test_webgpu.py."""
    steps = STEPS["wasm"]
    with embedllm.load("demo", device="cpu") as llm:
        messages = [{"role": "user", "content": "list all files that were changed today"}]
        prompt = llm.tokenizer.encode(llm.prompt(messages), special=False)
        reply = llm.generate(prompt, embedllm.Sampling(temperature=0), max_tokens=steps, stop_tokens=[])
    opened(page, web_server, package_folder("demo"), "wasm")
    assert greedy(page, prompt, steps)[0] == list(reply.tokens)


@pytest.mark.software_gpu
def test_a_large_vocabulary_is_no_more_arguments_than_a_call_may_have(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    """70,000 tokens are: JavaScript's calls take 63,600 in a worker, and Qwen3 has 152,064.

    The rows of a large vocabulary take most of the time in software. So few are computed: the context is what attention
    is tried with, and there is a window, with which steps are not captured.
    """
    count = 70_000
    with pytest.raises(BrowserError, match="RangeError"):
        page.in_worker("return Math.max(...new Float32Array(argument));", count)
    folder = tiny_package("mistral", vocab_size=count, sliding_window=16, max_position_embeddings=32)
    tokens = some_tokens(4, count)
    opened(page, web_server, folder, "webgpu-software")
    assert greedy(page, tokens, 1)[0] == reference(folder, tokens, 1)[0]


def test_a_browser_that_gives_no_adapter_at_once_is_asked_again(page: Page) -> None:
    asked = """
    const { devices } = await import("/src/engine/devices.js");
    const gpu = navigator.gpu, own = gpu.requestAdapter;
    let times = 0;
    gpu.requestAdapter = (...options) => (times++ ? own.apply(gpu, options) : Promise.resolve(null));
    const names = (await devices()).map(({ name }) => name);
    gpu.requestAdapter = () => (times++, Promise.resolve(null));
    const [none] = await devices();
    gpu.requestAdapter = own;
    return { names, times, reason: none.reason };
    """
    found = page.in_worker(asked)
    assert found["names"] == ["webgpu", "webgpu-software", "wasm"]
    assert found["times"] == 4
    assert "no graphics card" in found["reason"]


@pytest.mark.parametrize("device", ["wasm", pytest.param("webgpu-software", marks=pytest.mark.software_gpu)])
def test_a_rewound_grown_and_moved_sequence_goes_on_as_a_fresh_one(
    device: str, page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    folder = tiny_package("qwen3", max_position_embeddings=600)
    tokens = some_tokens(300, 307)
    opened(page, web_server, folder, device)
    row: list[float] = []
    for at in range(0, 300, 100):  # the third makes it grow
        row = page.in_worker(FEED, {"tokens": tokens[at : at + 100]}, patience_s=LONG_S)
    session = ReferenceEngine(open_package(folder)).open()
    session.feed(tokens[:299])
    expected = session.feed(tokens[299:]).values(range(307))
    np.testing.assert_allclose(row, expected, atol=ATOL, rtol=0)
    row = page.in_worker(FEED, {"tokens": [5, 6, 7], "rewind": 41}, patience_s=LONG_S)
    session.rewind(41)
    expected = session.feed([5, 6, 7]).values(range(307))
    np.testing.assert_allclose(row, expected, atol=ATOL, rtol=0)
    move = """
    const state = await session.exportState();
    const other = loaded.engine.open();
    await other.importState(state, session.held.slice(0, session.position));
    globalThis.session = other;
    """
    page.in_worker(move, patience_s=LONG_S)
    row = page.in_worker(FEED, {"tokens": [9]}, patience_s=LONG_S)
    np.testing.assert_allclose(row, session.feed([9]).values(range(307)), atol=ATOL, rtol=0)


def check_steps_ahead(page: Page, folder: Path, tokens: Sequence[int], *, atol: float = ATOL) -> None:
    """Greedy steps run ahead, captured; another token, a rewind, or KV from elsewhere then goes on rightly."""
    steps = """
    const { engine } = loaded;
    const rows = [], fed = [];
    const feed = async (token) => {
      fed.push([session.position, token]);
      const row = await session.feed([token]);
      rows.push(Array.from({ length: row.size }, (_, id) => row.values([id])[0]));
      return row.top(1).tokens[0];
    };
    await session.feed(argument.slice(0, -1));
    let token = await feed(argument.at(-1));
    for (let count = 0; count < 7; count++) token = await feed(token);
    token = await feed(token === 3 ? 4 : 3); // steps with the best one have run already
    for (let count = 0; count < 4; count++) token = await feed(token);
    session.rewind(7);
    token = await feed(9);
    for (let count = 0; count < 4; count++) token = await feed(token);
    const state = await session.exportState();
    await session.importState(state, session.held.slice(0, session.position));
    token = await feed(token);
    return { fed, rows, captures: engine.captures };
    """
    found = page.in_worker(steps, tokens, patience_s=LONG_S)
    assert found["captures"]
    session = ReferenceEngine(open_package(folder)).open()
    session.feed(tokens[:-1])
    for (position, token), row in zip(found["fed"], found["rows"], strict=True):
        session.rewind(position)
        np.testing.assert_allclose(row, session.feed([token]).values(range(307)), atol=atol, rtol=0)


@pytest.mark.slow
@pytest.mark.software_gpu
def test_steps_ahead_of_the_host_change_no_logits(page: Page, web_server: WebServer, tiny_package: MakePackage) -> None:
    folder = tiny_package("qwen3")
    opened(page, web_server, folder, "webgpu-software")
    check_steps_ahead(page, folder, some_tokens(5, 307))


@pytest.mark.slow
@pytest.mark.software_gpu
def test_a_model_that_was_right_in_this_browser_is_not_tried_again(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    """Of a software GPU nothing is remembered, whose attention is wrong over many tokens: so it is told here."""
    folder = tiny_package("llama")
    loaded = opened(page, web_server, folder, "webgpu-software")
    again = """
    const { noteRight, trialKey, wasRight } = await import("/src/engine/tried_models.js");
    const { loadGpuRuntime } = await import("/src/engine/ort_runtime.js");
    const { ort, module } = await loadGpuRuntime(argument.urls.onnxruntime);
    const inner = module();
    const run = inner._OrtRunWithBinding;
    const { device, kind } = loaded;
    const { web } = ort.env.versions;
    const key = (gpu) => trialKey(`${kind.graph} ${kind.weights}`, true, gpu, web, navigator.userAgent);
    const known = await wasRight(key(device.description));
    const runs = [];
    for (const name of ["another GPU", device.description]) {
      await noteRight(key(name));
      let count = 0;
      inner._OrtRunWithBinding = (...given) => (count++, run(...given));
      const { load } = await import("/src/worker/load_model.js");
      const { engine } = await load(argument.url, { device: device.name, urls: argument.urls });
      runs.push([count > 0, engine.chunk, engine.captures]);
      if (name === device.description) engine.fail(new Error("for a test"));
      engine.close();
    }
    inner._OrtRunWithBinding = run;
    const until = performance.now() + 5000;
    while ((await wasRight(key(device.description))) && performance.now() < until);
    return { known, runs, after: await wasRight(key(device.description)) };
    """
    url = web_server.serve(f"/models/{folder.parent.name}-{folder.name}", folder) + "/"
    found = page.in_worker(again, {"url": url, "urls": urls(web_server)}, patience_s=LONG_S)
    assert loaded["chunk"] == 31
    assert not found["known"]
    assert found["runs"] == [[True, 31, True], [False, 512, True]]
    assert not found["after"]  # a model that fails is tried again


def test_what_a_browser_remembers_of_models_ends(page: Page) -> None:
    code = """
    const { forget, noteRight, wasRight } = await import("/src/engine/tried_models.js");
    const { remember } = await import("/src/engine/remembered.js");
    const day = 24 * 3600 * 1000;
    await remember("embedllm-tried.json", [29, 31].map((days) => ({ key: `${days}`, at: Date.now() - days * day })));
    const old = [await wasRight("29"), await wasRight("31")];
    for (let number = 0; number < 20; number++) await noteRight(`model ${number}`);
    await noteRight("model 19");
    const kept = await Promise.all(Array.from({ length: 20 }, (_, number) => wasRight(`model ${number}`)));
    await forget("model 19");
    return { old, kept: kept.filter(Boolean).length, latest: kept[19], forgotten: !(await wasRight("model 19")) };
    """
    assert page.in_worker(code, {}) == {"old": [True, False], "kept": 16, "latest": True, "forgotten": True}


READ_TWICE = """
const { openPlace } = await import("/src/storage/opfs.js");
const { BlobBytes, whileOpen } = await import("/src/engine/blob_bytes.js");
const { place } = await openPlace();
const part = await place.part("pieces");
part.append(Uint8Array.from({ length: 100 }, (_, at) => at));
await part.finish();
const file = await place.file("pieces");
const read = () => {
  const bytes = new BlobBytes(file);
  return [[10, 40], [90, 95], [0, 100]].map(([start, end]) => [...bytes.subarray(start, end)]);
};
const found = { open: await whileOpen(file, async () => read()), closed: read() };
await place.remove("pieces");
return found;
"""


def test_pieces_of_a_file_are_read_whatever_was_read_before(page: Page) -> None:
    expected = [list(range(start, end)) for start, end in ((10, 40), (90, 95), (0, 100))]
    assert page.in_worker(READ_TWICE, {}) == {"open": expected, "closed": expected}


SAMPLINGS = {
    "greedy": {"temperature": 0},
    "plain": {"seed": 1},
    "top-k": {"temperature": 0.8, "top_k": 20, "seed": 2},
    "top-p": {"temperature": 0.7, "top_p": 0.9, "seed": 3},
    "min-p": {"temperature": 1.2, "min_p": 0.3, "seed": 4},
    "all": {"temperature": 0.9, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "seed": 5},
    "penalties": {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7},
}
COUNT_INDIRECT = """
globalThis.uncounted ??= GPUComputePassEncoder.prototype.dispatchWorkgroupsIndirect; // a worker serves several tests
globalThis.indirect = 0;
GPUComputePassEncoder.prototype.dispatchWorkgroupsIndirect = function (...given) {
  globalThis.indirect++;
  return uncounted.apply(this, given);
};
"""
GUESSED = tuple(name for name in SAMPLINGS if name != "penalties")


@pytest.mark.slow
@pytest.mark.software_gpu
def test_tokens_guessed_by_the_gpu_give_the_text_of_step_by_step(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    """For every sampler; and each step that ran ahead was wanted, so that it saves time."""
    opened(page, web_server, tiny_package("llama"), "webgpu-software")
    generate = """
    const [{ Sampler }, { Sampling }, { StepReplay }] = await Promise.all([import("/src/sampling/sampler.js"),
      import("/src/sampling/options.js"), import("/src/engine/step_replay.js")]);
    const { engine } = loaded;
    const { encode } = StepReplay.prototype;
    let runs = 0;
    StepReplay.prototype.encode = function (commands) { runs++; return encode.call(this, commands); };
    const reply = async (options, isAhead) => {
      const sampler = new Sampler(new Sampling(options), [1, 2, 3]);
      session.rewind(0);
      const found = [];
      const left = () => 8 - found.length;
      engine.draws = isAhead && sampler.draws ? { ...sampler.draws, left } : null;
      let row = await session.feed([1, 2, 3]);
      let first = (runs = 0);
      globalThis.indirect = 0;
      while (found.length < 8) {
        const { token, logprob } = sampler.pick(row);
        sampler.note(token);
        row.top(2); // as nothing says that it was greedy, without engine.draws
        found.push([token, logprob]);
        if (found.length < 8) row = await session.feed([token]);
        first ||= runs;
      }
      return { found, runs, first, indirect };
    };
    engine.draws = { temperature: 0, top_k: 0, top_p: 1, min_p: 0, uniform: () => 0 };
    session.rewind(0);
    let row = await session.feed([1, 2, 3]);
    await session.feed([row.top(1).tokens[0]]); // captured
    session.rewind(0);
    row = await session.feed([1, 2, 3]);
    runs = 0;
    for (let count = 0; count < 8; count++) row = await session.feed([row.top(2).tokens[1]]);
    const wrong = runs;
    const told = {};
    for (const [name, options] of Object.entries(argument.samplings)) {
      told[name] = { ahead: await reply(options, true), singly: await reply(options, false) };
    }
    StepReplay.prototype.encode = encode;
    return { told, wrong, captures: engine.captures };
    """
    answer = page.in_worker(COUNT_INDIRECT + generate, {"samplings": SAMPLINGS}, patience_s=2 * LONG_S)
    assert answer["captures"]
    assert answer["wrong"] == 8 + 2 * 4  # nothing runs ahead behind the third guess that is wrong
    for name, told in answer["told"].items():
        assert told["ahead"]["found"] == told["singly"]["found"], name
        assert told["singly"]["runs"] == 7, name
        assert told["ahead"]["first"] == (5 if name in GUESSED else 1), name  # nothing is waited for behind a prompt
        assert told["ahead"]["runs"] == 7, name  # none ran that the end of the reply does not want
        assert told["ahead"]["indirect"] == told["singly"]["indirect"] == 0, name


REPLIES = """
const bridge = await import("/src/worker/load_model.js");
const { openJavaScript } = await import("/src/worker/engine_javascript.js");
const { signal } = new AbortController();
const { url, device, urls, prompt } = argument;
const load = { url, engine: "javascript", device, threads: 0, context: null, urls, parse_special: false };
const model = await openJavaScript(bridge, load, { onProgress() {}, onLost() {}, signal });
const usual = { stop: [], stop_tokens: [], logprobs: 0, special: false, tools: null, documents: null, variables: {},
  continue_final_message: false, response_format: null, conversation: null };
const tokens = [];
const reply = { ...usual, prompt, sampling: {}, max_tokens: 24 };
await model.reply(reply, { signal, onChunk: ({ token }) => tokens.push(token) });
model.close();
return tokens;
"""


@pytest.mark.parametrize("device", ["wasm", SOFTWARE])
def test_what_a_model_bans_does_not_come_as_on_the_desktop(
    device: str, page: Page, web_server: WebServer, tiny_package: MakePackage, tmp_path: Path
) -> None:
    """Where a GPU guesses tokens, too."""
    folder, prompt = tmp_path / "banned", some_tokens(9, 307)
    shutil.copytree(tiny_package("llama"), folder)
    free = set_defaults(folder, {}, prompt)
    banned = {"no_repeat_ngram_size": 1, "bad_words_ids": [[free[0]], free[1:3]], "suppress_tokens": [free[3]]}
    expected = set_defaults(folder, banned, prompt)
    assert not set(expected) & {free[0], free[3], *prompt}
    assert len(set(expected)) == len(expected) == 24
    given = {"url": web_server.serve("/models/banned", folder) + "/", "device": device, "urls": urls(web_server)}
    found = page.in_worker(REPLIES, {**probed(page, given), "prompt": prompt}, patience_s=LONG_S)
    assert found == expected


def set_defaults(folder: Path, config: dict[str, object], prompt: Sequence[int]) -> list[int]:
    """Gives a package a generation_config.json; the tokens of a greedy reply on the desktop."""
    text = json.dumps(config).encode()
    (folder / "generation_config.json").write_bytes(text)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"]["generation_config.json"] = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    write_json(folder / MANIFEST, manifest)
    with embedllm.load(folder, device="reference") as llm:
        return list(llm.generate(prompt, max_tokens=24, stop_tokens=[]).tokens)


GUESS = """
const [{ NextToken }, { Sampler }, { Sampling }, { ArrayLogits }, { Random }, { loadGpuRuntime }] = await Promise.all([
  import("/src/engine/next_token.js"), import("/src/sampling/sampler.js"), import("/src/sampling/options.js"),
  import("/src/sampling/array_logits.js"), import("/src/sampling/mersenne_twister.js"),
  import("/src/engine/ort_runtime.js")]);
const device = await (await loadGpuRuntime(argument.base)).ort.env.webgpu.device;
const { size, rows, samplings } = argument;
const made = (bytes, usage) => device.createBuffer({ size: bytes, usage });
const [logits, token, length] = [4 * size, 16, 16].map((bytes) => made(bytes, 128 | 4 | 8)); // STORAGE, COPY_*
const staging = made(4, 1 | 8); // MAP_READ, COPY_DST
const next = new NextToken(device, size, "float32");
const group = next.bound({ logits, token, length });
const random = new Random(0);
const normal = () => Math.sqrt(-2 * Math.log(1 - random.random())) * Math.cos(2 * Math.PI * random.random());
const right = {};
for (const [kind, deviation] of Object.entries(rows)) for (const [name, options] of Object.entries(samplings)) {
  const sampler = new Sampler(new Sampling(options), []);
  right[`${name}, ${kind}`] = 0;
  for (let count = 0; count < 20; count++) {
    const row = Float32Array.from({ length: size }, () => deviation * normal());
    device.queue.writeBuffer(logits, 0, row);
    next.choose(sampler.draws, 0);
    const commands = device.createCommandEncoder();
    next.encode(commands, group);
    commands.copyBufferToBuffer(token, 0, staging, 0, 4);
    device.queue.submit([commands.finish()]);
    await staging.mapAsync(1);
    const [guess] = new Int32Array(staging.getMappedRange());
    right[`${name}, ${kind}`] += guess === sampler.pick(new ArrayLogits(row)).token;
    staging.unmap();
  }
}
next.close();
return right;
"""


@pytest.mark.slow
@pytest.mark.software_gpu
def test_a_gpu_guesses_what_the_sampler_chooses_of_flat_rows_too(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    """In flat ones thousands of tokens are of some weight, more than are sorted."""
    opened(page, web_server, tiny_package("llama"), "webgpu-software")
    given = {"base": urls(web_server)["onnxruntime"], "size": 16_384, "rows": {"peaked": 4, "flat": 1},
             "samplings": {name: SAMPLINGS[name] for name in GUESSED}}  # fmt: skip
    right = page.in_worker(GUESS, given, patience_s=LONG_S)
    # where the truncations leave more than 255 tokens the sampler may draw twice
    assert min(right.pop("top-p, flat"), right.pop("min-p, flat")) >= 14, right
    assert min(right.values()) >= 19, right


def test_auto_takes_no_software_adapter_and_says_so(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    found = opened(page, web_server, tiny_package("llama"), "auto")
    assert found["device"] == "wasm"
    assert [device["name"] for device in found["refused"]] == ["webgpu"]
    assert "software" in found["refused"][0]["reason"]
    assert found["phases"][-1] == "compile"


def test_a_device_that_was_asked_for_alone_never_falls_back(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    attempt = f"try {{ {LOAD} }} catch (error) {{ return [error.name, error.message, error.tried]; }}"
    folder = tiny_package("llama")
    url = web_server.serve("/models/llama", folder) + "/"
    for device, part in (("webgpu", "software"), ("cuda", "no such device")):
        given = {"url": url, "device": device, "urls": urls(web_server)}
        name, message, tried = page.in_worker(attempt, given, patience_s=LONG_S)
        assert (name, tried[0][0]) == ("DeviceUnavailable", device)
        assert part in message


@pytest.mark.parametrize("device", ["wasm", SOFTWARE])
def test_the_kv_cache_of_a_bounded_context_grows_no_further(
    device: str, page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    folder = tiny_package("llama")
    load = LOAD.replace("load(url, { device,", "load(url, { context: 24, device,")
    url = web_server.serve(f"/models/{folder.parent.name}-{folder.name}", folder) + "/"
    page.in_worker(load, probed(page, {"url": url, "device": device, "urls": urls(web_server)}), patience_s=LONG_S)
    tried = """
    await session.feed(new Array(20).fill(3));
    await session.feed([1, 2, 3, 4]);
    const failed = await session.feed([5]).then(() => "", ({ name, message }) => `${name}: ${message}`);
    return { capacity: session.capacity, position: session.position, failed };
    """
    answer = page.in_worker(tried, patience_s=LONG_S)
    assert (answer["capacity"], answer["position"]) == (24, 24)
    assert re.match("ContextFull: 24 tokens are held and 1 more .*, or load with a larger context", answer["failed"])


def test_wrong_feeds_are_refused_and_leave_the_session_as_it_was(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    folder = tiny_package("llama")
    opened(page, web_server, folder, "wasm")
    tried = """
    const found = [];
    await session.feed([1, 2, 3]);
    const interrupted = async () => { session.interrupt(); return session.feed([1]); };
    const attempts = [() => session.feed([]), () => session.feed([307]), () => session.feed(new Array(126).fill(1)),
      async () => session.rewind(9), interrupted];
    for (const attempt of attempts) {
      try { await attempt(); found.push("nothing"); } catch (error) { found.push(error.name); }
    }
    session.interrupt(false);
    return { found, position: session.position };
    """
    answer = page.in_worker(tried)
    assert answer == {
        "found": ["RangeError", "RangeError", "ContextFull", "RangeError", "Interrupted"],
        "position": 3,
    }


def test_a_long_feed_is_stopped_in_the_middle(page: Page, web_server: WebServer) -> None:
    opened(page, web_server, package_folder("demo"), "wasm")
    stopped = """
    const tokens = Array.from({ length: 1500 }, (_, place) => (place * 7919) % 16000);
    await session.feed([1, 2]);
    setTimeout(() => session.interrupt(), 100);
    const again = async () => { for (;;) { await session.feed(tokens); session.rewind(2); } };
    const name = await again().catch((error) => error.name);
    session.interrupt(false);
    return { name, position: session.position };
    """
    assert page.in_worker(stopped, patience_s=LONG_S) == {"name": "Interrupted", "position": 2}


def test_a_gpu_that_was_lost_is_said_and_another_load_works(
    page: Page, web_server: WebServer, tiny_package: MakePackage
) -> None:
    folder = tiny_package("llama")
    opened(page, web_server, folder, "webgpu-software")
    lose = """
    const told = new Promise((resolve) => (loaded.engine.onLost = resolve));
    await session.feed([1, 2, 3]);
    const build = "Suspending" in WebAssembly ? "jspi" : "webgpu";
    const ort = await import(`${argument.onnxruntime}ort.${build}.min.mjs`);
    (await ort.env.webgpu.device).destroy();
    const { name, message } = await told;
    const again = await session.feed([4]).then(() => "nothing", (error) => error.name);
    session.close();
    loaded.engine.close();
    return { name, message, again };
    """
    answer = page.in_worker(lose, urls(web_server), patience_s=LONG_S)
    assert (answer["name"], answer["again"]) == ("DeviceError", "DeviceError")
    assert "the GPU was lost (destroyed)" in answer["message"]
    opened(page, web_server, folder, "webgpu-software")
    assert greedy(page, [1, 2, 3], 4)[0] == reference(folder, [1, 2, 3], 4)[0]


def test_a_graph_of_latents_is_passed_over_with_the_reason(page: Page, web_server: WebServer, tmp_path: Path) -> None:
    """That of desktops (MLA), which a page would take where float32 matrices have no room, or are not there."""
    folder = convert(mla_checkpoint(tmp_path / "checkpoint"), tmp_path / "package", Recipe(method="nearest"))
    tokens = some_tokens(40, 307)
    opened(page, web_server, folder, "wasm")
    np.testing.assert_allclose(greedy(page, tokens, 1)[1], reference(folder, tokens, 1)[1], atol=ATOL, rtol=0)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["graphs"] = [graph for graph in manifest["graphs"] if graph["variant"] == FLOAT32.name]
    write_json(folder / MANIFEST, manifest)
    other = folder.rename(tmp_path / "without")
    with pytest.raises(BrowserError, match=r"'generic-float32' keeps latents \(MLA\).*add 'wasm-float32'"):
        opened(page, web_server, other, "wasm")
