// What a reply may say, as a mask over the tokens: compiled from a schema, a regex, a list or EBNF, run per request.

import { Automaton } from "./automaton.js";
import { checked } from "./check.js";
import { parseEbnf } from "./ebnf.js";
import { choice } from "./expression.js";
import { parseRegex } from "./regex.js";
import { schemaExpression } from "./schema.js";
import { Vocabulary } from "./vocabulary.js";

/** @import { Expression } from "./expression.js" */
/** @import { State } from "./automaton.js" */

/**
 * One of: a JSON schema; a regex that the whole reply matches; the texts to choose from; EBNF that starts at `root`.
 *
 * @typedef {{jsonSchema?: unknown, regex?: string, choices?: readonly string[], ebnf?: string}} Source
 */

/**
 * A row of logits that can be masked: src/sampling/array_logits.js.
 *
 * @template T
 * @typedef {{masked(bits: Uint32Array): T}} Maskable
 */

const SOURCES = /** @type {const} */ (["jsonSchema", "regex", "choices", "ebnf"]);
const MOST_MASKS = 512; // kept, at 19 KB each for 152,000 tokens

/** A grammar over the tokens of one model; any number of requests may run it. */
export class Grammar {
  #automaton;
  #vocabulary;
  #stopTokens;
  /** @type {Map<string, Uint32Array>} */
  #masks = new Map();
  /** @type {State[]} */
  #path = []; // by depth in the tree of tokens

  /**
   * @param {Expression} expression
   * @param {string} subject what the grammar was made from, for errors
   * @param {Vocabulary} vocabulary
   * @param {Iterable<number>} stopTokens
   */
  constructor(expression, subject, vocabulary, stopTokens) {
    this.#vocabulary = vocabulary;
    this.#stopTokens = new Set(stopTokens);
    this.#automaton = new Automaton(checked(expression, subject), vocabulary.longest);
  }

  /**
   * @param {Source} source
   * @param {{texts: ReadonlyMap<string, string>, stopTokens: Iterable<number>}} model texts: the small files of its
   *   folder by name. stopTokens: that may end a reply which is whole
   * @returns {Grammar}
   * @throws RangeError when the source cannot be followed exactly; it names the place. PackageError when the tokens'
   *   bytes are not known
   */
  static compile(source, { texts, stopTokens }) {
    const named = SOURCES.filter((name) => source[name] !== undefined);
    if (named.length !== 1) {
      throw new RangeError(`a grammar has one of ${SOURCES.join(", ")}; found ${named.join(" and ") || "none"}`);
    }
    return new Grammar(expressionOf(source), `the ${named[0]}`, Vocabulary.of(texts), stopTokens);
  }

  /** A new reply's matcher. */
  matcher() {
    return new Matcher(this, this.#automaton.start, this.#stopTokens);
  }

  /**
   * The tokens that may come next, a bit each; kept, so not to be changed.
   *
   * @param {State} state
   * @returns {Uint32Array}
   */
  allowed(state) {
    const key = this.#automaton.sameAs(state);
    let bits = this.#masks.get(key);
    if (bits)
      this.#masks.delete(key); // and back in, so that the oldest is the one not used for longest
    else bits = this.#walk(state);
    this.#masks.set(key, bits);
    if (this.#masks.size > MOST_MASKS) this.#masks.delete(/** @type {string} */ (this.#masks.keys().next().value));
    return bits;
  }

  /**
   * The state after a token; null when it may not come.
   *
   * @param {State} state
   * @param {number} token
   * @returns {State | null}
   */
  after(state, token) {
    const bytes = this.#vocabulary.tokens[token];
    if (!bytes?.length) return null;
    /** @type {State | null} */
    let found = state;
    for (const byte of bytes) if (found) found = this.#automaton.next(found)[byte];
    return found;
  }

  /** @param {State} start @returns {Uint32Array} */
  #walk(start) {
    const { depths, bytes, tokens, after, twins } = this.#vocabulary.tree;
    const words = Math.max(this.#vocabulary.tokens.length - 1, ...this.#stopTokens) >> 5;
    const found = new Uint32Array(words + 1);
    const path = this.#path;
    path[0] = start;
    for (let node = 0; node < depths.length;) {
      const depth = depths[node];
      const state = path[depth];
      const next = (state.next ?? this.#automaton.next(state))[bytes[node]];
      if (!next) {
        node = after[node];
        continue;
      }
      path[depth + 1] = next;
      for (let token = tokens[node]; token >= 0; token = twins[token]) found[token >> 5] |= 1 << (token & 31);
      node++;
    }
    for (const token of this.#stopTokens) {
      const bit = 1 << (token & 31);
      if (start.isWhole) found[token >> 5] |= bit;
      else found[token >> 5] &= ~bit;
    }
    return found;
  }
}

/** How far one reply has come in a grammar. */
export class Matcher {
  #grammar;
  #stopTokens;
  /** @type {State} */
  #state;

  /** @param {Grammar} grammar @param {State} start @param {ReadonlySet<number>} stopTokens */
  constructor(grammar, start, stopTokens) {
    this.#grammar = grammar;
    this.#state = start;
    this.#stopTokens = stopTokens;
  }

  /** Whether the reply is whole and nothing but a stop token may follow. */
  get isDone() {
    return this.#state.isWhole && this.#state.frames.length === 0;
  }

  /** Whether the reply would be whole if it ended now. */
  get isStopAllowed() {
    return this.#state.isWhole;
  }

  /**
   * One bit a token, that of token t in word t >> 5 at place t & 31; not to be changed.
   *
   * @throws RangeError when no token may come
   */
  get bits() {
    const bits = this.#grammar.allowed(this.#state);
    if (bits.every((word) => word === 0)) {
      throw new RangeError(
        "no token is allowed: the grammar wants bytes here that no token of the vocabulary begins with. Loosen it.",
      );
    }
    return bits;
  }

  /**
   * A copy of the row in which every token that may not come next has -Infinity.
   *
   * @template T
   * @param {Maskable<T>} row
   * @returns {T}
   */
  mask(row) {
    return row.masked(this.bits);
  }

  /**
   * Takes the token that is now part of the reply, a stop token too.
   *
   * @param {number} token
   * @throws RangeError when the grammar forbids it
   */
  note(token) {
    const isStop = this.#stopTokens.has(token);
    const next = isStop && this.#state.isWhole ? this.#state : isStop ? null : this.#grammar.after(this.#state, token);
    if (!next)
      throw new RangeError(`token ${token} is not allowed by the grammar here. Choose from what mask() leaves.`);
    this.#state = next;
  }
}

/** @param {Source} source @returns {Expression} */
function expressionOf({ jsonSchema, regex, choices, ebnf }) {
  if (jsonSchema !== undefined) return schemaExpression(jsonSchema);
  if (regex !== undefined) return parseRegex(regex);
  if (ebnf !== undefined) return parseEbnf(ebnf);
  if (!choices?.length) throw new RangeError("choices is empty; expected one text or more");
  return choice(...choices);
}
