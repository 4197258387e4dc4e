// Which tokens may not come next, as a generation_config.json or a call asks: the twin of embedllm/sampling/bans.py. Loaded where one does.

/**
 * @import { ArrayLogits } from "./array_logits.js"
 * @import { Constraint } from "./sampler.js"
 * @typedef {(prompt: readonly number[], constraint: Constraint | null, ngram: number) => Constraint} MakeBans of a reply:
 *   its prompt's text, what else it is held to, and of which size no n-gram occurs twice; 0 = off
 */

const MOST_ID = 2 ** 31 - 1;
const IDS = `token ids, 0 to ${MOST_ID}`;

/**
 * What the file asks for: a bias for options of sampling, and bans, null for none. Throws RangeError for what is none.
 *
 * @param {Record<string, any>} data of the file
 * @returns {{logit_bias: [token: number, bias: number][], bans: MakeBans | null}}
 */
export function readBans({ bad_words_ids: words, suppress_tokens: suppressed }) {
  const banned = listOf("bad_words", words, `a list of sequences of ${IDS}`).map(sequenceOf);
  return {
    logit_bias: listOf("suppress_tokens", suppressed, `a list of ${IDS}`).map((token) => [token, -Infinity]),
    bans: banned.length ? bansOf(banned) : null,
  };
}

/** @param {readonly (readonly number[])[]} words @returns {MakeBans} */
export const bansOf = (words) => (prompt, constraint, ngram) => new BannedTokens(ngram, words, prompt, constraint);

/** What a reply may not go on with, and what else holds it. @implements {Constraint} */
class BannedTokens {
  #ngram;
  #words;
  #constraint;
  /** after each run of n - 1 tokens @type {Map<string | null, Set<number>>} */
  #followers = new Map();
  /** @type {number[]} */
  #tokens = [];
  #reply; // where it begins in the tokens

  /**
   * @param {number} ngram of which size no n-gram occurs twice in prompt and reply; 0 = off
   * @param {readonly (readonly number[])[]} words sequences that do not occur in the reply
   * @param {readonly number[]} prompt @param {Constraint | null} constraint
   */
  constructor(ngram, words, prompt, constraint) {
    this.#ngram = ngram;
    this.#words = words;
    this.#constraint = constraint;
    for (const token of prompt) this.#append(token);
    this.#reply = prompt.length;
  }

  get isDone() {
    return this.#constraint?.isDone ?? false;
  }

  get isStopAllowed() {
    return this.#constraint?.isStopAllowed ?? true;
  }

  /** @param {ArrayLogits} row */
  mask(row) {
    const allowed = this.#applied(row);
    return this.#constraint?.mask(allowed) ?? allowed;
  }

  /** @param {number} token */
  note(token) {
    this.#append(token);
    this.#constraint?.note(token);
  }

  /** The row with -Infinity for what is banned; the same one when nothing is. @param {ArrayLogits} row */
  #applied(row) {
    const ends = this.#words.filter((word) => {
      const start = this.#tokens.length - word.length + 1;
      return start >= this.#reply && word.slice(0, -1).every((token, place) => this.#tokens[start + place] === token);
    }).map((word) => word[word.length - 1]);
    const found = new Set([...ends, ...(this.#followers.get(this.#run()) ?? [])]);
    const tokens = [...found].filter((token) => token < row.size); // others cannot come
    if (!tokens.length) return row;
    const all = (/** @type {number} */ value) => tokens.map(() => value);
    return row.penalized({ tokens, biases: all(-Infinity), divisors: all(1), subtracted: all(0) });
  }

  /** @param {number} token */
  #append(token) {
    const run = this.#run();
    if (run !== null) this.#followers.set(run, (this.#followers.get(run) ?? new Set()).add(token));
    this.#tokens.push(token);
  }

  /** The last n - 1 tokens; null where there are fewer. */
  #run() {
    const start = this.#tokens.length - this.#ngram + 1;
    return this.#ngram && start >= 0 ? this.#tokens.slice(start).join() : null;
  }
}

/** @param {string} name @param {unknown} given @param {string} expected @returns {any[]} */
function listOf(name, given, expected) {
  const list = given ?? [];
  if (Array.isArray(list)) return list;
  throw new RangeError(`${name} is ${shown(given)}; expected ${expected}`);
}

/** @param {unknown} word @returns {number[]} */
function sequenceOf(word) {
  const isOne = Array.isArray(word) && word.length && word.every((token) => Number.isInteger(token) && token >= 0 && token <= MOST_ID);
  if (isOne) return word;
  throw new RangeError(`bad_words has ${shown(word)}; expected sequences of ${IDS}, that are not empty`);
}

/** @param {unknown} value */
const shown = (value) => JSON.stringify(value);
