// One row of logits in a Float32Array, answering what the sampler asks: the twin of embedllm/sampling/numpy_logits.py.
//
// A vocabulary has some 150,000 tokens and a token is due every few milliseconds. The first question walks the row once
// and keeps the highest logit of every block of 64; the others skip the blocks that cannot matter. Nothing of the row's
// size is made, but for the copy in penalized() and a top() of everything. Sums are in float64, Python's in float32.

import { DeviceError } from "../errors.js";
import { checkedToken, masked, penalized } from "./logit_copies.js";
import { BLOCK, blockMaxima, highestKeys, MOST_TOKENS, tokenOf } from "./top_k.js";
import {
  addBetween,
  addBoth,
  addWeights,
  countEqual,
  firstPast,
  NEGLIGIBLE,
  tokenPast,
  weightOf,
} from "./softmax.js";

/**
 * The best tokens of one step, highest logit first; equal logits in the order of their ids.
 *
 * @typedef {{tokens: Int32Array, logits: Float32Array}} Candidates
 */

/**
 * The logits of one step.
 *
 * The array is viewed, not copied, and must stay as it is while the row is in use. A token whose logit is -Infinity is
 * forbidden.
 */
export class ArrayLogits {
  /** whether nothing was asked but what greedy sampling asks: the best token, single logits, the sum of all */
  isGreedy = true;
  /** whether anything was asked that a choice needs */
  wasAsked = false;
  #row;
  /** @type {{best: number, token: number, maxima: Float32Array} | null} */
  #peaks = null;
  /** @type {Map<number, Float64Array>} temperature -> cumulative weight after each block */
  #cumulative = new Map();
  /** @type {Map<number, number>} temperature -> expected logit */
  #means = new Map();

  /**
   * @param {Float32Array} row logits [V]
   * @throws RangeError when it is not a Float32Array of 1 to 2,097,152 numbers. At the first question about the values:
   *   DeviceError when they hold a NaN or Infinity, RangeError when they forbid every token
   */
  constructor(row) {
    if (!(row instanceof Float32Array) || row.length < 1 || row.length > MOST_TOKENS) {
      const found = row instanceof Float32Array ? `${row.length} of them` : Object.prototype.toString.call(row);
      throw new RangeError(`logits are a Float32Array of 1 to ${MOST_TOKENS} numbers, one row; found ${found}`);
    }
    this.#row = row;
  }

  /** Number of tokens in the vocabulary, V. */
  get size() {
    return this.#row.length;
  }

