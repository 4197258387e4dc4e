// Python in Pyodide over a model of one formula: what cases.py gives is written for pytest to compare with the desktop.

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import test, { before } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { ContextFull, DeviceError, DeviceUnavailable, PackageError } from "../../../bindings_web/src/errors.js";
import { formulaBridge, startPyodide } from "./pyodide.mjs";

/** @type {{archives: string[], cases: string, out: string, model: any}} */
const given = JSON.parse(await readFile(process.env.EMBEDLLM_PYODIDE_TEST ?? "", "utf-8"));
const bridge = formulaBridge(given.model);
/** @type {any} */
let python;

/** Runs Python, whose last expression is converted by way of JSON. @param {string} code @param {string} [name] */
async function run(code, name) {
  const text = await python.runPythonAsync(code, { filename: name ?? "test.py" });
  return typeof text === "string" ? JSON.parse(text) : text;
}

before(async () => {
  python = await startPyodide(given, bridge);
  python.FS.writeFile("/home/pyodide/cases.py", await readFile(given.cases, "utf-8"));
  await run(`
import asyncio, json, sys
import embedllm
before = set(sys.modules)
llm = await embedllm.aload("https://models.test/tiny?v=1")
`);
});

const engine = () => bridge.engines[0];

test("all calls give what they give on the desktop", async () => {
  const outcomes = await run("import cases; json.dumps(await cases.outcomes(llm))");
  await writeFile(given.out, JSON.stringify(outcomes));
  assert.ok(engine().counts.interrupts > 0);
});

test("nothing heavy is imported", async () => {
  const heavy = await run(`json.dumps(sorted({"numpy", "onnxruntime", "tokenizers", "concurrent.futures.thread"} & set(sys.modules)))`);
  assert.deepEqual(heavy, []);
});

test("synchronous calls say what to do where nothing can wait", async () => {
  const said = await run(`
found = []
for call in (lambda: llm.generate("x"), lambda: embedllm.load("https://models.test/tiny"), embedllm.devices):
    try:
        call()
    except ValueError as error:
        found.append(str(error))
json.dumps(found)`);
  assert.equal(said.length, 3);
  assert.match(said[0], /JSPI.*await llm.agenerate/);
  assert.match(said[1], /await embedllm.aload\(url\)/);
  assert.match(said[2], /await embedllm.adevices\(\)/);
});

test("devices are told", async () => {
  const found = await run("from dataclasses import asdict; json.dumps([asdict(d) for d in await embedllm.adevices()])");
  assert.deepEqual(found[0], {
    name: "webgpu", backend: "made up 1", description: "a GPU", available: true, reason: "", remedy: "", memory: 5,
  });
  assert.deepEqual([found[1].available, found[1].reason, found[1].remedy], [false, "no", ""]);
});

test("the choice of a device and addresses go to JavaScript; options of the desktop are refused", async () => {
  const said = await run(`
told = []
other = await embedllm.aload("u", device=["webgpu", "wasm"], threads=2, context=24, urls={"ort": "x"}, on_progress=told.append)
said = []
for work in (embedllm.aload("u", exact=True), embedllm.web.aload("u", context=1), other.agenerate([7] * 30)):
    try:
        await work
    except ValueError as error:
        said.append(str(error))
    except embedllm.ContextFull as error:
        said.append(str(error))
other.close()
json.dumps([said, [(p.file, p.loaded, p.total, p.phase) for p in told]])`);
  assert.match(said[0][0], /exact cannot be chosen in a browser/);
  assert.match(said[0][1], /context is 1; expected a whole number of tokens from 2 on/);
  assert.match(said[0][2], /has 30 tokens; 24 can be held .*, or load with a larger context\./);
  assert.deepEqual(said[1], [["weights.safetensors", 5, 10, "download"]]);
  assert.deepEqual(bridge.asked.at(-1), { url: "u", device: ["webgpu", "wasm"], threads: 2, urls: { ort: "x" }, context: 24 });
  assert.ok(bridge.engines.at(-1)?.closed);
});

const failure = `
try:
    await embedllm.aload("u")
except Exception as error:
    found = [type(error).__name__, str(error), getattr(error, "tried", None), getattr(error, "tokens", None)]
json.dumps(found)`;

for (const [error, expected] of /** @type {[Error, unknown[]][]} */ ([
  [new PackageError("broken"), ["PackageError", "broken", null, null]],
  [new DeviceUnavailable("none", { tried: [["webgpu", "no", ""]] }), ["DeviceUnavailable", "none", [["webgpu", "no", ""]], null]],
  [new ContextFull("full", { tokens: 5, limit: 4 }), ["ContextFull", "full", null, 5]],
  [new RangeError("odd"), ["ValueError", "odd", null, null]],
  [new TypeError("x is undefined"), ["DeviceError", "the browser failed: TypeError: x is undefined", null, null]],
])) {
  test(`a ${error.name} of JavaScript's is ${expected[0]}`, async () => {
    bridge.failure = error;
    try {
      assert.deepEqual(await run(failure), expected);
    } finally {
      bridge.failure = null;
    }
  });
}

test("what on_progress raises ends the loading, and so does cancelling the task", async () => {
  bridge.hangs = true;
  const found = await run(`
def fail(progress):
    raise KeyError("mine")
try:
    await embedllm.aload("u", on_progress=fail)
except KeyError as error:
    found = ["KeyError"]
task = asyncio.ensure_future(embedllm.aload("u"))
await asyncio.sleep(0.01)
task.cancel()
try:
    await task
except asyncio.CancelledError:
    found.append("cancelled")
json.dumps(found)`);
  bridge.hangs = false;
  assert.deepEqual(found, ["KeyError", "cancelled"]);
});

