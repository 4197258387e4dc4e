// What a worker does with the requests of its page: the model's take turns, the others are answered as they come.

import { cancelledChunk, posted } from "./protocol.js";
import { Turns } from "./request_queue.js";

/**
 * @import { About, Chunk, Load, Params, Port, Progress, Reply, ToPage, ToWorker } from "./protocol.js"
 * @typedef {Exclude<ToWorker, {cancel: number}>} Asked
 * @import { Urls } from "../libraries.js"
 * @import { Device } from "../engine/engine.js"
 * @import { Kind, SavedConversations } from "../storage/saved_conversations.js"
 * @import { Session } from "../engine/session.js"
 */

/**
 * A model that an engine has loaded. reply() gives chunks until the last one, which has a finish_reason.
 *
 * @typedef {{signal: AbortSignal, onChunk: (chunk: Chunk) => void}} Replying
 * @typedef {{about: About, kind: Kind, reply: (reply: Reply, replying: Replying) => Promise<void>,
 *   held: (conversation: number) => {session: Moved, tokens: number[]} | null,
 *   hold: (conversation: number, tokens: number[]) => Moved,
 *   forget: (conversation: number) => void, close: () => void}} Opened kind: of its KV caches; held: a conversation's
 *   session and the tokens in it; hold: a new session of a conversation, which the caller puts these tokens' KV into
 * @typedef {Pick<Session, "exportState" | "importState">} Moved
 */

/**
 * onLost: called when the device has failed, and the model is of no use any more.
 *
 * @typedef {{onProgress: (progress: Progress) => void, onLost: (error: unknown) => void, signal: AbortSignal}} Opening
 * @typedef {(load: Load, opening: Opening) => Promise<Opened>} OpenModel
 */

/**
 * What serve() works with; tests give other things.
 *
 * @typedef {{list: () => Promise<unknown>, remove: (url: string) => Promise<unknown>, usage: () => Promise<unknown>}} Stored
 * @typedef {{engines: Record<string, OpenModel>, devices: (urls: Urls) => Promise<Device[]>,
 *   rememberTrial: (trial: Params["rememberTrial"]) => Promise<void>,
 *   store: (urls: Urls) => Promise<Stored>, conversations: () => Promise<SavedConversations>}} Means
 */

/**
 * Answers what comes through a port, until it is closed.
 *
 * @param {Port} port
 * @param {Means} means
 */
export function serve(port, means) {
  const serving = new Serving((message) => port.postMessage(message), means);
  port.addEventListener("message", (/** @type {MessageEvent<ToWorker>} */ { data }) => serving.take(data));
  port.start?.();
}

