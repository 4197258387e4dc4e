// One sequence on a device of the browser: how far it has come, and what it may be fed.

import { ContextFull, DeviceError, EmbedError, ImageIsGone, Interrupted } from "../errors.js";
import { ArrayLogits } from "../sampling/array_logits.js";
import { breathe } from "../worker/yield_to_events.js";

/**
 * @import { Draws } from "./next_token.js"
 * @import { ImageFeatures } from "../images/features.js"
 * @import { HostSteps } from "./wasm_steps.js"
 * @import { GpuSteps } from "./webgpu_steps.js"
 * @typedef {HostSteps | GpuSteps} Steps
 * @typedef {{context: number, vocabulary: number, chunk: number, remedy: string, draws: () => Draws | null,
 *   images: () => ImageFeatures | null,
 *   fail: (error: unknown) => Promise<Error>,
 *   alone: <T>(work: () => Promise<T>) => Promise<T>, after: <T>(work: () => Promise<T>) => Promise<T>}} Limits what a
 *   session asks of its engine; draws: how tokens will be chosen, if that is known; alone: runs one step at a time, on a
 *   device that works; after: also on one that failed
 */

/** @type {Draws} the choice of the best token */
const GREEDY = { temperature: 0, top_k: 0, top_p: 1, min_p: 0, uniform: () => 0 };
const FIRST = 256; // tokens; a capacity is this, doubled as often as it takes

export class Session {
  /** tokens held */
  position = 0;
  /** which they are, at least: images among them may move positions @type {number[]} */
  held = [];
  #steps;
  #limits;
  #wanted;
  /** @type {ArrayLogits | null} what the latest feed gave */
  #row = null;
  /** @type {Draws | null} how its token will be chosen */
  #draws = null;
  #stopping = false;
  #closed = false;

  /** @param {Steps} steps @param {Limits} limits @param {number} capacity tokens there will be room for at the start */
  constructor(steps, limits, capacity) {
    this.#steps = steps;
    this.#limits = limits;
    this.#wanted = capacity;
  }

  /** Most tokens that it holds without taking more memory. */
  get capacity() {
    return this.#steps.capacity;
  }

  /**
   * Appends tokens; the logits after the last of them, valid until the next feed.
   *
   * All of them or none: a feed that fails leaves the session where it was.
   * Rejects with ContextFull, RangeError for no token or a wrong one, Interrupted, DeviceError.
   *
   * @param {ArrayLike<number>} tokens
   * @returns {Promise<ArrayLogits>}
   */
  async feed(tokens) {
    this.#check(tokens);
    const start = this.position;
    const all = Array.from(tokens);
    const known = this.#limits.draws();
    if (this.#row?.wasAsked && known === this.#draws) known?.note?.();
    const draws = known ?? (this.#row?.isGreedy ? GREEDY : null);
    return this.#step(async () => {
      await this.#reserve(start + tokens.length);
      const row = await this.#compute(all, draws);
      this.position = start + tokens.length;
      this.held.length = start;
      for (const token of all) this.held.push(token);
      this.#draws = known;
      return (this.#row = new ArrayLogits(row));
    });
  }

  /** Of the device, which has failed where it fails for anything but what was asked for. @template T @param {() => Promise<T>} work */
  #step(work) {
    return this.#limits.alone(async () => {
      try {
        return await work();
      } catch (error) {
        const isAsked = error instanceof ImageIsGone || (error instanceof EmbedError && !(error instanceof DeviceError));
        throw isAsked ? error : await this.#limits.fail(error);
      }
    });
  }

  /**
   * The row after these tokens, behind those that are held: of which some are fed again where a rewind of a recurrent
   * model has forgotten them.
   *
   * @param {number[]} tokens @param {Draws | null} draws
   */
  async #compute(tokens, draws) {
    const start = this.#steps.start(this.position);
    const all = this.held.slice(start, this.position).concat(tokens);
    let row = new Float32Array(0);
    for (let at = 0, end = 0; at < all.length; at = end) {
      await breathe(); // so that an interruption gets through
      if (this.#stopping) throw new Interrupted();
      end = this.#limits.images()?.endOfRun(all, at, this.#limits.chunk) ?? at + this.#limits.chunk;
      const piece = all.slice(at, end);
      const before = () => this.held.slice(0, start).concat(all.slice(0, at));
      const seen = (await this.#limits.images()?.take(piece, before, () => this.#stopping)) ?? null;
      const run = this.#steps.run(seen?.tokens ?? piece, start + at, draws, seen);
      row = /** @type {Float32Array<ArrayBuffer>} */ (await run);
    }
    return row;
  }

  /** Forgets everything from `position` on. @param {number} position */
  rewind(position) {
    if (!Number.isInteger(position) || position < 0 || position > this.position) {
      throw new RangeError(`cannot rewind to ${position}; the session holds ${this.position} tokens.`);
    }
    this.position = position;
  }

  /** Makes the running feed and every later one reject with Interrupted, until interrupt(false). */
  interrupt(stop = true) {
    this.#stopping = stop;
  }

  /**
   * Copies of the keys and values of the tokens held, and of the states behind them, to be put into a session of the
   * same model on the same kind of device.
   *
   * @returns {Promise<Uint8Array[]>}
   */
  async exportState() {
    this.#open();
    const { position } = this;
    if (!position) return [];
    return this.#step(async () => {
      await this.#compute([], null);
      return this.#steps.read(0, position);
    });
  }

  /** @param {Uint8Array[]} state of exportState() @param {readonly number[]} tokens that it holds; they take the place of all */
  async importState(state, tokens) {
    this.#open();
    const count = tokens.length;
    if (count > this.#limits.context) throw new RangeError(`a state of ${count} tokens does not fit.`);
    await this.#limits.alone(async () => {
      this.position = 0;
      await this.#reserve(count);
      await this.#steps.write(state, 0, count);
      this.position = count;
      this.held = [...tokens];
    });
  }

  /** Gives the memory back. Twice is fine. */
  close() {
    if (this.#closed) return;
    this.#closed = true;
    this.#stopping = true;
    void this.#limits.after(async () => this.#steps.close());
  }

  #open() {
    if (this.#closed) throw new RangeError("this session was closed");
  }

  /** @param {ArrayLike<number>} tokens */
  #check(tokens) {
    this.#open();
    const { context, vocabulary, remedy } = this.#limits;
    if (!tokens.length) throw new RangeError("feed needs at least one token");
    for (let place = 0; place < tokens.length; place++) {
      const token = tokens[place];
      if (!Number.isInteger(token) || token < 0 || (token >= vocabulary && !this.#limits.images()?.has(token))) {
        throw new RangeError(`token id ${token} is outside the vocabulary of ${vocabulary}.`);
      }
    }
    const end = this.position + tokens.length;
    if (end > context) {
      throw new ContextFull(
        `${this.position} tokens are held and ${tokens.length} more were given; ${context} can be held. ` +
          `Shorten the prompt, or ${remedy}.`,
        { tokens: end, limit: context },
      );
    }
    if (this.#stopping) throw new Interrupted();
  }

  /** @param {number} tokens there must be room for */
  async #reserve(tokens) {
    if (tokens <= this.#steps.capacity) return;
    let capacity = Math.max(FIRST, this.#steps.capacity);
    while (capacity < Math.max(tokens, this.#wanted)) capacity *= 2;
    await this.#steps.grow(Math.min(capacity, this.#limits.context), this.position);
  }
}
