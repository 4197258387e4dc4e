// The API of a page over a worker behind a MessageChannel: replies, turns, cancelling, losses.

import assert from "node:assert/strict";
import { getEventListeners, setMaxListeners } from "node:events";
import test, { after } from "node:test";

import { postable } from "../../../bindings_web/src/images/posting.js";
import { EmbedLLM } from "../../../bindings_web/src/index.js";
import { loadOf } from "../../../bindings_web/src/page/options.js";
import { all, endWorkers, given, loaded, lose, madeBridge, settled, textOf, workers } from "./api.mjs";

after(endWorkers);

const GREEDY = { temperature: 0, stop_tokens: [] };

test("a reply is the same whole and in chunks", async () => {
  const { llm } = await loaded();
  const options = { seed: 3, max_tokens: 12, logprobs: 2, stop_tokens: [] };
  const whole = await llm.generate("the quick", options);
  const chunks = await all(llm.stream("the quick", options));
  assert.equal(whole.text, textOf(chunks));
  assert.deepEqual(whole.tokens, chunks.map(({ token }) => token));
  assert.equal(whole.tokens.length, 12);
  assert.equal(whole.finish_reason, "length");
  assert.equal(whole.top_logprobs[11].length, 2);
  assert.equal(whole.statistics.prompt_tokens, 10);
  assert.deepEqual(Object.keys(chunks[0]).sort(), ["finish_reason", "logprob", "statistics", "stopped_by", "text", "token", "top_logprobs"]);
  llm.close();
});

test("what is known of the model is told", async () => {
  const { llm } = await loaded();
  assert.equal(llm.name, JSON.parse(given.model.texts["embedllm.json"]).name);
  assert.equal(llm.context, given.model.context);
  assert.equal(llm.device.name, "formula");
  assert.equal(llm.refused[0].reason, "not here");
  assert.equal(llm.canChat, true);
  assert.equal(llm.takesImages, false);
  llm.close();
});

test("the next prompt computes only what is new", async () => {
  const { llm } = await loaded();
  const first = await llm.generate([1, 2, 3, 4], { ...GREEDY, max_tokens: 3 });
  const second = await llm.generate([1, 2, 3, 4, ...first.tokens, 9], { ...GREEDY, max_tokens: 1 });
  assert.equal(first.statistics.cached_tokens, 0);
  assert.equal(second.statistics.cached_tokens, 6); // the last token of a reply is not fed
  llm.close();
});

test("a conversation remembers, and has a cache of its own", async () => {
  const { llm, engine } = await loaded();
  const talk = llm.conversation({ system: "be brief" });
  const first = await all(talk.say("hello", { ...GREEDY, max_tokens: 5 }));
  await llm.generate("something else", { ...GREEDY, max_tokens: 2 });
  const second = await all(talk.say("and now", { ...GREEDY, max_tokens: 5 }));
  assert.ok(second[0].statistics.cached_tokens >= first[0].statistics.prompt_tokens - 3); // but for "[>]"
  assert.deepEqual(talk.messages.map(({ role }) => role), ["system", "user", "assistant", "user", "assistant"]);
  assert.equal(talk.messages[4].content, textOf(second));
  const restored = llm.conversation(JSON.parse(JSON.stringify(talk.save())));
  assert.equal(restored.id, talk.id);
  assert.deepEqual(restored.messages, talk.messages);
  const closed = engine().counts.closed;
  talk.close();
  talk.messages.length = 0;
  await all(talk.say("hm", { ...GREEDY, max_tokens: 1 }));
  const running = all(talk.say("long", { ...GREEDY, max_tokens: 8 }));
  talk.close(); // freed when the reply has ended
  assert.equal((await running).length, 8);
  const third = await all(talk.say("once more", { ...GREEDY, max_tokens: 1 }));
  assert.equal(engine().counts.closed, closed + 2);
  assert.equal(third[0].statistics.cached_tokens, 0);
  llm.close();
});

