// The states of a recurrent sequence, which no step takes back: where steps read and write them, and copies to go back to.
//
// The twin of embedllm/backends/sessions/recurrent_session.py. A copy is made where a run of several tokens begins or has
// ended; between two of them tokens are fed again.

/**
 * @import { Decoder } from "./model_shape.js"
 */

/**
 * Where states lie. clear: to zeros.
 *
 * @template {{tensor: number}} T  a state
 * @typedef {{bytesPerValue: number, place: (dims: number[], bytes: number) => T, copy: (from: T[], to: T[]) => void,
 *   clear: (states: T[]) => void, free: (states: T[]) => void}} StateMemory
 */

const MOST = 16; // copies of a sequence
const MOST_BYTES = 128 << 20; // that they take together; one there is always

/** @template {{tensor: number}} T */
export class RecurrentStates {
  #memory;
  #states;
  /** @type {T[][]} */
  #places;
  #place = 0; // of them, that of the sequence as it is
  /** @type {Map<number, T[]>} by how many tokens they have seen, in their order */
  #copies = new Map();
  /** @type {T[][]} that nobody goes back to any more */
  #spare = [];
  #most;
  #seen = 0; // tokens
  #wasMany = false; // the last run

  /**
   * @param {StateMemory<T>} memory @param {Decoder} decoder
   * @param {number} places for turns, 2 at least: a step that fails, or is not wanted, has written none that the next one reads
   */
  constructor(memory, { states }, places) {
    this.names = [...states.keys()];
    this.#memory = memory;
    this.#states = [...states.values()].map((shape) => {
      const dims = [1, ...shape];
      return { dims, bytes: memory.bytesPerValue * dims.reduce((product, size) => product * size) };
    });
    const bytes = this.#states.reduce((sum, each) => sum + each.bytes, 0);
    this.#most = Math.max(1, Math.min(MOST, Math.floor(MOST_BYTES / bytes)));
    this.#places = Array.from({ length: places }, () => this.#made());
    this.reset();
  }

  get places() {
    return this.#places.length;
  }

  /** What a run reads that begins in a place, and what it writes. @param {number} [place] */
  at(place = this.#place) {
    return { past: this.#places[place], present: this.#places[(place + 1) % this.#places.length] };
  }

  /** The place of the sequence after some more steps. @param {number} steps */
  after(steps) {
    return (this.#place + steps) % this.#places.length;
  }

  get past() {
    return this.#places[this.#place];
  }

  /**
   * Goes back to where a sequence of that many tokens goes on from; from which of them on they have to be fed.
   *
   * @param {number} position
   */
  goBack(position) {
    for (const at of [...this.#copies.keys()].filter((one) => one > position)) this.#drop(at);
    if (this.#seen > position) {
      this.#seen = Math.max(0, ...this.#copies.keys());
      const copy = this.#copies.get(this.#seen);
      if (copy) this.#memory.copy(copy, this.past);
      else this.#memory.clear(this.past);
    }
    return this.#seen;
  }

  /** Before a run: copies them if it is one of several tokens, or follows such a one. @param {number} tokens of it */
  begin(tokens) {
    const isMany = tokens > 1;
    if (this.#seen && (isMany || this.#wasMany) && !this.#copies.has(this.#seen)) {
      const copy = this.#spare.pop() ?? this.#made();
      this.#memory.copy(this.past, copy);
      this.#copies.set(this.#seen, copy);
      if (this.#copies.size > this.#most) this.#thin();
    }
    this.#wasMany = isMany;
  }

  /** After a run: takes what it has written. @param {number} tokens of it */
  end(tokens) {
    this.#place = this.after(1);
    this.#seen += tokens;
  }

  /** To those of no token. */
  reset() {
    this.goBack(0);
    this.#memory.clear(this.past);
  }

  /** Forgets all but where they are, which somebody writes. @param {number} tokens that what is written has seen */
  replaced(tokens) {
    this.goBack(0);
    [this.#seen, this.#wasMany] = [tokens, true];
  }

  /** Takes the place of others, which are closed. @param {RecurrentStates<T>} others */
  takeFrom(others) {
    this.goBack(0);
    this.#memory.copy(others.past, this.past);
    [this.#seen, this.#wasMany, this.#copies] = [others.#seen, others.#wasMany, others.#copies];
    others.#copies = new Map();
  }

  close() {
    for (const states of [...this.#places, ...this.#copies.values(), ...this.#spare]) this.#memory.free(states);
    this.#copies.clear();
    [this.#places, this.#spare] = [[], []];
  }

  /** Drops one: the newest stays, and of the others those that lie far apart. */
  #thin() {
    const at = [0, ...this.#copies.keys()];
    const gap = (/** @type {number} */ one) => at[one + 1] - at[one - 1];
    let least = 1;
    for (let one = 2; one < at.length - 1; one++) if (gap(one) < gap(least)) least = one;
    this.#drop(at[least]);
  }

  /** @param {number} at */
  #drop(at) {
    this.#spare.push(/** @type {T[]} */ (this.#copies.get(at)));
    this.#copies.delete(at);
  }

  #made() {
    return this.#states.map(({ dims, bytes }) => this.#memory.place(dims, bytes));
  }
}
