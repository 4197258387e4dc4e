// The states of a recurrent sequence, which no step takes back: where steps read and write them, and copies to go back to.
//
// The twin of embedllm/backends/sessions/recurrent_session.py. A copy is made where a run of several tokens begins or has
// ended; between two of them tokens are fed again.

/**
 * @import { Decoder } from "./model_shape.js"
 */

/**
 * Where states lie. T: a state; clear: to zeros.
 *
 * @template {{tensor: number}} T
 * @typedef {{bytesPerValue: number, place: (dims: number[], bytes: number) => T, copy: (from: T[], to: T[]) => void,
 *   clear: (states: T[]) => void, read: (states: T[]) => Promise<Uint8Array[]>,
 *   write: (states: T[], pieces: Uint8Array[]) => void, free: (states: T[]) => void}} StateMemory
 */

const PLACES = 2; // for turns: a step that fails has written none that the next one reads
const MOST = 16; // copies of a sequence
const MOST_BYTES = 128 << 20; // that they take together; one there is always

/** @template {{tensor: number}} T */
export class RecurrentStates {
  #memory;
  #states;
  #bytes;
  /** @type {T[][]} */
  #places;
  #place = 0;
  /** @type {Map<number, T[]>} by how many tokens they have seen, in their order */
  #copies = new Map();
  /** @type {T[][]} that nobody goes back to any more */
  #spare = [];
  #seen = 0; // tokens
  #wasMany = false; // the last run

  /** @param {StateMemory<T>} memory @param {Decoder} decoder */
  constructor(memory, { states }) {
    this.names = [...states.keys()];
    this.#memory = memory;
    this.#states = [...states.values()].map((shape) => {
      const dims = [1, ...shape];
      return { dims, bytes: memory.bytesPerValue * dims.reduce((product, size) => product * size) };
    });
    this.#bytes = this.#states.reduce((sum, { bytes }) => sum + bytes, 0);
    this.#places = Array.from({ length: PLACES }, () => this.#made());
    memory.clear(this.#places[0]);
  }

  /** What a run reads. */
  get past() {
    return this.#places[this.#place];
  }

  /** What it writes. */
  get present() {
    return this.#places[(this.#place + 1) % PLACES];
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
      if (this.#copies.size > Math.max(1, Math.min(MOST, Math.floor(MOST_BYTES / this.#bytes)))) this.#thin();
    }
    this.#wasMany = isMany;
  }

  /** After a run: takes what it has written. @param {number} tokens of it */
  end(tokens) {
    this.#place = (this.#place + 1) % PLACES;
    this.#seen += tokens;
  }

  /** As they are now. */
  read() {
    return this.#memory.read(this.past);
  }

  /** @param {Uint8Array[]} pieces of read() @param {number} tokens that they have seen */
  write(pieces, tokens) {
    this.goBack(0);
    this.#memory.write(this.past, pieces);
    [this.#seen, this.#wasMany] = [tokens, true];
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
