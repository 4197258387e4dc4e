// A page's own worker, which loads one model after the other: a request reaches the model that it was meant for, or none.

import assert from "node:assert/strict";
import test, { after } from "node:test";

import { EmbedLLM } from "../../../bindings_web/src/index.js";
import { SavedConversations } from "../../../bindings_web/src/storage/saved_conversations.js";
import { all, endWorkers, given, lose, madeBridge, madePlace, settled, workers } from "./api.mjs";

after(endWorkers);

const TWO = { temperature: 0, stop_tokens: [], max_tokens: 2 };
const REPLACED = { name: "RangeError", message: /another model was loaded in this one's worker/ };

/** A page's worker, and what loads a model in it. */
async function ownWorker() {
  const bridge = madeBridge();
  const worker = workers(bridge, undefined, new SavedConversations(await madePlace(), "")).make();
  const options = { engine: /** @type {const} */ ("javascript"), worker, urls: given.urls };
  const load = (/** @type {string} */ name) => EmbedLLM.load(`https://m.test/${name}/`, options);
  return { bridge, load };
}

test("the model that was loaded before is refused, and closing it leaves the new one", async () => {
  const { load } = await ownWorker();
  const old = await load("old");
  const talk = old.conversation();
  await all(talk.say("hello", TWO));
  const next = await load("next");
  await assert.rejects(old.generate("x", TWO), REPLACED);
  await assert.rejects(all(talk.say("more", TWO)), REPLACED);
  await assert.rejects(talk.save("a talk"), REPLACED);
  await assert.rejects(old.openConversation("a talk"), REPLACED);
  old.close();
  await settled();
  for (let turn = 0; turn < 2; turn++) assert.equal((await next.generate("x", TWO)).tokens.length, 2);
  await assert.rejects(old.generate("x", TWO), /this model was closed/);
  next.close();
});

test("closing a model neither ends nor skips the load of the next one", async () => {
  const { bridge, load } = await ownWorker();
  const old = await load("old");
  bridge.engines[0].hold();
  const running = assert.rejects(old.generate("x"), /this model was closed/);
  const waiting = load("next"); // in the queue, behind that reply
  await settled();
  old.close();
  await running;
  const next = await waiting;
  const last = load("last");
  next.close(); // while it loads
  assert.equal((await (await last).generate("x", TWO)).tokens.length, 2);
});

test("a device that is lost is told to the model that it was of, and to no other", async () => {
  const { bridge, load } = await ownWorker();
  const old = await load("old");
  const next = await load("next");
  lose(bridge.engines[1]);
  await settled();
  await assert.rejects(old.generate("x", TWO), REPLACED);
  assert.equal((await next.generate("x", TWO)).tokens.length, 2); // loaded again
});
