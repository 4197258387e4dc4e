// A page's end of its worker: requests by number, their chunks in order, and an end to all of them when it dies.

import { watchLife } from "../worker/worker_liveness.js";
import { cancelledChunk, lostError, remade } from "../worker/protocol.js";

/** @import { Chunk, Params, Port, Progress, Reply, ToPage } from "../worker/protocol.js" */

/**
 * A request that was sent. started: false while it waits for its turn.
 *
 * @typedef {{tell: (message: any) => void, fail: (error: unknown) => void, started: boolean}} Pending
 */

let last = 0; // number of a request; a page's worker may have several links
let links = 0;

export class Link {
  /** why nothing more will come of it @type {Error | null} */
  ended = null;
  /** whether the worker is of no use any more, not only its model */
  isDead = false;
  #number = ++links; // of the model, in the worker: requests go to the one that this link loaded
  #port;
  #onLost;
  #hasHeard = false; // of the worker
  #died;
  #closing = new AbortController();
  /** @type {Map<number, Pending>} */
  #pending = new Map();

  /** @param {Port} port @param {(error: Error) => void} onLost when the worker or its device is gone */
  constructor(port, onLost) {
    this.#port = port;
    this.#onLost = onLost;
    const died = (this.#died = (/** @type {string} */ how) => {
      this.isDead = true;
      const remedy = this.#hasHeard
        ? "The next request loads the model again."
        : "Check that worker.js and what it imports can be fetched, and that the page's policy allows it (worker-src).";
      this.#lose(lostError(`the worker of the model ${how}. ${remedy}`));
    });
    /** @param {string} kind @param {(event: any) => void} listener */
    const listen = (kind, listener) => port.addEventListener(kind, listener, { signal: this.#closing.signal });
    listen("message", (/** @type {MessageEvent<ToPage>} */ { data }) => this.#take(data));
    listen("messageerror", () => died("sent what cannot be read"));
    listen("error", (/** @type {ErrorEvent} */ event) => {
      event.preventDefault?.(); // told to whoever waits
      died(event.message ? `failed: ${event.message}` : this.#hasHeard ? "is gone" : "cannot be started");
    });
    listen("close", () => died("is gone"));
    port.start?.();
  }

  /**
   * The result of a request; aborting rejects with the signal's reason at once.
   *
   * @template {keyof Params} M
   * @param {M} method
   * @param {Params[M]} params
   * @param {{signal?: AbortSignal, onProgress?: (progress: Progress) => void}} [options]
   * @returns {Promise<any>}
   */
  call(method, params, { signal, onProgress } = {}) {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const abort = () => {
        this.#drop(id);
        settled();
        reject(signal?.reason);
      };
      const settled = () => {
        signal?.removeEventListener("abort", abort);
        this.#pending.delete(id);
      };
      const tell = (/** @type {any} */ message) => {
        if ("result" in message) return settled(), resolve(message.result);
        try {
          if (message.progress) onProgress?.(message.progress);
        } catch (error) {
          this.#drop(id);
          settled();
          reject(error);
        }
      };
      const id = this.#send(method, params, { tell, fail: (error) => (settled(), reject(error)), started: false });
      signal?.addEventListener("abort", abort, { once: true });
    });
  }

  /**
   * The chunks of a reply. Aborting ends it with a chunk whose finish_reason is "cancelled": at once while it waits for
   * its turn, else at its next step. Leaving the loop early cancels it too.
   *
   * @param {Reply} reply
   * @param {AbortSignal} [signal]
   * @returns {AsyncGenerator<Chunk, void, void>}
   */
  async *stream(reply, signal) {
    /** @type {Chunk[]} */
    const chunks = [];
    /** @type {{error: unknown} | null} */
    let failure = null;
    let wake = () => {};
    const pending = {
      started: false,
      tell: (/** @type {any} */ message) => void (message.chunk && (chunks.push(message.chunk), wake())),
      fail: (/** @type {unknown} */ error) => ((failure = { error }), wake()),
    };
    const id = this.#send("reply", reply, pending);
    const abort = () => {
      if (pending.started) return this.#port.postMessage({ cancel: id });
      this.#drop(id);
      chunks.push(cancelledChunk());
      wake();
    };
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();
    try {
      while (true) {
        for (let chunk = chunks.shift(); chunk; chunk = chunks.shift()) {
          if (chunk.finish_reason !== null) this.#pending.delete(id);
          yield chunk;
          if (chunk.finish_reason !== null) return;
        }
        if (failure) throw /** @type {{error: unknown}} */ (failure).error;
        await new Promise((resolve) => (wake = () => resolve(undefined)));
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      this.#drop(id);
    }
  }

  /**
   * Tells the worker something that nobody waits for.
   *
   * @template {keyof Params} M
   * @param {M} method
   * @param {Params[M]} params
   */
  tell(method, params) {
    this.#port.postMessage({ id: ++last, link: this.#number, method, params });
  }

  /** Rejects what is under way and ends the worker. @param {Error} error */
  close(error) {
    this.#fail(error);
    this.#closing.abort();
    if (this.#port.terminate) this.#port.terminate();
    else this.#port.close?.();
  }

  /** @param {keyof Params} method @param {unknown} params @param {Pending} pending */
  #send(method, params, pending) {
    if (this.ended) throw this.ended;
    const id = ++last;
    this.#port.postMessage({ id, link: this.#number, method, params }); // throws for what cannot be posted, such as a function
    this.#pending.set(id, pending);
    return id;
  }

  /** Ends a request that nobody waits for any more. @param {number} id */
  #drop(id) {
    if (this.#pending.delete(id) && !this.ended) this.#port.postMessage({ cancel: id });
  }

  /** @param {ToPage} message */
  #take(message) {
    this.#hasHeard = true;
    if ("lost" in message) return void (message.link === this.#number && this.#lose(remade(message.lost)));
    if ("life" in message) return watchLife(message.life, this.#closing.signal, () => this.#died("is gone"));
    const pending = this.#pending.get(message.id);
    if (!pending) return; // ended here before
    if ("started" in message) pending.started = true;
    else if ("error" in message) this.#pending.delete(message.id), pending.fail(remade(message.error));
    else pending.tell(message);
  }

  /** @param {Error} error */
  #lose(error) {
    if (this.ended) return;
    this.#fail(error);
    this.#onLost(error);
  }

  /** @param {Error} error */
  #fail(error) {
    this.ended ??= error;
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const { fail } of pending) fail(error);
  }
}