test("of a turn that is left early the history gets what there was, of one that fails nothing", async () => {
  const { llm } = await loaded();
  const talk = llm.conversation();
  let said = "";
  for await (const chunk of talk.say("hello", { ...GREEDY, max_tokens: 50 })) if ((said += chunk.text).length > 3) break;
  assert.deepEqual(talk.messages.map(({ content }) => content), ["hello", said]);
  await assert.rejects(all(talk.say({ role: "odd", content: "x" })), { name: "TemplateError", message: /odd roles/ });
  await assert.rejects(all(talk.say("hello", { temperature: -1 })), RangeError);
  assert.equal(talk.messages.length, 2);
  llm.close();
});

test("what is not known is refused by its name, before anything runs", async () => {
  const { llm } = await loaded();
  await assert.rejects(llm.generate("x", /** @type {any} */ ({ temprature: 1 })), /no option 'temprature'; expected of: temperature/);
  await assert.rejects(llm.generate("x", { tools: [] }), /'tools' goes through the chat template/);
  await assert.rejects(llm.generate("x", { max_tokens: 0 }), /max_tokens is 0; expected a whole number of at least 1/);
  for (const stop_tokens of [5, "12", [null], [true], ["5"]]) {
    await assert.rejects(llm.generate("x", /** @type {any} */ ({ stop_tokens })), /^RangeError: stop_tokens is .*; expected token ids/);
  }
  await assert.rejects(llm.generate([]), { name: "RangeError", message: /the prompt is empty/ });
  await assert.rejects(llm.generate(/** @type {any} */ (5)), /the prompt is 5/);
  await assert.rejects(all(llm.chat(/** @type {any} */ ("hi"))), /messages must be a list/);
  await assert.rejects(EmbedLLM.load("x:y", /** @type {any} */ ({ progress_callback() {} })), {
    name: "RangeError", message: /no option 'progress_callback'; expected of: engine, device, .*onProgress/,
  });
  await assert.rejects(EmbedLLM.load("x:y", { threads: /** @type {any} */ ("2") }), /threads is "2"; expected a whole number of at least 0/);
  for (const call of [() => EmbedLLM.load("http://"), () => EmbedLLM.cache.remove("http://")]) {
    await assert.rejects(call, { name: "PackageError", message: /'http:\/\/' is no address of a folder/ });
  }
  await assert.rejects(EmbedLLM.load("x:y", { engine: /** @type {any} */ ("c") }), /engine is 'c'/);
  await assert.rejects(EmbedLLM.load("x:y", { urls: /** @type {any} */ ({ ort: "z" }) }), /urls has 'ort'; expected of: onnxruntime/);
  llm.close();
});

test("images for a model that takes none are refused before they are read", async () => {
  const { llm } = await loaded();
  const image = new Proxy(new Blob(["x"]), { get: () => assert.fail("it is read") });
  const said = { role: "user", content: [{ type: "image", image }, { type: "text", text: "what is it?" }] };
  const refused = { name: "RangeError", message: /reads text only: it takes no images/ };
  await assert.rejects(llm.generate([said]), refused);
  await assert.rejects(llm.chat.completions.create({ messages: [said] }), refused);
  const talk = llm.conversation();
  await assert.rejects(all(talk.say(said)), refused);
  assert.equal(talk.messages.length, 0);
  llm.close();
  const bare = [{ role: "user", content: "hi" }, { role: "user", content: [{ type: "image_url" }] }];
  await assert.rejects(postable(bare, true), /messages\[1\]: a part of the type 'image_url' has 0 images/);
});

