// Runs a grammar byte by byte: the states are made when they are first reached, and kept.
//
// A text that is begun is a stack of what is still to be read, a linked list of frames. A state is the set of stacks
// that the bytes so far allow. Equal frames and equal states are one object, so that a string's next character leads back to
// the same state, and a walk over the vocabulary looks up one entry of a table per byte.

import { body, nullable } from "./check.js";

/** @import { Expression } from "./expression.js" */

/**
 * The expression to read next and what comes after it. count: bytes of a text or rounds of a repeat that are done.
 *
 * @typedef {{id: number, expression: Expression, count: number, below: Frame | null, sameAs: number}} Frame
 */

/**
 * isWhole: the text may end here. frames: each reads a byte next. next: by byte, null where no text goes on.
 *
 * @typedef {{isWhole: boolean, frames: Frame[], next: (State | null)[] | null, sameAs: string | null}} State
 */

// States and frames kept before all are forgotten, at some 2 KB each; those in use live on.
const MOST_STATES = 20_000;

/** The states of one grammar. */
export class Automaton {
  #longest;
  #empty;
  /** @type {Map<Expression, number>} */
  #numbers = new Map();
  /** @type {Map<string, Frame>} */
  #frames = new Map();
  /** @type {Map<string, State>} */
  #states = new Map();
  /** @type {Map<string, number>} */
  #classes = new Map();
  #made = 0;

  /**
   * @param {Expression} root as checked() gives it
   * @param {number} longest bytes of the longest token: counts that differ further ahead are not told apart
   */
  constructor(root, longest) {
    this.#longest = longest;
    this.#empty = nullable(root);
    /** Nothing read yet. */
    this.start = this.#state([this.#frame(root, 0, null)]);
  }

  /**
   * By byte, the state it leads to.
   *
   * @param {State} state
   * @returns {(State | null)[]}
   */
  next(state) {
    if (state.next) return state.next;
    /** @type {string[]} */
    const takers = new Array(256).fill("");
    state.frames.forEach(({ expression, count }, place) => {
      if (expression.kind === "text") takers[expression.bytes[count]] += `${place},`;
      else if (expression.kind === "set") {
        for (let byte = 0; byte < 256; byte++) if (expression.members[byte]) takers[byte] += `${place},`;
      }
    });
    /** @type {Map<string, State | null>} */
    const known = new Map([["", null]]);
    state.next = takers.map((key) => {
      let found = known.get(key);
      if (found === undefined) {
        const read = key.slice(0, -1).split(",");
        found = this.#state(read.map((place) => this.#after(state.frames[Number(place)])));
        known.set(key, found);
      }
      return found;
    });
    return state.next;
  }

  /**
   * The same string for states after which the same tokens may come.
   *
   * @param {State} state
   * @returns {string}
   */
  sameAs(state) {
    state.sameAs ??= state.frames.map((frame) => frame.sameAs).sort((one, other) => one - other) + `|${state.isWhole}`;
    return state.sameAs;
  }

  /** @param {Frame} frame @returns {Frame | null} what is left when its byte is read */
  #after({ expression, count, below }) {
    const isLonger = expression.kind === "text" && count + 1 < expression.bytes.length;
    return isLonger ? this.#frame(expression, count + 1, below) : below;
  }

  /** @param {(Frame | null)[]} stacks @returns {State} */
  #state(stacks) {
    /** @type {Set<Frame | null>} */
    const seen = new Set(stacks);
    /** @type {Frame[]} */
    const frames = [];
    for (const frame of seen) {
      if (frame === null) continue;
      const { expression, count, below } = frame;
      switch (expression.kind) {
        case "text":
        case "set":
          frames.push(frame);
          break;
        case "choice":
          for (const item of expression.items) seen.add(this.#frame(item, 0, below));
          break;
        case "rule":
          seen.add(this.#frame(body(expression), 0, below));
          break;
        case "sequence": {
          const left = count + 1 < expression.items.length ? this.#frame(expression, count + 1, below) : below;
          seen.add(expression.items.length ? this.#frame(expression.items[count], 0, left) : below);
          break;
        }
        case "repeat": {
          const { item, most } = expression;
          const least = this.#empty.has(item) ? 0 : expression.least;
          if (count >= least) seen.add(below);
          const done = most === Infinity ? Math.min(count + 1, least) : count + 1;
          if (count < most) seen.add(this.#frame(item, 0, done < most ? this.#frame(expression, done, below) : below));
        }
      }
    }
    const isWhole = seen.has(null);
    const key = `${frames.map((frame) => frame.id).sort((one, other) => one - other)}|${isWhole}`;
    let state = this.#states.get(key);
    if (!state) {
      if (this.#states.size >= MOST_STATES) {
        for (const old of this.#states.values()) old.next = null; // else the first state would hold all others
        this.#states.clear();
        this.#frames.clear();
      }
      state = { isWhole, frames, next: null, sameAs: null };
      this.#states.set(key, state);
    }
    return state;
  }

  /** @param {Expression} expression @param {number} count @param {Frame | null} below @returns {Frame} */
  #frame(expression, count, below) {
    const number = this.#number(expression);
    const key = `${number},${count},${below?.id ?? -1}`;
    let frame = this.#frames.get(key);
    if (!frame) {
      const sameAs = this.#class(`${number},${this.#ahead(expression, count)},${below?.sameAs ?? -1}`);
      frame = { id: this.#made++, expression, count, below, sameAs };
      this.#frames.set(key, frame);
    }
    return frame;
  }

  /** @param {Expression} expression @param {number} count what one token can see of a count */
  #ahead(expression, count) {
    if (expression.kind !== "repeat") return count;
    const far = this.#longest + 1;
    return `${Math.min(Math.max(expression.least - count, 0), far)}-${Math.min(expression.most - count, far)}`;
  }

  /** @param {string} key @returns {number} */
  #class(key) {
    const known = this.#classes.get(key) ?? this.#classes.size;
    this.#classes.set(key, known);
    return known;
  }

  /** @param {Expression} expression @returns {number} */
  #number(expression) {
    const known = this.#numbers.get(expression) ?? this.#numbers.size;
    this.#numbers.set(expression, known);
    return known;
  }
}
