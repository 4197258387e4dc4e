// A model of one formula, as the bridge would give it: what Python in Pyodide is tested over, without a runtime.
//
// tests/web/support/formula.py is the same model in Python: its logits are multiples of 2^-20 below 8, exact in float32.

import { ContextFull, Interrupted } from "../../../bindings_web/src/errors.js";
import { ArrayLogits } from "../../../bindings_web/src/sampling/array_logits.js";

/**
 * The logits after these tokens.
 *
 * @param {number} vocabulary
 * @param {number[]} tokens
 */
export function logitsAfter(vocabulary, tokens) {
  const row = new Float32Array(vocabulary);
  const seed = Math.imul(tokens[tokens.length - 1] + 1, 0x9e3779b1) + Math.imul(tokens.length, 0x85ebca6b);
  for (let token = 0; token < vocabulary; token++) {
    let mixed = Math.imul((seed ^ Math.imul(token + 1, 0xc2b2ae35)) >>> 0, 0x27d4eb2f) >>> 0;
    mixed = Math.imul((mixed ^ (mixed >>> 15)) >>> 0, 0x2c1b3c6d) >>> 0;
    row[token] = (mixed >>> 8) / 2 ** 20 - 8;
  }
  return row;
}

/** Counts what was made and what is still there; rows are told when they are collected. */
export class Counts {
  rows = 0;
  collected = 0;
  closed = 0;
  interrupts = 0;
  #registry = new FinalizationRegistry(() => this.collected++);

  /** @param {object} row */
  made(row) {
    this.rows++;
    this.#registry.register(row, null);
  }
}

class FormulaSession {
  capacity = 0;
  closed = false;
  /** @type {number[]} */
  tokens = [];
  stopping = false;
  feeding = false;

  /**
   * @param {FormulaEngine} engine
   * @param {number} capacity
   */
  constructor(engine, capacity) {
    this.engine = engine;
    this.capacity = Math.min(capacity, engine.context);
  }

  get position() {
    return this.tokens.length;
  }

  /** @param {Int32Array} tokens */
  async feed(tokens) {
    if (this.closed || this.feeding) throw new Error("fed while it was closed, or feeding");
    const { engine } = this;
    if (engine.failure) throw engine.failure;
    if (this.position + tokens.length > engine.context) {
      throw new ContextFull("too long", { tokens: this.position + tokens.length, limit: engine.context });
    }
    this.feeding = true;
    try {
      await engine.gate(this);
      if (this.stopping) throw new Interrupted("stopped");
    } finally {
      this.feeding = false;
    }
    this.tokens.push(...tokens);
    this.capacity = Math.max(this.capacity, this.position);
    const row = new ArrayLogits(engine.fixed ?? logitsAfter(engine.vocabulary, this.tokens));
    engine.counts.made(row);
    return row;
  }

  /** @param {number} position */
  rewind(position) {
    if (position < 0 || position > this.position) throw new RangeError(`cannot rewind to ${position}`);
    this.tokens.length = position;
  }

  /** The "KV" of a formula is its tokens. */
  async exportState() {
    return this.tokens.length ? [new Uint8Array(Int32Array.from(this.tokens).buffer)] : [];
  }

  /** @param {Uint8Array[]} state @param {readonly number[]} tokens */
  async importState([bytes], tokens) {
    if (this.engine.failure) throw this.engine.failure;
    this.tokens = [...new Int32Array(bytes.buffer, bytes.byteOffset, tokens.length)];
  }

  interrupt(stop = true) {
    if (stop) this.engine.counts.interrupts++;
    this.stopping = stop;
    this.engine.wake();
  }

  close() {
    if (this.feeding) throw new Error("closed while it feeds");
    this.closed = true;
    this.engine.counts.closed++;
  }
}

export class FormulaEngine {
  device = { name: "formula", backend: "made up 1", description: "", available: true, reason: null, memory: undefined };
  chunk = 16;
  closed = false;
  counts = new Counts();
  /** @type {Error | null} what every feed throws */
  failure = null;
  /** @type {Float32Array | null} the logits of every feed, for measurements */
  fixed = null;
  /** @type {(session: FormulaSession) => Promise<void> | void} awaited in the middle of each feed */
  gate = () => {};
  wake = () => {};

  /**
   * @param {number} vocabulary
   * @param {number} context
   */
  constructor(vocabulary, context) {
    this.vocabulary = vocabulary;
    this.context = context;
  }

  /** Every feed waits from now on until its session is interrupted. */
  hold() {
    this.gate = (session) =>
      new Promise((resolve) => {
        this.wake = () => session.stopping && resolve();
        this.wake();
      });
  }

  release() {
    this.gate = () => {};
  }

  open(capacity = 0) {
    return new FormulaSession(this, capacity);
  }

  close() {
    this.closed = true;
  }
}

/** A tokenizer whose tokens are the 256 bytes and an end: tests/support/fakes.py's `Bytes`. */
export class ByteCodec {
  specialTokens = new Set([256]);
  /** @type {Set<string>} */
  specialTexts = new Set();
  named = { eos_token: "<end>" };

  /** @param {{text: string}} prompt */
  encodePrompt({ text }) {
    return this.encode(text, { special: false });
  }

  /**
   * @param {string} text
   * @param {{special: boolean}} options
   */
  encode(text, { special }) {
    return [...new TextEncoder().encode(text), ...(special ? [256] : [])];
  }

  /**
   * @param {ArrayLike<number>} tokens
   * @param {{special: boolean}} options
   */
  decode(tokens, { special }) {
    const end = special ? [...new TextEncoder().encode("<end>")] : [];
    const bytes = Array.from(tokens).flatMap((token) => (token === 256 ? end : token < 256 ? [token] : []));
    return new TextDecoder().decode(Uint8Array.from(bytes));
  }

  /** @param {number} token */
  tokenText(token) {
    if (token > 256) return null;
    return token === 256 ? "<end>" : `byte ${token}`;
  }

  /** @param {string} text */
  tokenId(text) {
    return text === "<end>" ? 256 : null;
  }
}
