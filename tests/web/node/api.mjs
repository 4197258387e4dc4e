// A worker without a browser: what src/worker.js does behind a MessageChannel, over the model of one formula.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { MessageChannel } from "node:worker_threads";

import { openPlace } from "../../../bindings_web/src/storage/opfs.js";
import { openJavaScript } from "../../../bindings_web/src/worker/engine_javascript.js";
import { openPython } from "../../../bindings_web/src/worker/engine_python.js";
import { DeviceError } from "../../../bindings_web/src/errors.js";
import { EmbedLLM } from "../../../bindings_web/src/index.js";
import { serve } from "../../../bindings_web/src/worker/request_server.js";
import { formulaBridge } from "./pyodide.mjs";

/** @import { SavedConversations } from "../../../bindings_web/src/storage/saved_conversations.js" */

/** What pytest gives: see tests/web/test_api.py. */
export const given = JSON.parse(await readFile(process.env.EMBEDLLM_API_TEST ?? "", "utf-8"));

/** @type {any[]} */
const ports = [];

/** Ends all workers, those of tests that failed too; Node would wait for them. */
export function endWorkers() {
  for (const port of ports) port.close();
}

/** A bridge whose engines have what the true ones have beside the formula's. */
export function madeBridge(model = given.model) {
  const kind = { weights: "w", graph: "g", context: model.context, device: "formula", type: "float32" };
  const bridge = Object.assign(formulaBridge(model), { kind });
  const { load } = bridge;
  bridge.load = async (url, options) => {
    const loaded = await load(url, options);
    Object.assign(loaded.engine, { remedy: "export with a larger --context", isLost: false, onLost() {} });
    return { ...loaded, manifest: JSON.parse(model.texts["embedllm.json"]), kind: bridge.kind };
  };
  return bridge;
}

/** The device of an engine fails now. @param {any} engine */
export function lose(engine) {
  engine.failure = new DeviceError("the GPU was lost (unknown).");
  engine.isLost = true;
  engine.release();
  engine.wake();
  engine.onLost(engine.failure);
}

/**
 * Makes workers, and remembers them.
 *
 * @param {any} bridge
 * @param {any} [store]
 * @param {SavedConversations} [conversations]
 */
export function workers(bridge, store, conversations) {
  /** @type {any[]} */
  const made = [];
  const make = () => {
    const { port1, port2 } = new MessageChannel();
    serve(/** @type {any} */ (port2), {
      engines: {
        javascript: (load, opening) => openJavaScript(bridge, load, opening),
        python: (load, opening) => openPython(bridge, load, opening),
      },
      devices: () => bridge.devices(),
      store: async () => store,
      conversations: async () => conversations ?? assert.fail("no conversations are stored"),
    });
    const worker = Object.assign(port1, { terminate: () => port1.close(), die: () => port2.close() });
    made.push(worker);
    ports.push(port1, port2);
    return /** @type {any} */ (worker);
  };
  return { make, made };
}

/** A place for conversations, in memory but said to be a disk. */
export async function madePlace() {
  Object.assign(globalThis, { navigator: globalThis.navigator ?? { userAgent: "Node.js" } }); // Node.js 20 has none
  return { ...(await openPlace()).place, isDisk: true };
}

/**
 * A loaded model, with its bridge and its workers.
 *
 * @param {object} [options] of EmbedLLM.load()
 * @param {any} [bridge]
 * @param {SavedConversations} [conversations]
 */
export async function loaded(options = {}, bridge = madeBridge(), conversations) {
  const { make, made } = workers(bridge, undefined, conversations);
  const urls = given.urls;
  const llm = await EmbedLLM.load("https://models.test/tiny/", { engine: "javascript", worker: make, urls, ...options });
  return { llm, bridge, made, engine: () => /** @type {any} */ (bridge.engines[bridge.engines.length - 1]) };
}

/** Lets messages and what they begin get as far as they can: turns of the loop, as time alone may pass without any. */
export async function settled() {
  await new Promise((resolve) => setTimeout(resolve, 20));
  for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** @param {AsyncIterable<any>} chunks */
export async function all(chunks) {
  const found = [];
  for await (const chunk of chunks) found.push(chunk);
  return found;
}

/** @param {any[]} chunks */
export const textOf = (chunks) => chunks.map(({ text }) => text).join("");
