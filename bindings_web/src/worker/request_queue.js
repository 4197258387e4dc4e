// The requests of a model, one at a time, in the order in which they came.

import { EmbedError } from "../errors.js";

const QUEUED = 16; // that may wait

/**
 * @typedef {{id: number, link: number, run: (signal: AbortSignal) => Promise<void>, drop: () => void, isCounted: boolean}} Turn
 *   isCounted: among those that may wait
 */

export class Turns {
  /** @type {Turn[]} */
  #waiting = [];
  /** @type {{id: number, link: number, controller: AbortController, ended: Promise<void>} | null} */
  #running = null;

  /**
   * Queues a request. Throws EmbedError when too many wait.
   *
   * @param {{id: number, link: number}} request
   * @param {(signal: AbortSignal) => Promise<void>} run  tells itself of its errors
   * @param {() => void} drop  called in its place when it is cancelled while it waits
   * @param {{isCounted?: boolean}} [options]
   */
  add({ id, link }, run, drop, { isCounted = true } = {}) {
    if (isCounted && this.#waiting.filter((turn) => turn.isCounted).length >= QUEUED) {
      throw new EmbedError(`${QUEUED} requests wait already. Send the next one when one of them is answered.`);
    }
    this.#waiting.push({ id, link, run, drop, isCounted });
    if (this.#running === null) void this.#go();
  }

  /** Ends a request: at once while it waits, else at its next step. One that is unknown has ended. @param {number} id */
  cancel(id) {
    if (this.#running?.id === id) return this.#running.controller.abort();
    const place = this.#waiting.findIndex((turn) => turn.id === id);
    if (place >= 0) this.#waiting.splice(place, 1)[0].drop();
  }

  /** Ends those of a link; when the one that runs has ended. @param {number} link */
  async clear(link) {
    for (const turn of this.#waiting.filter((turn) => turn.link === link)) this.cancel(turn.id);
    if (this.#running?.link !== link) return;
    this.#running.controller.abort();
    await this.#running.ended;
  }

  async #go() {
    for (let turn = this.#waiting.shift(); turn; turn = this.#waiting.shift()) {
      const controller = new AbortController();
      const ended = turn.run(controller.signal);
      this.#running = { id: turn.id, link: turn.link, controller, ended };
      await ended;
      this.#running = null;
    }
  }
}