  /**
   * The logits of these tokens.
   *
   * @param {ArrayLike<number>} tokens
   * @returns {number[]}
   */
  values(tokens) {
    return Array.from(tokens, (token) => this.#row[checkedToken(token, this.size)]);
  }

  /**
   * A copy in which these tokens have changed logits: logit + bias; that over the divisor if positive and times it if
   * not; less what is subtracted. Each step is rounded to float32.
   *
   * @param {import("./logit_copies.js").Changes} changes
   * @returns {ArrayLogits}
   */
  penalized(changes) {
    this.isGreedy = false;
    return new ArrayLogits(penalized(this.#row, changes));
  }

  /**
   * A copy in which the tokens without a bit have -Infinity.
   *
   * @param {Uint32Array | Int32Array} bits that of token t is in word t >> 5 at place t & 31; none past the end
   * @returns {ArrayLogits}
   */
  masked(bits) {
    this.isGreedy = false;
    return new ArrayLogits(masked(this.#row, bits));
  }

  /**
   * The `count` highest logits, exactly; all V when count is larger.
   *
   * @param {number} count
   * @returns {Candidates}
   */
  top(count) {
    if (!Number.isInteger(count) || count < 1) throw new RangeError(`count is ${count}; expected 1 or more`);
    const row = this.#row;
    const { best, token, maxima } = this.#highest();
    if (count === 1) return { tokens: Int32Array.of(token), logits: Float32Array.of(best) };
    this.isGreedy = false;
    let bound = -Infinity; // what at least `count` logits reach
    if (count <= maxima.length) bound = maxima[tokenOf(highestKeys(maxima, count)[count - 1])];
    const keys = highestKeys(row, Math.min(count, row.length), { maxima, bound });
    const tokens = Int32Array.from(keys, tokenOf);
    return { tokens, logits: Float32Array.from(tokens, (token) => row[token]) };
  }

  /**
   * log(sum(exp(logit / temperature))) over the whole vocabulary.
   *
   * @param {number} [temperature]
   * @returns {number}
   */
  logsumexp(temperature = 1) {
    return this.#highest().best / temperature + Math.log(this.#mass(temperature));
  }

  /**
   * The token at which the cumulative softmax(logits / temperature), in the order of ids, passes `uniform`; never one
   * without probability.
   *
   * @param {number} temperature
   * @param {number} uniform in [0, 1)
   * @returns {number}
   */
  draw(temperature, uniform) {
    this.isGreedy = false;
    const cumulative = this.#weigh(temperature);
    const target = uniform * cumulative[cumulative.length - 1];
    const block = firstPast(cumulative, target);
    const sum = block > 0 ? cumulative[block - 1] : 0;
    const { best } = this.#highest();
    return tokenPast(this.#row, block * BLOCK, this.#stop(block), best, 1 / temperature, sum, target);
  }

  /**
   * The expected logit under softmax(logits / temperature).
   *
   * @param {number} temperature
   * @returns {number}
   */
  mean(temperature) {
    const known = this.#means.get(temperature);
    if (known !== undefined) return known;
    this.isGreedy = false;
    const { best } = this.#highest();
    const sums = new Float64Array(2);
    this.#walk(temperature, sums);
    const mean = best + sums[1] / sums[0];
    this.#means.set(temperature, mean);
    return mean;
  }

  /**
   * The standard deviation of the logits above -Infinity.
   *
   * @returns {number}
   */
  deviation() {
    const { best } = this.#highest();
    let count = 0;
    let sum = 0;
    let squares = 0;
    for (const logit of this.#row) {
      if (logit === -Infinity) continue;
      const below = logit - best; // from the best, near which the sums of large logits keep their digits
      count++;
      sum += below;
      squares += below * below;
    }
    return Math.sqrt(Math.max(0, squares / count - (sum / count) ** 2));
  }

  /**
   * The probability of the tokens that go before `token` when those with logits nearest to `centre` go first.
   *
   * At the same distance the higher logit goes first, at the same logit the lower id. With centre=Infinity that is the
   * order of `top`. So whether a token belongs to a nucleus or a typical set is one sum over the row.
   *
   * @param {number} token
   * @param {number} centre
   * @param {number} temperature
   * @returns {number}
   */
  massNearer(token, centre, temperature) {
    const mass = this.#mass(temperature);
    const { best, maxima } = this.#highest();
    const row = this.#row;
    const scale = 1 / temperature;
    const logit = row[checkedToken(token, this.size)];
    const mirrored = 2 * centre - logit;
    const isAbove = logit >= centre;
    const low = isAbove ? mirrored : logit;
    const high = isAbove ? logit : mirrored;
    let sum = countEqual(row, token, logit) * weightOf(logit - best, scale);
    if (!isAbove && mirrored <= best) sum += countEqual(row, row.length, mirrored) * weightOf(mirrored - best, scale);
    for (let block = 0; block < maxima.length; block++) {
      const highest = maxima[block];
      if (highest <= low || (highest - best) * scale <= NEGLIGIBLE) continue;
      sum = addBetween(row, block * BLOCK, this.#stop(block), best, scale, low, high, sum);
    }
    return sum / mass;
  }

  /** @param {number} block */
  #stop(block) {
    return Math.min((block + 1) * BLOCK, this.#row.length);
  }

  /** The highest logit and the first token that has it, once it is known to be a number; and those of the blocks. */
  #highest() {
    this.wasAsked = true;
    if (this.#peaks) return this.#peaks;
    const maxima = blockMaxima(this.#row);
    let block = 0;
    for (let other = 0; other < maxima.length; other++) {
      // not a comparison turned round: a NaN is above nothing
      if (!(maxima[other] <= maxima[block])) block = other;
      if (!(maxima[block] < Infinity)) break;
    }
    const best = maxima[block];
    if (!(best < Infinity)) {
      const odd = this.#row.findIndex((logit) => !(logit < Infinity));
      throw new DeviceError(
        `logits of the model are not finite numbers: token ${odd} has ${this.#row[odd]}. A model run in float16 may ` +
          "have overflowed, or its file is damaged; try another device or a wider type.",
      );
    }
    if (best === -Infinity) {
      throw new RangeError("all logits are -Infinity: no token is allowed. Loosen the grammar or the logit bias.");
    }
    const token = this.#row.indexOf(best, block * BLOCK);
    this.#peaks = { best, token, maxima };
    return this.#peaks;
  }

  /** @param {number} temperature */
  #mass(temperature) {
    const cumulative = this.#weigh(temperature);
    return cumulative[cumulative.length - 1];
  }

  /**
   * The sum of exp((logit - best) / temperature) up to the end of each block, in the order of ids.
   *
   * @param {number} temperature
   */
  #weigh(temperature) {
    return this.#cumulative.get(temperature) ?? this.#walk(temperature, null);
  }

  /**
   * As #weigh(); adds the weights times the distances of logits to the best one, too, where there are sums for both.
   *
   * @param {number} temperature @param {Float64Array | null} sums
   */
  #walk(temperature, sums) {
    if (!(temperature > 0)) throw new RangeError(`temperature is ${temperature}; expected a number above 0`);
    const { best, maxima } = this.#highest();
    const scale = 1 / temperature;
    const cumulative = new Float64Array(maxima.length);
    let sum = 0;
    for (let block = 0; block < maxima.length; block++) {
      if ((maxima[block] - best) * scale > NEGLIGIBLE) {
        const [start, stop] = [block * BLOCK, this.#stop(block)];
        if (sums) addBoth(this.#row, start, stop, best, scale, sums);
        else sum = addWeights(this.#row, start, stop, best, scale, sum);
      }
      cumulative[block] = sums ? sums[0] : sum;
    }
    this.#cumulative.set(temperature, cumulative);
    return cumulative;
  }
}