test("what a page's framework has made proxies of is taken as plain data", async () => {
  /** @type {(value: any) => any} */
  const proxied = (value) =>
    typeof value === "object" && value !== null
      ? new Proxy(value, { get: (target, name) => (typeof target[name] === "function" ? target[name] : proxied(target[name])) })
      : value;
  assert.deepEqual(structuredClone(loadOf("http://x/", { device: proxied(["webgpu", "wasm"]) })).device, ["webgpu", "wasm"]);
  const { llm } = await loaded();
  const [messages, options] = [[{ role: "user", content: "hi" }], { max_tokens: 4, temperature: 0, logit_bias: { 5: -1 }, variables: { some: [1] } }];
  const { text } = await llm.generate(messages, options);
  assert.equal((await llm.generate(proxied(messages), proxied(options))).text, text);
  const given = { messages: messages.concat({ role: "assistant", content: "ho" }), tools: [], variables: { some: [1] } };
  const talk = llm.conversation(proxied(given));
  await all(talk.say(proxied(messages[0]), proxied({ max_tokens: 4 })));
  talk.messages = proxied(talk.messages);
  const { id, ...saved } = talk.save();
  assert.deepEqual(structuredClone({ ...saved, messages: saved.messages.slice(0, 3) }), {
    ...given, messages: [...given.messages, messages[0]],
  });
  llm.close();
});

test("errors keep their class and their fields", async () => {
  const { llm } = await loaded();
  const long = new Array(given.model.context).fill(1);
  await assert.rejects(llm.generate(long), { name: "ContextFull", tokens: given.model.context, limit: given.model.context });
  await assert.rejects(llm.generate("x", { top_p: 7 }), { name: "RangeError", message: /top_p is 7/ });
  llm.close();
});

test("a running reply is cancelled at its next step, one that waits at once", async () => {
  const { llm, engine } = await loaded();
  engine().hold();
  const [first, second] = [new AbortController(), new AbortController()];
  const running = llm.generate("x", { signal: first.signal });
  const waiting = llm.generate("y", { signal: second.signal });
  await settled();
  second.abort();
  assert.equal((await waiting).finish_reason, "cancelled");
  first.abort();
  assert.equal((await running).finish_reason, "cancelled");
  engine().release();
  const again = await llm.generate("x", { ...GREEDY, max_tokens: 2 });
  assert.equal(again.tokens.length, 2);
  assert.equal((await llm.generate("x", { signal: AbortSignal.abort() })).finish_reason, "cancelled");
  llm.close();
});

test("cancelling gets through while tokens are computed without a pause", async () => {
  const { llm, engine } = await loaded();
  engine().gate = () => {
    const until = performance.now() + 3;
    while (performance.now() < until);
  };
  const controller = new AbortController();
  let count = 0;
  for await (const chunk of llm.stream("x", { stop_tokens: [], temperature: 0, signal: controller.signal })) {
    if (++count === 5) controller.abort();
    if (chunk.finish_reason !== null) assert.equal(chunk.finish_reason, "cancelled");
  }
  assert.ok(count < 15, `${count} tokens until it was noticed`);
  llm.close();
});

test("leaving the loop ends the reply", async () => {
  const { llm, engine } = await loaded();
  for await (const chunk of llm.stream("x", { stop_tokens: [] })) if (chunk.token !== null) break;
  const before = engine().counts.rows;
  await llm.generate("other", { ...GREEDY, max_tokens: 1 });
  assert.ok(engine().counts.rows - before < 40);
  llm.close();
});

test("sixteen requests may wait, beside conversations that are closed", async () => {
  const { llm, engine } = await loaded();
  engine().hold();
  const controller = new AbortController();
  setMaxListeners(20, controller.signal);
  const options = { signal: controller.signal };
  const held = [llm.generate("x", options)];
  await settled();
  for (let count = 0; count < 20; count++) llm.conversation().close();
  while (held.length < 17) held.push(llm.generate("x", options));
  await assert.rejects(llm.generate("x"), { name: "EmbedError", message: /16 requests wait already/ });
  controller.abort();
  for (const one of held) assert.equal((await one).finish_reason, "cancelled");
  llm.close();
});

