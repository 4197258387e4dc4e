"""The JavaScript API on a page of a real Chromium, as an application uses it: both engines, errors, losses, tabs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedllm
from embedllm.loading.resolve import package_folder
from tests.web.support.browser import Browser
from tests.web.support.calls import LONG_S
from tests.web.support.page import Page
from tests.web.support.probes import probed
from tests.web.support.server import ROOT, WebServer
from tests.web.support.stored import store_nothing

pytestmark = pytest.mark.browser

MakePackage = Callable[..., Path]
ENGINES = ["javascript", "python"]
QUESTION = [{"role": "user", "content": "list all files that were changed today"}]
POLICY = {  # all that a page needs; docs/web.md
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; "
    "worker-src 'self'"
}
OPEN = """
const library = await import("/src/index.js");
const { EmbedLLM } = library;
const urls = argument.urls;
const all = async (chunks) => { const found = []; for await (const chunk of chunks) found.push(chunk); return found; };
const failure = async (work) => {
  try { return await work(), "nothing"; } catch (error) {
    const { name, message, tokens, limit, tried } = error;
    return { name, message, tokens, limit, tried, isOurs: error instanceof library.EmbedError };
  }
};
const told = [];
const onProgress = (one) => told.push(one);
// the worker of a page that wants more of it: to end, or to lose its GPU
const workers = [];
const made = () => {
  const source = `import "${location.origin}/src/worker.js";
    addEventListener("message", async ({ data }) => {
      if (data.dies) close();
      if (data.loses) (await (await import(data.loses)).env.webgpu.device).destroy();
    });`;
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  workers.push(new Worker(address, { type: "module" }));
  return workers.at(-1);
};
const { engine, device = "wasm" } = argument;
const given = { engine, device, urls, onProgress, ...(argument.made ? { worker: made } : {}) };
const llm = await EmbedLLM.load(argument.url, given);
Object.assign(globalThis, { library, EmbedLLM, urls, all, failure, workers, llm, given });
return { device: llm.device.name, refused: llm.refused.map(({ name }) => name), canChat: llm.canChat,
  phases: [...new Set(told.map(({ phase }) => phase))], bytes: Math.max(...told.map(({ loaded }) => loaded)) };
