// Conversations that are kept on disk, over a worker behind a MessageChannel and a place in memory.

import assert from "node:assert/strict";
import test, { after, mock } from "node:test";

import { EmbedLLM } from "../../../bindings_web/src/index.js";
import { SavedConversations } from "../../../bindings_web/src/storage/saved_conversations.js";
import { all, endWorkers, given, loaded, madeBridge, madePlace, textOf, workers } from "./api.mjs";

after(endWorkers);

const GREEDY = { temperature: 0, stop_tokens: [], max_tokens: 6 };
const KEY = Buffer.from("a/b \u00fc").toString("hex"); // of NAME
const NAME = "a/b \u00fc";
const TOOLS = [{ type: "function", function: { name: "now" } }];

/** A place with one conversation of two turns in it, and what a third turn of it gives. @param {object} [options] */
async function written(options = {}) {
  const place = await madePlace();
  const conversations = new SavedConversations(place, "");
  const { llm } = await loaded(options, madeBridge(), conversations);
  const talk = llm.conversation({ system: "be brief", tools: TOOLS });
  await all(talk.say("hello", GREEDY));
  await all(talk.say("and now", GREEDY));
  await talk.save(NAME);
  const saved = talk.save();
  const third = await all(talk.say("once more", GREEDY));
  llm.close();
  return { place, conversations, saved, third };
}

/** The third turn after the conversation was opened, and what the console was told. */
async function thirdTurn(/** @type {SavedConversations} */ conversations, bridge = madeBridge(), options = {}) {
  const warn = mock.method(console, "warn", () => {});
  const { llm } = await loaded(options, bridge, conversations);
  try {
    const talk = await llm.openConversation(NAME);
    const saved = talk.save();
    const chunks = await all(talk.say("once more", GREEDY));
    return { saved, chunks, cached: chunks[0].statistics.cached_tokens, warned: warn.mock.calls.map((call) => call.arguments[0]) };
  } finally {
    warn.mock.restore();
    llm.close();
  }
}

/** Changes the file of NAME. @param {any} place @param {(bytes: Uint8Array) => Uint8Array} change */
async function damage(place, change) {
  const bytes = new Uint8Array(await (await place.file(KEY)).arrayBuffer());
  const part = await place.part(KEY);
  part.cut(0);
  part.append(change(bytes));
  await part.finish();
}

for (const engine of given.urls.wheel ? ["javascript", "python"] : ["javascript"]) {
  test(`an opened conversation goes on where it was saved: ${engine}`, async () => {
    const { conversations, saved, third } = await written({ engine });
    const found = await thirdTurn(conversations, madeBridge(), { engine });
    assert.deepEqual(found.saved, saved);
    assert.equal(textOf(found.chunks), textOf(third));
    assert.equal(found.cached, third[0].statistics.cached_tokens);
    assert.ok(found.cached > 50);
    assert.deepEqual(found.warned, []);
  });
}

test("the KV of another model, device or type is not used", async () => {
  const { conversations, saved, third } = await written();
  for (const [change, reason] of /** @type {[object, RegExp][]} */ ([
    [{ weights: "x" }, /of another model/],
    [{ graph: "x" }, /of another model/],
    [{ context: 5 }, /it has \d+ tokens, and the model was loaded with a context of 5/],
    [{ device: "webgpu", type: "float16" }, /on 'formula' in float32, and the model is on 'webgpu' in float16/],
  ])) {
    const bridge = madeBridge();
    Object.assign(bridge.kind, change);
    const found = await thirdTurn(conversations, bridge);
    assert.match(found.warned[0], /KV cache of the conversation 'a\/b \u00fc' is not used/);
    assert.match(found.warned[0], reason);
    assert.deepEqual([found.warned.length, found.cached], [1, 0]);
    assert.deepEqual(found.saved, saved);
    assert.equal(textOf(found.chunks), textOf(third));
  }
});

test("a damaged KV is not used, a damaged history is refused", async () => {
  const { place, conversations, saved, third } = await written();
  const flipped = (/** @type {number} */ at) => (/** @type {Uint8Array} */ bytes) => bytes.with(at < 0 ? bytes.length + at : at, 255);
  for (const change of [flipped(-3), (/** @type {Uint8Array} */ bytes) => bytes.subarray(0, -4)]) {
    await damage(place, change);
    const found = await thirdTurn(conversations);
    assert.match(found.warned[0], /because it is damaged/);
    assert.equal(found.cached, 0);
    assert.deepEqual([found.saved, textOf(found.chunks)], [saved, textOf(third)]);
  }
  for (const change of [flipped(60), flipped(2), flipped(9), (/** @type {Uint8Array} */ bytes) => bytes.subarray(0, 20)]) {
    await damage(place, change);
    await assert.rejects(thirdTurn(conversations), { name: "EmbedError", message: /'a\/b \u00fc' is damaged. Remove it/ });
  }
});