test("a lost device ends what is under way, and the next request loads the model again, once", async () => {
  const { llm, bridge, made, engine } = await loaded();
  engine().hold();
  const pending = [llm.generate("x"), llm.generate("y")].map((one) => assert.rejects(one, { name: "DeviceError", lost: true }));
  await settled();
  lose(engine());
  await Promise.all(pending);
  assert.equal((await llm.generate("x", { ...GREEDY, max_tokens: 2 })).tokens.length, 2);
  assert.deepEqual([bridge.engines.length, made.length], [2, 2]);
  lose(engine());
  await settled();
  bridge.failure = new Error("no more");
  await assert.rejects(llm.generate("x"), /no more/);
  bridge.failure = null;
  await assert.rejects(llm.generate("x"), /no more/);
  assert.equal(made.length, 3);
  llm.close();
});

test("after a worker that died there is another; a page's own is the page's", async () => {
  const { llm, made, engine } = await loaded();
  engine().hold();
  const pending = assert.rejects(llm.generate("x"), { name: "DeviceError", lost: true, message: /worker of the model is gone/ });
  await settled();
  made[0].die();
  await pending;
  assert.equal((await llm.generate("x", { ...GREEDY, max_tokens: 2 })).tokens.length, 2);
  llm.close();

  const bridge = madeBridge();
  const own = workers(bridge).make();
  const second = await EmbedLLM.load("https://m.test/", { engine: "javascript", worker: own, urls: given.urls });
  lose(bridge.engines[0]);
  await settled();
  assert.equal((await second.generate("x", { ...GREEDY, max_tokens: 2 })).tokens.length, 2); // loaded again in the same one
  own.die();
  await settled();
  await assert.rejects(second.generate("x"), { lost: true });
});

test("a closed model says so", async () => {
  const { llm, engine } = await loaded();
  engine().hold();
  const pending = assert.rejects(llm.generate("x"), /this model was closed/);
  await settled();
  llm.close();
  llm.close();
  await pending;
  await assert.rejects(llm.generate("x"), /this model was closed/);
});

test("loading tells how far it is, and can be aborted", async () => {
  /** @type {any[]} */
  const told = [];
  const { llm } = await loaded({ onProgress: (/** @type {any} */ progress) => told.push(progress) });
  assert.deepEqual(told, [{ file: "weights.safetensors", loaded: 5, total: 10, phase: "download" }]);
  llm.close();
  await assert.rejects(loaded({ onProgress() { throw new Error("of the page"); } }), /of the page/);
  const bridge = madeBridge();
  bridge.hangs = true;
  const controller = new AbortController();
  const options = { engine: /** @type {const} */ ("javascript"), worker: workers(bridge).make, urls: given.urls, signal: controller.signal };
  const loading = EmbedLLM.load("https://m.test/", options);
  setTimeout(() => controller.abort(), 20);
  await assert.rejects(loading, { name: "AbortError" });
});

test("the cache and the devices are asked of a worker of their own", async () => {
  /** @type {string[]} */
  const removed = [];
  const store = { list: async () => [{ url: "u" }], remove: async (/** @type {string} */ url) => removed.push(url) > 0, usage: async () => ({ models: 1 }) };
  const { make } = workers(madeBridge(), store);
  assert.deepEqual(await EmbedLLM.cache.list({ worker: make }), [{ url: "u" }]);
  assert.equal(await EmbedLLM.cache.remove("https://m.test/x", { worker: make }), true);
  assert.deepEqual(removed, ["https://m.test/x"]);
  assert.deepEqual(await EmbedLLM.cache.usage({ worker: make }), { models: 1 });
  assert.equal((await EmbedLLM.devices({ worker: make }))[0].name, "webgpu");
});

test("questions leave no listener on a page's own worker", async () => {
  const { make } = workers(madeBridge(), { list: async () => [] });
  const worker = make();
  for (let time = 0; time < 3; time++) await EmbedLLM.cache.list({ worker });
  assert.deepEqual(["message", "messageerror", "error"].map((kind) => getEventListeners(worker, kind).length), [0, 0, 0]);
});
