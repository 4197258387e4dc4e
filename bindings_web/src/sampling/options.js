// The options of sampling: the twin of embedllm/sampling/options.py; sampler.py there says in which order they are applied.

import { checkedSeed } from "./mersenne_twister.js";

// vLLM's limit; below it the differences of two float32 logits over the temperature mean nothing.
const LEAST_TEMPERATURE = 1e-5;
const MOST_ID = 2 ** 31 - 1; // graphs take signed ids

/**
 * @typedef {object} SamplingOptions
 * @property {number} [temperature] divides the logits; 0 (or below 1e-5) = greedy: always the best token
 * @property {number} [top_k] only the k best tokens; 0 = off, 1 = greedy
 * @property {number} [top_p] only the fewest best tokens that hold this probability; 1 = off
 * @property {number} [min_p] only tokens at least this share as probable as the best; 0 = off
 * @property {number} [typical_p] only the fewest tokens of most ordinary surprise that hold this probability; 1 = off
 * @property {number} [repetition_penalty] divides positive, multiplies negative logits of prompt and reply; 1 = off
 * @property {number} [presence_penalty] subtracted from the logits of tokens that are in the reply; 0 = off
 * @property {number} [frequency_penalty] subtracted once for every time that the token is in the reply; 0 = off
 * @property {number} [no_repeat_ngram] no n-gram of N tokens occurs twice in prompt and reply; 0 = off
 * @property {Iterable<readonly [number, number]> | Record<string, number>} [logit_bias] added, by token; a Map, pairs
 *   or an object; kept as pairs in the order of ids
 * @property {number | bigint | null} [seed] same seed, same logits: same tokens; null = different ones each time
 */

/**
 * Option, least, most, what to say.
 *
 * @type {readonly [name: keyof SamplingOptions, least: number, most: number, expected: string][]}
 */
const RANGES = [
  ["temperature", 0, 100, "0 (greedy) to 100"],
  ["top_k", 0, Infinity, "0 (off) or more"],
  ["top_p", 0, 1, "0 to 1 (off)"],
  ["min_p", 0, 1, "0 (off) to 1"],
  ["typical_p", 0, 1, "0 to 1 (off)"],
  ["repetition_penalty", 0.01, 100, "0.01 to 100, 1 = off"],
  ["presence_penalty", -2, 2, "-2 to 2, 0 = off"], // this and the next: OpenAI's ranges
  ["frequency_penalty", -2, 2, "-2 to 2, 0 = off"],
  ["no_repeat_ngram", 0, Infinity, "0 (off) or more"],
];

/**
 * How to choose tokens; frozen. By default every option is off: tokens are drawn as the model distributes them.
 *
 * One that was posted to another thread arrives there as a plain object; new Sampling(it) is the same again.
 */
export class Sampling {
  temperature = 1;
  top_k = 0;
  top_p = 1;
  min_p = 0;
  typical_p = 1;
  repetition_penalty = 1;
  presence_penalty = 0;
  frequency_penalty = 0;
  no_repeat_ngram = 0;
  /** @type {readonly (readonly [token: number, bias: number])[]} */
  logit_bias = [];
  /** @type {number | bigint | null} */
  seed = null;

  /**
   * @param {SamplingOptions} [options] one that is undefined is as one left out
   * @throws RangeError for a value out of its range, and for an option that does not exist
   */
  constructor(options = {}) {
    for (const name of Object.keys(options)) {
      if (!Object.hasOwn(this, name)) {
        throw new RangeError(`sampling has no option '${name}'; expected ${Object.keys(this).join(", ")}`);
      }
    }
    const given = Object.entries(options).filter(([, value]) => value !== undefined);
    Object.assign(this, Object.fromEntries(given));
    for (const [name, least, most, expected] of RANGES) check(name, this[name], least, most, expected);
    for (const name of /** @type {const} */ (["top_k", "no_repeat_ngram"])) {
      if (!Number.isInteger(this[name])) throw new RangeError(`${name} is ${this[name]}; expected a whole number, 0 = off`);
    }
    if (this.seed !== null) checkedSeed(this.seed);
    this.logit_bias = biases(this.logit_bias);
    Object.freeze(this);
  }

  /** Whether some tokens are left out of the draw. */
  get truncates() {
    return this.top_k > 0 || this.top_p < 1 || this.min_p > 0 || this.typical_p < 1;
  }

  /** Whether logits change by what was said before, or by their token. */
  get penalizes() {
    const { repetition_penalty, presence_penalty, frequency_penalty, logit_bias } = this;
    return repetition_penalty !== 1 || presence_penalty !== 0 || frequency_penalty !== 0 || logit_bias.length > 0;
  }

  /** Whether no chance is involved. */
  get isGreedy() {
    return this.temperature < LEAST_TEMPERATURE || this.top_k === 1;
  }
}

/**
 * @param {string} name
 * @param {unknown} value
 * @param {number} least
 * @param {number} most
 * @param {string} expected
 */
function check(name, value, least, most, expected) {
  // not a comparison turned round: a NaN is in no range
  if (typeof value !== "number" || !(least <= value && value <= most)) {
    throw new RangeError(`${name} is ${shown(value)}; expected ${expected}`);
  }
}

/**
 * @param {Required<SamplingOptions>["logit_bias"]} given
 * @returns {readonly (readonly [token: number, bias: number])[]}
 */
function biases(given) {
  if (typeof given !== "object" || given === null) {
    throw new RangeError(`logit_bias is ${shown(given)}; expected a Map, pairs or an object of token and bias`);
  }
  /** @type {Map<number, number>} */
  const byToken = new Map();
  if (Symbol.iterator in given) for (const [token, bias] of given) byToken.set(token, bias);
  else for (const [key, bias] of Object.entries(given)) byToken.set(idOf(key), bias);
  for (const [token, bias] of byToken) {
    if (!Number.isSafeInteger(token) || token < 0 || token > MOST_ID) {
      throw new RangeError(`logit_bias has the token ${shown(token)}; expected token ids, 0 to ${MOST_ID}`);
    }
    if (bias === -Infinity) continue;
    check(`logit_bias of token ${token}`, bias, -100, 100, "-100 to 100, or -Infinity to forbid the token");
  }
  const sorted = [...byToken].sort(([one], [other]) => one - other);
  return Object.freeze(sorted.map(([token, bias]) => Object.freeze(/** @type {const} */ ([token, bias]))));
}

/**
 * The token of an object's key, which is always a string; NaN for one that is no number.
 *
 * @param {string} key
 */
function idOf(key) {
  return /^\d+$/.test(key) ? Number(key) : NaN;
}

/**
 * A value as an error message shows it.
 *
 * @param {unknown} value
 * @returns {string}
 */
function shown(value) {
  return typeof value === "string" ? `'${value}'` : String(value);
}