test("a feed that fails or is not finite is an error, and the next one goes on", async () => {
  const attempt = `
try:
    await llm.agenerate("fails", max_tokens=2)
    found = ["nothing"]
except Exception as error:
    found = [type(error).__name__, str(error)]
json.dumps(found)`;
  engine().failure = new DeviceError("the device was lost");
  assert.deepEqual(await run(attempt), ["DeviceError", "the device was lost"]);
  engine().failure = null;
  engine().fixed = new Float32Array(given.model.vocabulary).fill(NaN);
  const [name, message] = await run(attempt);
  assert.equal(name, "DeviceError");
  assert.match(message, /not finite numbers: token 0/);
  engine().fixed = null;
  assert.deepEqual(await run(attempt), ["nothing"]);
});

test("Cancel and a cancelled task interrupt a feed that is under way", async () => {
  engine().hold();
  const found = await run(`
cancel = embedllm.Cancel()
task = asyncio.ensure_future(llm.agenerate("held", cancel=cancel))
await asyncio.sleep(0.01)
cancel.cancel()
found = [(await task).finish_reason]
task = asyncio.ensure_future(llm.agenerate("held"))
await asyncio.sleep(0.01)
task.cancel()
task.cancel()
try:
    await task
except asyncio.CancelledError:
    found.append("task cancelled")
json.dumps(found)`);
  engine().release();
  assert.deepEqual(found, ["cancelled", "task cancelled"]);
});

test("a stream that is dropped in the middle of a feed leaves the model in order", async () => {
  engine().hold();
  const found = await run(`
stream = llm.astream("dropped")
step = stream.__anext__()
step.send(None)  # as far as the feed
step.close()
del step, stream
await asyncio.sleep(0.01)
json.dumps("dropped")`);
  engine().release();
  assert.equal(found, "dropped");
  assert.equal((await run(`json.dumps((await llm.agenerate("dropped", min_tokens=3, max_tokens=3)).tokens)`)).length, 3);
});

test("a model that is closed in the middle of a feed frees JavaScript's engine after it", async () => {
  const found = await run(`
other = await embedllm.aload("u")
json.dumps(1)`);
  const [second] = bridge.engines.slice(-1);
  second.hold();
  await run(`
task = asyncio.ensure_future(other.agenerate("held"))
await asyncio.sleep(0.01)
other.close()
json.dumps(1)`);
  assert.equal(await run("json.dumps((await task).finish_reason)"), "cancelled");
  assert.ok(second.closed);
  assert.equal(second.counts.closed, 1);
  assert.equal(found, 1);
});

test("modules are published in the order in which they import each other", async () => {
  python.globals.set("import_text", (/** @type {string} */ text) => import(text));
  const found = await run(`
from embedllm.web.modules import addresses
from urllib.parse import quote
texts = {
    "bridge.js": '// @type {import("./types.js").X}\\nimport { two } from "./rule/two.js";\\nimport {\\n  one,\\n} from "./one.js";\\nexport * from "./one.js";\\nexport const three = one + two;\\n',
    "one.js": "export const one = 1;",
    "rule/two.js": 'import { one } from "../one.js";\\nexport const two = one + 1;',
    "types.js": 'import "./bridge.js";',
}
made = addresses(texts, "bridge.js", publish=lambda text: "data:text/javascript," + quote(text))
module = await import_text(made["bridge.js"])
json.dumps([list(made), module.three, module.one])`);
  assert.deepEqual(found, [["one.js", "rule/two.js", "bridge.js"], 3, 1]);
});

test("thousands of steps leave nothing behind", async () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  python._module.enable_pyproxy_allocation_tracing();
  const steps = (/** @type {number} */ count) => run(`
for place in range(${count}):
    sampling = embedllm.Sampling(seed=place, top_p=0.9, repetition_penalty=1.1 if place % 2 else 1)
    await llm.agenerate(f"step {place}", sampling, max_tokens=100, logprobs=2, stop_tokens=[])
import gc
json.dumps(gc.collect())`);
  await steps(2);
  const proxies = python._module.pyproxy_alloc_map.size;
  const { rows } = engine().counts;
  await steps(30);
  for (let turn = 0; turn < 3; turn++) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    collect();
  }
  await new Promise((resolve) => setTimeout(resolve, 5));
  const { counts } = engine();
  assert.ok(counts.rows - rows >= 3000, `${counts.rows - rows} rows`);
  assert.ok(counts.rows - counts.collected < 10, `${counts.rows - counts.collected} rows are left of ${counts.rows}`);
  assert.ok(python._module.pyproxy_alloc_map.size <= proxies, `${python._module.pyproxy_alloc_map.size} proxies`);
});

test("the folder of a model goes with it", async () => {
  const left = await run(`
from pathlib import Path
import gc
other = await embedllm.aload("https://models.test/tiny/")
folder = other.package.folder
there = sorted(path.name for path in folder.iterdir())
other.close()
del other
gc.collect()
json.dumps([there, folder.name, folder.exists()])`);
  assert.deepEqual(left, [["chat_template.jinja", "embedllm.json", "generation_config.json"], "tiny", false]);
});