test("a conversation without a KV cache is saved too", async () => {
  const conversations = new SavedConversations(await madePlace(), "");
  const { llm } = await loaded({}, madeBridge(), conversations);
  const talk = llm.conversation({ messages: [{ role: "user", content: "hello" }, { role: "assistant", content: "hi" }] });
  await talk.save(NAME);
  const { saved, warned, cached } = await thirdTurn(conversations);
  assert.deepEqual([saved, warned, cached], [talk.save(), [], 0]);
  llm.close();
});

test("saving writes all or nothing, and says what it lacks", async () => {
  const { place, conversations, saved } = await written();
  const { llm } = await loaded({}, madeBridge(), conversations);
  const talk = await llm.openConversation(NAME);
  talk.messages.push({ role: "user", content: "more" });
  const { part } = place;
  place.part = async (key) => {
    const made = await part(key);
    let left = 2;
    const append = (/** @type {Uint8Array} */ piece) => {
      if (left-- === 0) throw new DOMException("the disk is full", "QuotaExceededError");
      made.append(piece);
    };
    return { ...made, append };
  };
  await assert.rejects(talk.save(NAME), { name: "PackageError", message: /no room for the conversation 'a\/b \u00fc': \d+ bytes are needed/ });
  place.part = part;
  assert.equal((await place.sizes()).get(`${KEY}.part`), 0);
  assert.deepEqual((await thirdTurn(conversations)).saved, saved);
  await assert.rejects(talk.save(""), { name: "RangeError", message: /has 0 bytes; expected a text of 1 to 120 bytes/ });
  await assert.rejects(talk.save("\u00fc".repeat(61)), /has 122 bytes/);
  await assert.rejects(talk.save(/** @type {any} */ (5)), /is a number/);
  talk.messages.push(/** @type {any} */ ({ content: "no role" }));
  await assert.rejects(talk.save(NAME), /expected an object with a 'role'/);
  await assert.rejects(llm.openConversation("other"), { name: "RangeError", message: /no saved conversation 'other'; saved are: 'a\/b \u00fc'/ });
  const running = llm.conversation();
  const chunks = running.say("x", GREEDY);
  await chunks.next();
  await assert.rejects(running.save(NAME), /a reply under way/);
  await chunks.return();
  const nowhere = new SavedConversations({ ...place, isDisk: false }, "no storage");
  const other = await loaded({}, madeBridge(), nowhere);
  await assert.rejects(other.llm.conversation().save("x"), { name: "EmbedError", message: /cannot be stored here \(no storage\)/ });
  other.llm.close();
  llm.close();
});

test("a KV that the device does not take is an error, and the conversation is forgotten", async () => {
  const { conversations } = await written();
  const { llm, engine } = await loaded({}, madeBridge(), conversations);
  engine().failure = new RangeError("no memory");
  await assert.rejects(llm.openConversation(NAME), /no memory/);
  assert.equal(engine().counts.closed, 1);
  llm.close();
});

test("saved conversations are listed, counted and removed; what a dead tab left is emptied", async () => {
  const { place, conversations } = await written();
  const left = await place.part("6f");
  left.append(new Uint8Array(1000));
  left.close(); // never finished
  const before = await conversations.bytes();
  const { llm } = await loaded({}, madeBridge(), conversations);
  await llm.conversation().save("second");
  assert.ok((await conversations.bytes()) < before);
  const { make } = workers(madeBridge(), undefined, conversations);
  const placed = { worker: make };
  const listed = await EmbedLLM.conversations.list(placed);
  assert.deepEqual(listed.map(({ name }) => name).sort(), [NAME, "second"]);
  assert.ok(listed.every(({ bytes }) => bytes > 100));
  assert.equal(await EmbedLLM.conversations.remove("second", placed), true);
  assert.equal(await EmbedLLM.conversations.remove("second", placed), false);
  assert.deepEqual((await EmbedLLM.conversations.list(placed)).map(({ name }) => name), [NAME]);
  llm.close();
});