class Serving {
  #send;
  #means;
  #turns = new Turns();
  /** @type {Opened | null} */
  #model = null;
  #link = 0; // that loaded it, or tried to
  /** @type {Record<string, (request: Asked, signal: AbortSignal) => Promise<unknown>>} */
  #inTurn = {
    load: (request, signal) => this.#load(request, signal),
    reply: (request, signal) => this.#reply(request, signal),
    save: (request) => this.#save(request),
    restore: (request) => this.#restore(request),
  };

  /** @param {(message: ToPage) => void} send @param {Means} means */
  constructor(send, means) {
    this.#send = send;
    this.#means = means;
  }

  /** @param {ToWorker} message */
  take(message) {
    if ("cancel" in message) return this.#turns.cancel(message.cancel);
    const { id, method } = message;
    if (Object.hasOwn(this.#inTurn, method)) return this.#queue(message);
    if (method === "forget") return this.#forget(message);
    return void this.#answer(id, () => this.#ask(message));
  }

  /** @param {Asked} request */
  #queue(request) {
    const { id, method } = request;
    const drop = () => {
      if (method === "reply") this.#send({ id, chunk: cancelledChunk() });
      this.#send({ id, error: posted(new DOMException("The request was cancelled.", "AbortError")) });
    };
    /** @param {AbortSignal} signal */
    const run = (signal) => {
      this.#send({ id, started: true });
      return this.#answer(id, () => this.#inTurn[method](request, signal));
    };
    try {
      this.#turns.add(request, run, drop);
    } catch (error) {
      this.#send({ id, error: posted(error) });
    }
  }

  /** Frees the KV cache of a conversation, when no reply runs on it. @param {Asked} request */
  #forget(request) {
    const { id, link, params } = request;
    const run = () => this.#answer(id, async () => void (link === this.#link && this.#model?.forget(params.conversation)));
    this.#turns.add(request, run, () => {}, { isCounted: false });
  }

  /** @param {number} id @param {() => Promise<unknown>} work */
  async #answer(id, work) {
    try {
      this.#send({ id, result: (await work()) ?? null });
    } catch (error) {
      this.#send({ id, error: posted(error) });
    }
  }

  /** @param {Asked} request @param {AbortSignal} signal @returns {Promise<About>} */
  async #load({ id, link, params: load }, signal) {
    signal.throwIfAborted();
    this.#close(); // two might not fit
    this.#link = link;
    /** @type {Opened | null} */
    let model = null;
    const onProgress = (/** @type {Progress} */ progress) => this.#send({ id, progress });
    const onLost = (/** @type {unknown} */ error) => {
      if (model !== null && this.#model === model) this.#lose(error); // the GPU of one that was closed is lost, too
    };
    model = await this.#means.engines[load.engine](load, { signal, onProgress, onLost });
    if (signal.aborted) {
      model.close();
      throw signal.reason;
    }
    this.#model = model;
    return model.about;
  }

  /** @param {Asked} request @param {AbortSignal} signal */
  async #reply({ id, link, params: reply }, signal) {
    const onChunk = (/** @type {Chunk} */ chunk) => this.#send({ id, chunk });
    await this.#loaded(link).reply(reply, { signal, onChunk });
  }

  /** @param {Asked} request */
  async #save({ link, params: { conversation, name, saved } }) {
    const model = this.#loaded(link);
    const held = model.held(conversation);
    const state = held ? await held.session.exportState() : [];
    const tokens = held?.tokens ?? [];
    await (await this.#means.conversations()).save(name, { saved, kind: model.kind, tokens, state });
  }

  /** @param {Asked} request */
  async #restore({ link, params: { conversation, name } }) {
    const model = this.#loaded(link);
    const { saved, tokens, state } = await (await this.#means.conversations()).read(name, model.kind);
    if (!tokens.length) return saved;
    try {
      await model.hold(conversation, tokens).importState(state, tokens);
    } catch (error) {
      model.forget(conversation);
      throw error;
    }
    return saved;
  }

  /** The model of a link. @param {number} link */
  #loaded(link) {
    if (this.#link && link !== this.#link) {
      throw new RangeError(
        "another model was loaded in this one's worker, which holds one. Load this one again, or give each a worker of its own.",
      );
    }
    if (this.#model === null) throw new RangeError("no model is loaded here. Send 'load' first.");
    return this.#model;
  }

  /** @param {Asked} request @returns {Promise<unknown>} */
  async #ask({ link, method, params }) {
    if (method === "unload") return this.#unload(link);
    if (method === "rememberTrial") return this.#means.rememberTrial(params);
    if (method === "devices") return this.#means.devices(params.urls);
    if (method === "listConversations") return (await this.#means.conversations()).list();
    if (method === "removeConversation") return (await this.#means.conversations()).remove(params.name);
    const store = await this.#means.store(params.urls);
    if (method === "remove") return store.remove(params.url);
    if (method === "list") return store.list();
    if (method === "usage") return store.usage();
    throw new RangeError(`there is no method '${method}'.`);
  }

  /** The device failed: whoever waits is told by the page, which hears of it first. @param {unknown} error */
  #lose(error) {
    this.#send({ lost: posted(error, true), link: this.#link });
    void this.#unload(this.#link);
  }

  /** Ends what is under way of a link, and frees its model, if it is still loaded. @param {number} link */
  async #unload(link) {
    const model = link === this.#link ? this.#model : null;
    if (model) this.#model = null;
    await this.#turns.clear(link);
    model?.close();
  }

  #close() {
    const model = this.#model;
    this.#model = null;
    model?.close();
  }
}