"""


@pytest.fixture
def demo(web_server: WebServer) -> str:
    return web_server.serve("/models/demo", package_folder("demo")) + "/"


@pytest.fixture
def tiny(web_server: WebServer, tiny_package: MakePackage) -> str:
    return web_server.serve("/models/tiny", tiny_package("llama")) + "/"


def run(page: Page, body: str, argument: object = None) -> Any:  # noqa: ANN401  # any JSON
    """What the body of an async function returns, on the page."""
    return page.evaluate(f"async (argument) => {{ {body} }}", argument, patience_s=LONG_S)


def desktop(folder: Path | str, prompt: object, **options: object) -> embedllm.Completion:
    with embedllm.load(folder, device="cpu") as llm:
        return llm.generate(prompt, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_page_talks_with_the_demo(engine: str, page: Page, demo: str, places: dict[str, str]) -> None:
    opened = run(page, OPEN, {"url": demo, "engine": engine, "urls": places})
    assert (opened["device"], opened["canChat"]) == ("wasm", True)
    assert {"download", "compile"} <= set(opened["phases"])
    assert opened["bytes"] > 20e6
    expected = desktop("demo", QUESTION)
    asked = """
    const whole = await llm.generate(argument);
    const chunks = await all(llm.stream(argument, { max_tokens: 5 }));
    const chat = await all(llm.chat(argument));
    const request = { messages: argument, model: "any" };
    const completion = await llm.chat.completions.create(request);
    const pieces = await all(await llm.chat.completions.create({ ...request, stream: true }));
    const format = { type: "json_schema", json_schema: { name: "x", schema: {
      type: "object", properties: { command: { type: "string" }, count: { type: "integer" } },
      required: ["command", "count"], additionalProperties: false } } };
    const json = await llm.generate(argument, { response_format: format, max_tokens: 200 });
    return { whole, chunks, chat: chat.map(({ text }) => text).join(""), completion,
      pieces: pieces.map(({ choices }) => choices[0].delta.content ?? "").join(""), json: json.text };
    """
    found = run(page, asked, QUESTION)
    assert found["whole"]["tokens"] == list(expected.tokens)
    assert found["whole"]["text"] == expected.text
    assert (found["whole"]["finish_reason"], found["whole"]["stopped_by"]) == ("stop", expected.stopped_by)
    assert found["whole"]["logprobs"] == pytest.approx(expected.logprobs, abs=0.3)  # the desktop rounds activations
    assert [chunk["token"] for chunk in found["chunks"]] == list(expected.tokens[:5])
    assert [chunk["finish_reason"] for chunk in found["chunks"]] == [None] * 4 + ["length"]
    assert found["chat"] == found["pieces"] == found["completion"]["choices"][0]["message"]["content"] == expected.text
    usage = found["completion"]["usage"]
    assert usage["completion_tokens"] == len(expected.tokens)
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert re.fullmatch(r'\{\s*"command":.*"count":\s*-?\d+\s*\}\s*', found["json"], re.DOTALL)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_second_turn_of_a_long_conversation_computes_only_what_is_new(
    engine: str, page: Page, demo: str, places: dict[str, str]
) -> None:
    run(page, OPEN, {"url": demo, "engine": engine, "urls": places})
    talked = """
    const messages = [];
    for (let turn = 0; turn < 12; turn++) {
      messages.push({ role: "user", content: `find the files in folder ${turn} that are larger than ${turn} MB` });
      messages.push({ role: "assistant", content: "```sh\\nfind . -type f -size +" + turn + "M\\n```" });
    }
    const talk = llm.conversation({ messages });
    const turns = [];
    for (const said of ["and now by date", "only the first ten"]) {
      turns.push((await all(talk.say(said, { max_tokens: 12 }))).at(-1));
    }
    return { statistics: turns.map(({ statistics }) => statistics), count: talk.messages.length };
    """
    found = run(page, talked)
    first, second = found["statistics"]
    assert first["prompt_tokens"] > 300
    assert first["cached_tokens"] == 0
    held = first["prompt_tokens"] + first["tokens"] - 1  # the last token of a reply was never fed
    assert held <= second["cached_tokens"] < second["prompt_tokens"] < held + 30
    assert found["count"] == 28


@pytest.mark.parametrize("engine", ENGINES)
def test_errors_keep_their_class_and_leave_the_model_usable(
    engine: str, page: Page, tiny: str, places: dict[str, str]
) -> None:
    run(page, OPEN, {"url": tiny, "engine": engine, "urls": places})
    tried = """
    const long = Array.from({ length: 200 }, () => 5);
    const attempts = {
      full: () => llm.generate(long),
      token: () => llm.generate([99999]),
      option: () => llm.generate("x", { temperatur: 1 }),
      value: () => llm.generate("x", { temperature: -1 }),
      format: () => llm.generate("x", { response_format: { type: "xml" } }),
      template: () => llm.generate([{ role: "user" }], { max_tokens: 2, variables: { messages: 3 } }),
      empty: () => llm.chat([]).next(),
      missing: () => EmbedLLM.load("/models/none", given),
      refused: () => EmbedLLM.load(argument, { ...given, device: "webgpu" }),
      aborted: () => EmbedLLM.load(argument, { ...given, signal: AbortSignal.abort() }),
    };
    const found = {};
    for (const [name, attempt] of Object.entries(attempts)) found[name] = await failure(attempt);
    found.after = (await llm.generate("the quick", { max_tokens: 3, temperature: 0, stop_tokens: [] })).tokens.length;
    llm.close();
    found.closed = await failure(() => llm.generate("x"));
    return found;
    """
    found = run(page, tried, tiny)
    kinds = {name: error["name"] for name, error in found.items() if name != "after"}
    assert kinds == {
        "full": "ContextFull", "token": "RangeError", "option": "RangeError", "value": "RangeError",
        "format": "RangeError", "template": "RangeError", "empty": "RangeError", "missing": "PackageError",
        "refused": "DeviceUnavailable", "aborted": "AbortError", "closed": "RangeError",
    }  # fmt: skip
    assert all(found[name]["isOurs"] for name in ("full", "missing", "refused"))
    assert (found["full"]["tokens"] >= 200, found["full"]["limit"]) == (True, 128)
    assert found["refused"]["tried"][0][0] == "webgpu"
    assert "software" in found["refused"]["message"]
    assert found["after"] == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_context_bounds_a_load(engine: str, page: Page, tiny: str, places: dict[str, str]) -> None:
    """As tests/loading/test_context_limit.py has it of the desktop."""
    run(page, OPEN, {"url": tiny, "engine": engine, "urls": places})
    tried = """
    const prompt = Array.from({ length: 10 }, (_, place) => 5 + place);
    const options = { temperature: 0, stop_tokens: [], max_tokens: 40 };
    const whole = await llm.generate(prompt, options);
    const most = await failure(() => llm.generate(new Array(128).fill(7)));
    llm.close();
    const limited = await EmbedLLM.load(argument, { ...given, context: 24 });
    const talk = limited.conversation();
    const found = { context: limited.context, whole: whole.tokens, most, reply: await limited.generate(prompt, options),
      full: await failure(() => limited.generate(new Array(30).fill(7))),
      long: await failure(() => limited.generate("x ".repeat(50_000))),
      talk: await failure(() => all(talk.say("word ".repeat(30)))) };
    limited.close();
    const load = (context) => failure(() => EmbedLLM.load(argument, { ...given, context }));
    return { ...found, more: await load(129), few: await load(1) };
    """
    found = run(page, tried, tiny)
    assert (found["context"], found["reply"]["finish_reason"]) == (24, "context")
    assert found["reply"]["tokens"] == found["whole"][: 24 - 10]
    for name in ("full", "long", "talk"):
        assert (found[name]["name"], found[name]["limit"]) == ("ContextFull", 24), name
    assert re.search(r"has 30 tokens; 24 can be held .*, or load with a larger context\.", found["full"]["message"])
    assert "export with a larger --context" in found["most"]["message"]
    assert (found["more"]["name"], found["few"]["name"]) == ("RangeError", "RangeError")
    assert re.fullmatch(
        r"context is 129 tokens, and '.+' holds 128 at most\. Leave it out, or export with a larger --context\.",
        found["more"]["message"],
    )
    assert found["few"]["message"] == "context is 1; expected a whole number of at least 2."


@pytest.mark.parametrize("engine", ENGINES)
def test_replies_are_aborted_left_and_take_turns(engine: str, page: Page, tiny: str, places: dict[str, str]) -> None:
    run(page, OPEN, {"url": tiny, "engine": engine, "urls": places})
    tried = """
    const endless = { temperature: 0, stop_tokens: [], max_tokens: 100 };
    const reason = async (work) => (await work).finish_reason;
    const early = new AbortController();
    const first = [];
    for await (const chunk of llm.stream("the quick", { ...endless, signal: early.signal })) {
      first.push(chunk);
      if (first.length === 3) early.abort();
    }
    for await (const chunk of llm.stream("the quick", endless)) break;
    const [running, waiting] = [new AbortController(), new AbortController()];
    const both = [running, waiting].map(({ signal }) => llm.generate("a", { ...endless, signal }));
    waiting.abort();
    running.abort();
    const seeds = [0, 1, 2, 3, 4];
    const many = await Promise.all(seeds.map((seed) => llm.generate("the", { max_tokens: 8, temperature: 1, seed })));
    const request = { messages: [{ role: "user", content: "x" }] };
    return { first: first.map(({ finish_reason }) => finish_reason), both: await Promise.all(both.map(reason)),
      api: await failure(() => llm.chat.completions.create(request, { signal: AbortSignal.abort() })),
      many: many.map(({ tokens }) => tokens), whole: (await llm.generate("the quick", endless)).tokens.length };
    """
    found = run(page, tried)
    assert found["first"][-1] == "cancelled"
    assert set(found["first"][:-1]) == {None}
    assert len(found["first"]) < 100
    assert found["both"] == ["cancelled", "cancelled"]
    assert found["api"]["name"] == "AbortError"
    assert len({tuple(tokens) for tokens in found["many"]}) > 1
    assert found["whole"] == 100


def test_a_software_gpu_gives_the_same_and_one_that_is_lost_comes_back_with_the_next_request(
    page: Page, tiny: str, tiny_package: MakePackage, places: dict[str, str]
) -> None:
    given = {"url": tiny, "engine": "javascript", "device": "webgpu-software", "urls": places, "made": True}
    assert run(page, OPEN, probed(page, given))["device"] == "webgpu-software"
    asked = "return (await llm.generate('the quick', { temperature: 0, stop_tokens: [], max_tokens: 20 })).tokens;"
    with embedllm.load(tiny_package("llama"), device="cpu", exact=True) as llm:
        expected = llm.generate("the quick", embedllm.Sampling(temperature=0), stop_tokens=[], max_tokens=20)
    assert run(page, asked) == list(expected.tokens)
    lost = """
    const reply = llm.stream("the quick", { temperature: 0, stop_tokens: [], max_tokens: 100 });
    await reply.next();
    const build = "Suspending" in WebAssembly ? "jspi" : "webgpu";
    workers[0].postMessage({ cancel: 0, loses: `${urls.onnxruntime}ort.${build}.min.mjs` });
    return failure(() => all(reply));
    """
    error = run(page, lost)
    assert (error["name"], error["isOurs"]) == ("DeviceError", True)
    assert "the GPU was lost" in error["message"]
    assert run(page, asked) == list(expected.tokens)


def test_a_worker_that_ends_is_noticed_and_made_again(page: Page, tiny: str, places: dict[str, str]) -> None:
    run(page, OPEN, {"url": tiny, "engine": "javascript", "urls": places, "made": True})
    died = """
    const options = { temperature: 0, stop_tokens: [], max_tokens: 100 };
    const reply = llm.stream("the quick", options);
    await reply.next();
    workers.at(-1).postMessage({ cancel: 0, dies: true });
    const during = await failure(() => all(reply));
    const { tokens } = await llm.generate("the quick", options);
    workers.at(-1).postMessage({ cancel: 0, dies: true });
    await new Promise((resolve) => setTimeout(resolve, 300)); // while nothing is asked
    const again = await llm.generate("the quick", options);
    return { during, same: `${again.tokens}` === `${tokens}`, count: tokens.length, workers: workers.length };
    """
    found = run(page, died)
    assert (found["during"]["name"], found["during"]["isOurs"]) == ("DeviceError", True)
    assert "the worker of the model is gone. The next request loads the model again." in found["during"]["message"]
    assert found["same"]
    assert (found["count"], found["workers"]) == (100, 3)


def test_two_tabs_share_one_download_and_both_answer(
    browser: Browser, web_server: WebServer, demo: str, places: dict[str, str]
) -> None:
    context = browser.context()
    pages = [context.page(f"{web_server.url}/tests/blank.html") for _ in range(2)]
    argument = {"url": demo, "engine": "javascript", "urls": places}
    started = [
        browser.start("evaluate", page=page.id, code=f"async (argument) => {{ {OPEN} }}", argument=argument)
        for page in pages
    ]
    assert [future.result(LONG_S)["device"] for future in started] == ["wasm", "wasm"]
    assert len(web_server.requests("/models/demo/weights.safetensors")) == 1
    ask = "async (prompt) => (await llm.generate(prompt)).tokens"
    started = [browser.start("evaluate", page=page.id, code=ask, argument=QUESTION) for page in pages]
    expected = list(desktop("demo", QUESTION).tokens)
    assert [future.result(LONG_S) for future in started] == [expected, expected]
    listed = run(pages[0], "return [await EmbedLLM.cache.list({ urls }), await EmbedLLM.cache.usage({ urls })];")
    assert [model["url"] for model in listed[0]] == [demo]
    pages[0].close()
    assert run(pages[1], f"return ({ask})(argument);", QUESTION) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_strict_policy_lets_all_through(
    engine: str, browser: Browser, web_server: WebServer, tmp_path: Path, tiny: str, places: dict[str, str]
) -> None:
    (tmp_path / "index.html").write_text('<!doctype html><link rel="icon" href="data:,"><title>strict</title>')
    web_server.headers("/", {**POLICY, "Cross-Origin-Embedder-Policy": "require-corp"})
    page = browser.context().page(web_server.serve("/strict", tmp_path) + "/")
    run(page, OPEN, {"url": tiny, "engine": engine, "urls": places})
    asked = "return (await llm.generate([{ role: 'user', content: 'x' }], { stop_tokens: [], max_tokens: 5 })).tokens;"
    assert len(run(page, asked)) == 5
    assert [line for line in page.console if "Content Security Policy" in line and "data:," not in line] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_page_that_came_over_plain_http_answers_too(
    engine: str, browser: Browser, web_server: WebServer, tiny: str, places: dict[str, str]
) -> None:
    page = browser.context().page(web_server.plain(f"{web_server.url}/tests/blank.html"))
    urls = {name: web_server.plain(address) for name, address in places.items()}
    assert run(page, "return isSecureContext;") is False
    run(page, OPEN, {"url": web_server.plain(tiny), "engine": engine, "urls": urls})
    asked = """
    const options = { temperature: 0, max_tokens: 5 };
    const talks = [llm.conversation(), llm.conversation()];
    for await (const { text } of talks[0].say("x", options)) void text;
    const messages = [{ role: "user", content: "x" }];
    const { id, choices } = await llm.chat.completions.create({ messages, ...options });
    return { ids: new Set([...talks.map((talk) => talk.id), id]).size, said: talks[0].messages.at(-1).content,
      again: choices[0].message.content, save: await failure(() => talks[0].save("a")) };
    """
    found = run(page, asked)
    assert found["ids"] == 3
    assert found["said"] == found["again"] != ""
    assert "the page came over plain http" in found["save"]["message"]
    assert any("kept in memory only" in line and "plain http" in line for line in page.console)


def test_a_site_that_may_store_nothing_answers_too(
    browser: Browser, whole_chromium: str, web_server: WebServer, tmp_path: Path, tiny: str, places: dict[str, str]
) -> None:
    store_nothing(tmp_path)
    page = browser.context(tmp_path, program=whole_chromium).page(f"{web_server.url}/tests/blank.html")
    run(page, OPEN, {"url": tiny, "engine": "javascript", "urls": places})
    asked = """
    const talk = llm.conversation();
    for await (const { text } of talk.say("x", { max_tokens: 3 })) void text;
    return { count: talk.messages.length, save: await failure(() => talk.save("a")),
      listed: await EmbedLLM.cache.list({ urls }) };
    """
    found = run(page, asked)
    assert (found["count"], found["listed"]) == (2, [])
    assert "conversations cannot be stored here" in found["save"]["message"]


def test_addresses_may_be_relative_in_a_worker_of_the_page_too(
    page: Page, tiny: str, web_server: WebServer, places: dict[str, str]
) -> None:
    asked = """
    const { EmbedLLM } = await import("/src/index.js");
    const { url, urls } = argument;
    const llm = await EmbedLLM.load(url, { engine: "javascript", device: "wasm", urls });
    const { tokens } = await llm.generate("x", { max_tokens: 3, stop_tokens: [] });
    llm.close();
    const listed = await EmbedLLM.cache.list({ urls });
    const isRemoved = await EmbedLLM.cache.remove(url, { urls });
    return { count: tokens.length, listed: listed.map((model) => model.url), isRemoved };
    """
    relative = {name: address.removeprefix(web_server.url) for name, address in places.items()}
    found = page.in_worker(asked, {"url": tiny.removeprefix(web_server.url), "urls": relative})
    assert found == {"count": 3, "listed": [tiny], "isRemoved": True}


def test_workers_of_a_library_on_another_origin_leave_no_blob(
    page: Page, web_server: WebServer, places: dict[str, str]
) -> None:
    asked = """
    const addresses = new Set();
    const [create, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
    URL.createObjectURL = (blob) => { const made = create(blob); addresses.add(made); return made; };
    URL.revokeObjectURL = (address) => { addresses.delete(address); revoke(address); };
    const { EmbedLLM } = await import(argument.library);
    const listed = await EmbedLLM.cache.list({ urls: argument.urls });
    return { listed, left: addresses.size };
    """
    roots = {"/src": ROOT / "bindings_web" / "src"}
    with WebServer(roots, cors=True) as elsewhere:
        found = run(page, asked, {"library": f"{elsewhere.url}/src/index.js", "urls": places})
    assert found == {"listed": [], "left": 0}
